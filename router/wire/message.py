"""The few value types that the wire's parts hand to one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

Field = tuple[bytes, bytes, bytes]
"""A header field: name in lower case, name as it arrived, value as it arrived."""

NO_BODY_STATUS: Final = frozenset({204, 304})


class Limits(NamedTuple):
    """What the data port accepts of one client. Bytes and seconds."""

    header_bytes: int = 64 * 1024
    header_count: int = 256
    header_timeout: float = 10.0
    body_timeout: float = 60.0
    keepalive: float = 75.0


@dataclass(slots=True)
class ResponseHead:
    """The head of an endpoint's answer.

    `length` is the body's size in bytes where the head states it; `chunked` tells chunked framing; with neither,
    the body ends where the connection does. `bodyless` answers (to HEAD, 204, 304) have no body whatever they state.
    """

    status: int
    reason: bytes
    fields: list[Field]
    length: int | None
    chunked: bool
    bodyless: bool

    def get(self, name: bytes) -> bytes | None:
        """The first value of a field by its lower-case name."""
        for lower, _, value in self.fields:
            if lower == name:
                return value
        return None


class WireError(Exception):
    """Something went wrong on the endpoint's side of one exchange."""


class ConnectFailed(WireError):
    """No connection: nothing was sent."""


class UpstreamClosed(WireError):
    """The endpoint closed or reset; `clean_slate` if that was a reused connection without one byte of an answer."""

    def __init__(self, message: str, *, clean_slate: bool = False) -> None:
        super().__init__(message)
        self.clean_slate = clean_slate


class UpstreamGarbled(WireError):
    """The endpoint's bytes are not HTTP."""
