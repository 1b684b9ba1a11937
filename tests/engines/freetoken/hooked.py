"""The scheduler hooks in this process, as a scheduler process would have them, and a way to leave one out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from router.engines.freetoken import checks, scheduler, wire
from router.engines.freetoken.counters import Counters
from router.engines.freetoken.options import Options

COUNTERS = Counters()
HOOKS = scheduler.hooks(Options(), COUNTERS)
_ORIGINALS = {hook.target: getattr(*hook.target.owner()) for hook in HOOKS}


def _set(without: str | None) -> None:
    for target, original in _ORIGINALS.items():
        setattr(*target.owner(), original)
    checks.install([hook for hook in HOOKS if hook.name != without])


def install() -> None:
    wire.register()
    _set(None)


@contextmanager
def without(name: str) -> Iterator[None]:
    """All hooks but one."""
    assert name in {hook.name for hook in HOOKS}, f"no hook {name}"
    _set(name)
    try:
        yield
    finally:
        _set(None)


install()
