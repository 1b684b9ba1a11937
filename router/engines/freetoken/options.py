"""What the hooks can be told. It travels to FreeToken's processes in the environment, which they inherit."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from router.engines.headers import HEADER, header_name, truthy

PREFIX = "LOGPROB_ROUTER_ENGINE_FREETOKEN_"
"""The command line's own variables (click's automatic names), so that flag and environment are one thing."""

DOOR = PREFIX + "DOOR"
"""Set to 1, it lets the hooks into a FreeToken that somebody else starts, such as FreeToken's daemon."""


@dataclass(frozen=True, slots=True)
class Options:
    isolate_all: bool = False
    """Every read is isolated, not only those that carry the bypass header."""
    decode_yield: int = 1
    """Decode steps that running chats get after each read pass; 0 is off."""
    bypass_header: str = HEADER
    """Request header that asks for isolation, and response header that acknowledges it."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Options:
        """Read the options of this process.

        Raises:
            ValueError: a value that cannot be used; the message names the variable.
        """
        environ = os.environ if environ is None else environ
        steps = environ.get(PREFIX + "READ_DECODE_YIELD", "1")
        if not steps.isdigit():
            raise ValueError(f"{PREFIX}READ_DECODE_YIELD must be 0 or more, not {steps!r}")
        return cls(
            isolate_all=truthy(environ.get(PREFIX + "LOGPROB_READ_ISOLATE", "")),
            decode_yield=int(steps),
            bypass_header=header_name(environ.get(PREFIX + "BYPASS_HEADER", HEADER)),
        )

    def to_environ(self, environ: MutableMapping[str, str]) -> None:
        """Leave the options where the processes that are started from here find them."""
        environ[PREFIX + "LOGPROB_READ_ISOLATE"] = "1" if self.isolate_all else "0"
        environ[PREFIX + "READ_DECODE_YIELD"] = str(self.decode_yield)
        environ[PREFIX + "BYPASS_HEADER"] = self.bypass_header

    def isolates(self, header: str | None) -> bool:
        """Whether a read is to be isolated, given the bypass header's value (None: absent). The header decides."""
        return self.isolate_all if header is None else truthy(header)
