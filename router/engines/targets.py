"""What our patches hook in an engine, and whether it is still there.

Engines promise nothing about their insides, so each patch names the callables that it was written against, with their
parameters. If one of them moved, the patch refuses to start and says which.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any


class HookError(RuntimeError):
    """The installed engine is not one that the patch fits; the message lists every difference."""


@dataclass(frozen=True, slots=True)
class Target:
    """A callable of the engine: `module:name` or `module:Class.name`, and its parameters' names in order.

    Attributes:
        leading: only so many parameters matter, the first ones: the patch hands the others on as they come.
    """

    path: str
    params: tuple[str, ...]
    leading: bool = False

    def owner(self) -> tuple[Any, str]:
        """The object that holds the callable, and the attribute's name.

        Raises:
            ImportError, AttributeError: a module or class on the way is missing.
        """
        module, _, dotted = self.path.partition(":")
        *outer, name = dotted.split(".")
        holder: Any = importlib.import_module(module)
        for part in outer:
            holder = getattr(holder, part)
        return holder, name

    def problem(self) -> str | None:
        """What is wrong with it in the installed engine, or None."""
        try:
            holder, name = self.owner()
            found = inspect.getattr_static(holder, name)
        except (ImportError, AttributeError):
            return f"{self.path} is missing"
        if isinstance(found, staticmethod):
            found = found.__func__
        if not callable(found):
            return f"{self.path} is no longer a function"
        return self.differs(tuple(inspect.signature(found).parameters))

    def differs(self, params: tuple[str, ...]) -> str | None:
        """The sentence about parameters that are not those we know, or None."""
        if (params[: len(self.params)] if self.leading else params) == self.params:
            return None
        return f"{self.path}({', '.join(params)}) was ({', '.join(self.params)})"
