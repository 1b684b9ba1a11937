"""The opt-in door for a FreeToken that somebody else starts, such as `ft serve` under FreeToken's own daemon.

A line in the environment's site-packages (door.pth, installed with our wheel) imports this module when
`LOGPROB_ROUTER_ENGINE_FREETOKEN_DOOR=1` is set, and only then. It waits for `freetoken.server.launch` to be imported
and puts the hooks in; nothing is imported before FreeToken imports it itself.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

LAUNCH = "freetoken.server.launch"


class AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Calls `then(module)` once, right after the named module has been imported."""

    def __init__(self, name: str, then: Callable[[ModuleType], object]) -> None:
        self.name = name
        self.then = then
        self.inner: importlib.abc.Loader | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self.inner is not None:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                self.inner, spec.loader = spec.loader, self
                return spec
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        assert self.inner is not None
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self.inner is not None
        self.inner.exec_module(module)
        self.then(module)


def _hook(module: ModuleType) -> None:
    from router.engines.freetoken import launch

    launch.enter(module)


def open_door() -> None:
    """Set the hooks in this process as soon as FreeToken's launcher is imported."""
    if LAUNCH in sys.modules:
        _hook(sys.modules[LAUNCH])
    elif not any(isinstance(finder, AfterImport) and finder.name == LAUNCH for finder in sys.meta_path):
        sys.meta_path.insert(0, AfterImport(LAUNCH, _hook))
