"""What the scheduler counts, and how the API process shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

Cause = Literal["read", "chat"]

SERIES: tuple[tuple[str, bool, str], ...] = (
    ("evicted_kv_tokens", True, "Cached KV tokens pushed out, by the kind of request that needed the room."),
    ("evicted_gdn_snapshots", True, "Cached linear-attention (GDN) states pushed out (hybrid models)."),
    ("evicted_swa_tokens", True, "Cached sliding-window tokens pushed out (sliding-window models)."),
    ("read_passes", False, "Prefill passes that held one isolated read, or a chunk of one."),
    ("read_tokens", False, "Prompt tokens computed in read passes."),
    ("chat_passes", False, "All other prefill passes."),
    ("decode_yields", False, "Times that a read waited for a decode step of the running chats."),
    ("chat_prompt_tokens", False, "Prompt tokens of requests that may use the prefix cache."),
    ("chat_cached_tokens", False, "Prompt tokens of those that came from the prefix cache."),
)
"""Name without prefix and `_total`; whether it has the label `cause`; help text."""


class Counters:
    """Totals since the scheduler started. `snapshot` is what travels: a flat dict of name or `name.cause` to int."""

    __slots__ = ("_totals", "cause")

    def __init__(self) -> None:
        self.cause: Cause = "chat"
        self._totals: dict[str, int] = {}
        for name, by_cause, _ in SERIES:
            for key in (f"{name}.read", f"{name}.chat") if by_cause else (name,):
                self._totals[key] = 0

    def add(self, name: str, amount: int = 1) -> None:
        self._totals[name] += amount

    def blame(self, name: str, amount: int) -> None:
        """Count against whoever is being served."""
        self._totals[f"{name}.{self.cause}"] += amount

    def snapshot(self) -> dict[str, int]:
        return dict(self._totals)

    @contextmanager
    def serving(self, cause: Cause) -> Iterator[None]:
        """What is pushed out inside the block is pushed out for `cause`."""
        before, self.cause = self.cause, cause
        try:
            yield
        finally:
            self.cause = before


def exposition(totals: Mapping[str, int], gauges: Mapping[str, float], version: str, isolates: str) -> str:
    """Prometheus text.

    Args:
        totals: a snapshot; empty before the first request.
        gauges: name without prefix to value.
        isolates: "header" or "reads": which reads are isolated.
    """
    prefix = "logprob_router_engine_"
    lines = [
        f"# HELP {prefix}info The engine behind these series, and which reads it isolates.",
        f"# TYPE {prefix}info gauge",
        f'{prefix}info{{engine="freetoken",version="{version}",isolates="{isolates}"}} 1',
    ]
    for name, by_cause, text in SERIES:
        series = f"{prefix}{name}_total"
        lines += [f"# HELP {series} {text}", f"# TYPE {series} counter"]
        if by_cause:
            lines += [f'{series}{{cause="{cause}"}} {totals.get(f"{name}.{cause}", 0)}' for cause in ("read", "chat")]
        else:
            lines.append(f"{series} {totals.get(name, 0)}")
    for name, value in gauges.items():
        lines += [f"# TYPE {prefix}{name} gauge", f"{prefix}{name} {value}"]
    return "\n".join(lines) + "\n"
