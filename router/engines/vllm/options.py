"""What the patch can be told. It travels to vLLM's processes in the environment, which they inherit."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from router.engines.headers import HEADER, header_name, truthy

PREFIX = "LOGPROB_ROUTER_ENGINE_VLLM_"
"""The command line's own variables (click's automatic names), so that flag and environment are one thing."""


@dataclass(frozen=True, slots=True)
class Options:
    isolate_all: bool = False
    """Every read is isolated, not only those that are marked."""
    read_step_ratio: int = 1
    """Steps that waiting chat work gets after each read's step; 0 is off."""
    bypass_header: str = HEADER
    """Request header that asks for isolation, and response header that acknowledges it."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Options:
        """Read the options of this process.

        Raises:
            ValueError: a value that cannot be used; the message names the variable.
        """
        environ = os.environ if environ is None else environ
        ratio = environ.get(PREFIX + "READ_STEP_RATIO", "1")
        if not ratio.isdigit():
            raise ValueError(f"{PREFIX}READ_STEP_RATIO must be 0 or more, not {ratio!r}")
        return cls(
            truthy(environ.get(PREFIX + "LOGPROB_READ_ISOLATE", "")),
            int(ratio),
            header_name(environ.get(PREFIX + "BYPASS_HEADER", HEADER)),
        )

    def to_environ(self, environ: MutableMapping[str, str]) -> None:
        """Leave the options where the processes that are started from here find them."""
        environ[PREFIX + "LOGPROB_READ_ISOLATE"] = "1" if self.isolate_all else "0"
        environ[PREFIX + "READ_STEP_RATIO"] = str(self.read_step_ratio)
        environ[PREFIX + "BYPASS_HEADER"] = self.bypass_header
