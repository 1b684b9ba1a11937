"""The bypass header as our engine patches read it."""

from __future__ import annotations

HEADER = "X-Cache-Bypass"
"""Request header that asks for isolation, and response header that acknowledges it."""

APPLIED = "applied"
"""Its value on the answer to a read that was isolated."""

_OFF = frozenset({"", "0", "false", "no", "off"})


def truthy(value: str) -> bool:
    return value.strip().lower() not in _OFF


def header_name(text: str) -> str:
    """The name in `Name` or `Name: value`, as the router's --bypass-header spells it."""
    name = text.partition(":")[0].strip()
    if not name:
        raise ValueError(f"{text!r} is not a header name")
    return name
