"""JSON values as the engines coerce them: pydantic's lax mode, in the few forms that decide what is a read."""

from __future__ import annotations

from typing import Any

import msgspec

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})


def is_set(value: Any) -> bool:
    """Given and not null. 0 and false are set."""
    return value is not None and value is not msgspec.UNSET


def is_true(value: Any) -> bool:
    """True once it is a bool."""
    if isinstance(value, str):
        return value.strip().lower() in _TRUE
    return isinstance(value, bool | int | float) and value == 1


def as_int(value: Any) -> int | None:
    """The integer that the engine makes of it, or None where it would refuse."""
    if isinstance(value, str):
        try:
            value = float(value.strip())
        except ValueError:
            return None
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def positive(value: Any) -> bool:
    """A number above 0, or anything that the engine will refuse as one."""
    number = as_int(value)
    return is_set(value) and value is not False and (number is None or number > 0)
