"""The router under test: in this process in front of a scripted upstream, or as a real process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from router.app import Router
from router.settings import Settings
from tests.support.client import GEN, READ1, Answer, Client, ask, get
from tests.support.upstream import Upstream

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "logprob_router_"


class Samples:
    """A reading of `/metrics`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = [s for family in text_string_to_metric_families(text) for s in family.samples]

    def sum(self, name: str, **labels: str) -> float:
        """The sum over all samples of a series (its name without the prefix) that have these labels."""
        return sum(s.value for s in self._samples if s.name == PREFIX + name and labels.items() <= s.labels.items())

    def labels(self, name: str, label: str) -> set[str]:
        """The values of one label."""
        return {s.labels[label] for s in self._samples if s.name == PREFIX + name and label in s.labels}

    def gauges(self) -> dict[str, float]:
        """What must be back at 0 when nothing is going on."""
        return {
            name: self.sum(name)
            for name in ("read_queue_depth", "inflight_requests", "read_slots_busy", "gate_held_requests")
        }

    @property
    def count(self) -> int:
        """How many series of the router's own there are."""
        return sum(s.name.startswith(PREFIX) for s in self._samples)


async def eventually(check: Callable[[], object], timeout: float = 2.0) -> None:
    """Wait until `check` holds."""
    deadline = perf_counter() + timeout
    while not check():
        assert perf_counter() < deadline, f"not within {timeout} s"
        await asyncio.sleep(0.01)


class Running:
    """A router that runs: its ports, and what one asks it."""

    def __init__(self, port: int, admin_port: int, upstream: Upstream) -> None:
        self.port = port
        self.admin_port = admin_port
        self.upstream = upstream

    async def connect(self, **options: Any) -> Client:
        return await Client.connect(self.port, **options)

    async def ask(self, data: bytes, timeout: float = 10.0) -> Answer:
        """One request on a connection of its own."""
        return await ask(self.port, data, timeout)

    async def admin(self, path: str) -> Answer:
        return await ask(self.admin_port, get(path, "Connection: close"))

    async def metrics(self) -> Samples:
        return Samples((await self.admin("/metrics")).body.decode())

    async def settled(self, timeout: float = 2.0) -> Samples:
        """Wait until every gauge is back at 0."""
        deadline = perf_counter() + timeout
        while True:
            samples = await self.metrics()
            if not any(samples.gauges().values()):
                return samples
            assert perf_counter() < deadline, samples.gauges()
            await asyncio.sleep(0.02)


class InProcess(Running):
    """A router in this process."""

    def __init__(self, router: Router, upstream: Upstream) -> None:
        super().__init__(router.port, router.admin_port, upstream)
        self.router = router


@contextlib.asynccontextmanager
async def running(upstream: Upstream, *, url: str | None = None, **settings: Any) -> AsyncIterator[InProcess]:
    """A router with these settings in front of the upstream (by another `url`, if given), in this event loop."""
    values = {"upstream": url or upstream.url, "port": 0, "admin_port": 0, "engine": "generic", "engine_metrics": "off"}
    router = Router(Settings(**{**values, **settings}))
    started, stop = asyncio.Event(), asyncio.Event()

    async def host() -> None:  # entered and left in one task, as its task group wants it
        async with router:
            await router.first_look(5.0)
            started.set()
            await stop.wait()

    hosting = asyncio.create_task(host())
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait([hosting, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        if started.is_set():
            yield InProcess(router, upstream)
    finally:
        stop.set()
        await hosting


class Process(Running):
    """`logprob-router serve` as a process of its own."""

    process: asyncio.subprocess.Process
    log: list[str]

    @property
    def rss(self) -> float:
        """Resident memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status")
        if status.exists():
            found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text())
            assert found is not None
            return int(found[1]) / 1024
        import subprocess

        return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(self.process.pid)])) / 1024

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    async def exit_code(self, timeout: float = 10.0) -> int:
        async with asyncio.timeout(timeout):
            return await self.process.wait()

    @property
    def text(self) -> str:
        return "".join(self.log)


@contextlib.asynccontextmanager
async def serving(
    upstream: Upstream, *arguments: str, env: Mapping[str, str] | None = None, url: str | None = None
) -> AsyncIterator[Process]:
    """A router process in front of the upstream; it is killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", "from router.cli import main; main()", "serve", "--upstream", url or upstream.url),
        *("--port", "0", "--admin-port", "0", "--engine", "generic", "--engine-metrics", "off", *arguments),
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    log: list[str] = []
    listening = asyncio.get_running_loop().create_future()

    async def follow(lines: asyncio.StreamReader) -> None:
        async for line in lines:
            log.append(line.decode())
            if found := re.search(r"listens on http://\S+?:(\d+), admin on http://\S+?:(\d+)", log[-1]):
                listening.set_result((int(found[1]), int(found[2])))
        if not listening.done():
            listening.set_exception(RuntimeError("the router ended:\n" + "".join(log)))

    following = asyncio.create_task(follow(process.stderr))
    try:
        async with asyncio.timeout(15):
            port, admin_port = await listening
        running = Process(port, admin_port, upstream)
        running.process, running.log = process, log
        yield running
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await following
    assert "Traceback" not in running.text, running.text


async def assert_healthy(r: Running) -> None:
    """ "Healthy after": one read and one generation succeed at once, and every gauge is back at 0."""
    for data in (READ1, GEN):
        began = perf_counter()
        answer = await r.ask(data)
        assert answer.status == 200
        assert answer.whole
        assert perf_counter() - began < 1.0
    await r.settled()
