"""What the scheduler counts, and how the API servers see it.

vLLM's engine core and its API servers are different processes, and its own statistics have no room for ours. So the
scheduler counts in a small file that it keeps mapped, named after the engine's `instance_id`, and the middleware maps
the files of its own engine. The folder belongs to the user that runs vLLM, and nobody else may look into it.
"""

from __future__ import annotations

import atexit
import mmap
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Cause = Literal["read", "chat"]

SERIES: tuple[tuple[str, bool, str], ...] = (
    ("reads", False, "Reads that the scheduler took to isolate them."),
    ("read_steps", False, "Engine steps that held one isolated read, or a chunk of one."),
    ("read_tokens", False, "Prompt tokens computed in those steps."),
    ("chat_steps", False, "All other engine steps that computed something."),
    ("chat_steps_held", False, "Read steps for which chats stood aside that had work."),
    ("reads_refused", False, "Times that a read found no free request slot or no room in the KV cache, and waited."),
    ("chats_preempted", False, "Running chats that gave their KV blocks to a read whose chunks had begun."),
    ("evicted_blocks", True, "Cached KV blocks pushed out, by the kind of request that needed the room."),
    ("evicted_tokens", True, "Tokens in those blocks."),
    ("reads_not_isolated", False, "Reads that shared a step or began from a cached prefix. Anything above 0 is a bug."),
)
"""Name without prefix and `_total`; whether it has the label `cause`; help text."""

CELLS = tuple(
    cell for name, by_cause, _ in SERIES for cell in ((f"{name}.read", f"{name}.chat") if by_cause else (name,))
)
_INDEX = {cell: index for index, cell in enumerate(CELLS)}
_BYTES = 8 * len(CELLS)
_FILE = re.compile(r"(?P<instance>[\w-]+)\.(?P<pid>\d+)\.counters")


class Counters:
    """Totals of one scheduler, in signed 64-bit cells in the order of `CELLS`."""

    __slots__ = ("_cells", "_path")

    def __init__(self, memory: mmap.mmap, path: Path | None = None) -> None:
        self._cells = memoryview(memory).cast("q")
        self._path = path

    @classmethod
    def create(cls, instance: str) -> Counters:
        """Counters that the API servers of the engine `instance` can see.

        Raises:
            OSError: no file can be made; `private()` counts for this process alone.
        """
        folder = _folder(make=True)
        _sweep(folder)
        path = folder / f"{instance}.{os.getpid()}.counters"
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.truncate(handle, _BYTES)
            counters = cls(mmap.mmap(handle, _BYTES), path)
        finally:
            os.close(handle)
        atexit.register(counters.remove)
        return counters

    @classmethod
    def private(cls) -> Counters:
        """Counters that nobody else sees."""
        return cls(mmap.mmap(-1, _BYTES))

    def add(self, cell: str, amount: int = 1) -> None:
        self._cells[_INDEX[cell]] += amount

    def totals(self) -> dict[str, int]:
        return dict(zip(CELLS, self._cells, strict=True))

    def remove(self) -> None:
        """Take the file away; counting goes on."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def read_totals(instance: str) -> dict[str, int] | None:
    """The sums over the schedulers of an engine on this host that are alive; None if there is none to see."""
    try:
        folder = _folder(make=False)
    except OSError:
        return None
    sums: dict[str, int] | None = None
    for path, owner, pid in _files(folder):
        if owner != instance or not _alive(pid):
            continue
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), _BYTES, access=mmap.ACCESS_READ) as memory:
                cells = memoryview(memory).cast("q")
                sums = {cell: (sums or {}).get(cell, 0) + value for cell, value in zip(CELLS, cells, strict=True)}
                cells.release()
        except (OSError, ValueError):  # it went away, or is not whole yet
            continue
    return sums


def _folder(make: bool) -> Path:
    folder = Path(tempfile.gettempdir()) / f"logprob-router-{os.getuid()}"
    if make:
        folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not this user's alone")
    return folder


def _files(folder: Path) -> Iterator[tuple[Path, str, int]]:
    for path in folder.iterdir():
        if name := _FILE.fullmatch(path.name):
            yield path, name["instance"], int(name["pid"])


def _sweep(folder: Path) -> None:
    """Remove what killed processes left."""
    for path, _, pid in _files(folder):
        if not _alive(pid):
            path.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class EngineSeries(Collector):
    """The series of one engine, for Prometheus.

    Attributes:
        isolates: "marked" or "reads": which reads are isolated.
    """

    instance: str
    version: str
    isolates: str

    def collect(self) -> Iterator[Metric]:
        prefix = "logprob_router_engine_"
        info = GaugeMetricFamily(
            prefix + "info",
            "The engine behind these series, and which reads it isolates.",
            labels=["engine", "version", "isolates"],
        )
        info.add_metric(["vllm", self.version, self.isolates], 1)
        yield info
        totals = read_totals(self.instance)
        for name, by_cause, text in SERIES if totals is not None else ():
            family = CounterMetricFamily(prefix + name, text, labels=["cause"] if by_cause else [])
            for cause in ("read", "chat") if by_cause else ("",):
                cell = f"{name}.{cause}" if cause else name
                family.add_metric([cause] if cause else [], (totals or {})[cell])
            yield family
