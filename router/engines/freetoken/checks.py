"""Hooks, and the checks before any of them is set: FreeToken's version, and the signature of everything we touch.

A read that is not isolated and says so nowhere is worse than no server.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from router.engines.targets import HookError, Target

VERSIONS = ("0.2.0", "0.2.1")
"""FreeToken versions that the hooks were tested with."""

_MARK = "_logprob_router_hooks"


@dataclass(frozen=True, slots=True)
class Hook:
    """Replaces a target by `make(original)`. `uses` are targets that the replacement calls itself."""

    name: str
    target: Target
    make: Callable[[Callable[..., Any]], Callable[..., Any]]
    uses: tuple[Target, ...] = field(default=())


def check_version() -> str:
    """The installed FreeToken's version.

    Raises:
        HookError: none is installed, or not one that the hooks were tested with.
    """
    try:
        version: str = importlib.import_module("freetoken.version").__version__
    except ImportError as error:
        raise HookError(
            f"FreeToken is not installed beside logprob-router ({error}). Install logprob-router in FreeToken's own "
            "environment: pip install --no-deps logprob-router, then click, if it is missing."
        ) from None
    if version not in VERSIONS:
        raise HookError(f"FreeToken {version} was not tested with these hooks; install one of {', '.join(VERSIONS)}.")
    return version


def problems(hooks: Sequence[Hook]) -> list[str]:
    """What the hooks miss in the installed FreeToken, one line each."""
    targets = dict.fromkeys(target for hook in hooks for target in (hook.target, *hook.uses))
    return [text for target in targets if (text := target.problem())]


def install(hooks: Sequence[Hook]) -> None:
    """Set the hooks, all or none; a hook that is set already stays.

    Raises:
        HookError: the installed FreeToken does not fit; nothing was changed.
    """
    if moved := problems(hooks):
        raise HookError("FreeToken does not fit the read hooks: " + "; ".join(moved))
    for hook in hooks:
        holder, name = hook.target.owner()
        original = getattr(holder, name)
        done: tuple[str, ...] = getattr(original, _MARK, ())
        if hook.name in done:
            continue
        replacement: Any = functools.wraps(original)(hook.make(original))
        setattr(replacement, _MARK, (*done, hook.name))
        setattr(holder, name, replacement)
