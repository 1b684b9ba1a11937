"""Hooks are set all or none, once, and only on what they were written against."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from router.engines.freetoken import checks
from router.engines.freetoken.checks import Hook
from router.engines.targets import HookError, Target


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module with things to hook."""
    module = types.ModuleType("some_engine")

    class Cache:
        word = "no function"

        def match(self, req: Any, max_len: int = 0) -> tuple[Any, int]:
            return req, max_len

        @staticmethod
        def decode(data: bytes) -> bytes:
            return data

    module.Cache = Cache  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_engine", module)
    return module


MATCH = Target("some_engine:Cache.match", ("self", "req", "max_len"))


def doubling(original: Callable[..., Any]) -> Callable[..., Any]:
    def match(self: Any, req: Any, max_len: int = 0) -> Any:
        return original(self, req, max_len * 2)

    return match


def test_hooks_are_laid_around_each_other_and_set_once(engine: Any) -> None:
    hooks = [Hook("a", MATCH, doubling), Hook("b", MATCH, doubling)]
    checks.install(hooks)
    checks.install(hooks)
    assert engine.Cache().match("r", 3) == ("r", 12)
    assert checks.problems(hooks) == []


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        (
            Target("some_engine:Cache.match", ("self", "req")),
            "some_engine:Cache.match(self, req, max_len) was (self, req)",
        ),
        (Target("some_engine:Cache.gone", ("self",)), "some_engine:Cache.gone is missing"),
        (Target("some_engine:Gone.match", ("self",)), "some_engine:Gone.match is missing"),
        (Target("no_engine:match", ("self",)), "no_engine:match is missing"),
        (Target("some_engine:Cache.word", ()), "some_engine:Cache.word is no longer a function"),
    ],
)
def test_what_moved_is_named_and_nothing_is_set(engine: Any, target: Target, problem: str) -> None:
    with pytest.raises(HookError) as refusal:
        checks.install([Hook("a", MATCH, doubling), Hook("b", MATCH, doubling, uses=(target,))])
    assert problem in str(refusal.value)
    assert engine.Cache().match("r", 3) == ("r", 3)


def test_a_static_method_is_seen_through(engine: Any) -> None:
    assert Target("some_engine:Cache.decode", ("data",)).problem() is None


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    version = types.ModuleType("freetoken.version")
    monkeypatch.setitem(sys.modules, "freetoken", types.ModuleType("freetoken"))
    monkeypatch.setitem(sys.modules, "freetoken.version", version)
    version.__version__ = "0.2.1"  # type: ignore[attr-defined]
    assert checks.check_version() == "0.2.1"
    version.__version__ = "0.3.0"  # type: ignore[attr-defined]
    with pytest.raises(HookError, match=r"FreeToken 0\.3\.0 was not tested.*0\.2\.0, 0\.2\.1"):
        checks.check_version()


def test_no_freetoken_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "freetoken.version", None)
    with pytest.raises(HookError, match="not installed beside logprob-router"):
        checks.check_version()
