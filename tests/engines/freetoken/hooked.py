"""Our hooks on the FreeToken classes of this process, for all kinds of its processes at once; any one can be left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from router.engines.freetoken import api, checks, scheduler, tokenizer, wire
from router.engines.freetoken.counters import Counters
from router.engines.freetoken.options import Options

COUNTERS = Counters()
READS = api.Reads(Options())
HOOKS = [*scheduler.hooks(Options(), COUNTERS), *tokenizer.hooks(), *api.hooks(READS)]
_ORIGINALS = {hook.target: getattr(*hook.target.owner()) for hook in HOOKS}


def _set(without: str | None) -> None:
    for target, original in _ORIGINALS.items():
        holder, name = target.owner()
        setattr(holder, name, original)
    checks.install([hook for hook in HOOKS if hook.name != without])


@contextmanager
def without(name: str) -> Iterator[None]:
    """All hooks but one."""
    assert name in {hook.name for hook in HOOKS}, f"no hook {name}"
    _set(name)
    try:
        yield
    finally:
        _set(None)


wire.register()
_set(None)
