"""All hooks of the scheduler process (one per tensor-parallel rank; each rank decides alike)."""

from __future__ import annotations

from router.engines.freetoken import checks, evictions, isolation, logprobs, wire
from router.engines.freetoken.checks import Hook
from router.engines.freetoken.counters import Counters
from router.engines.freetoken.options import Options


def hooks(options: Options, counters: Counters) -> list[Hook]:
    keep_apart = isolation.hooks(options.decode_yield, counters)
    count = evictions.hooks(counters)
    # decode-yield goes around everything: a call that it answers itself is no pass and serves nobody
    return [*keep_apart[:-1], *count, keep_apart[-1], *logprobs.hooks(counters)]


def install(options: Options) -> None:
    """Raises: HookError."""
    wire.register()
    checks.install(hooks(options, Counters()))
