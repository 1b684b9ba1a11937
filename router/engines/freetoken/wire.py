"""What our hooks say to each other across FreeToken's processes.

Each message is a subclass of FreeToken's own, so FreeToken's code handles it as it always did. FreeToken decodes a
message by looking its class name up in the globals of the message's module: `register` puts ours there.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import freetoken.message.backend
import freetoken.message.frontend
import freetoken.message.tokenizer
from freetoken.core import SamplingParams
from freetoken.message.frontend import UserReply
from freetoken.message.tokenizer import DetokenizeMsg, PromptAdmittedMsg

T = TypeVar("T")


@dataclass
class ReadSamplingParams(SamplingParams):  # type: ignore[misc]
    """Rides with a read from the API process to the scheduler and marks it.

    The mark is never inferred in the scheduler: it clamps a chat at the context's edge to one token.
    """

    read_top: int = 0
    """How many alternatives to report beside the sampled token."""
    read_isolate: bool = False
    """Alone in its passes, without the prefix cache."""
    read_mixed: bool = False
    """Set by the scheduler if it was not alone, or resumed from the cache, although it was to be isolated."""


@dataclass
class ReadDetokenizeMsg(DetokenizeMsg):  # type: ignore[misc]
    """Scheduler to detokenizer: the last token of a request, with a read's log-probabilities and the counters."""

    read: dict[str, Any] | None = None
    counters: dict[str, int] | None = None


@dataclass
class ReadPromptAdmittedMsg(PromptAdmittedMsg):  # type: ignore[misc]
    """Scheduler to detokenizer: a prompt's first pass is prepared."""

    counters: dict[str, int] | None = None


@dataclass
class ReadUserReply(UserReply):  # type: ignore[misc]
    """Detokenizer to API process."""

    read: dict[str, Any] | None = None
    counters: dict[str, int] | None = None


def register() -> None:
    """Make the messages decodable in this process."""
    backend, frontend, tokenizer = (
        freetoken.message.backend,
        freetoken.message.frontend,
        freetoken.message.tokenizer,
    )
    for module, classes in (
        (backend, (ReadSamplingParams,)),
        (tokenizer, (ReadSamplingParams, ReadDetokenizeMsg, ReadPromptAdmittedMsg)),
        (frontend, (ReadUserReply,)),
    ):
        for cls in classes:
            setattr(module, cls.__name__, cls)


def upgrade(message: Any, cls: type[T], **extra: Any) -> T:
    """The same message as one of our subclasses, with the extra fields set."""
    return cls(**{f.name: getattr(message, f.name) for f in fields(message)}, **extra)
