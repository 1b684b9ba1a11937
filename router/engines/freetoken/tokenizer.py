"""All hooks of the tokenizer and detokenizer processes: they pass on what the scheduler adds for the API process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from freetoken.message.frontend import UserReply

from router.engines.freetoken import checks, wire
from router.engines.freetoken.checks import Hook
from router.engines.targets import Target

DETOKENIZE = Target("freetoken.tokenizer.detokenize:DetokenizeManager.detokenize", ("self", "msgs"))
PUT = Target("freetoken.tokenizer.server:_put_user_replies", ("send_frontend", "replies"))
ADMITTED = Target("freetoken.tokenizer.server:_prompt_admitted_reply", ("msg",))


class Passing:
    """What goes onto the reply of a request that just finished; empty again at the end of every round."""

    def __init__(self) -> None:
        self.extras: dict[int, tuple[dict[str, Any] | None, dict[str, int] | None]] = {}

    def detokenize(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def detokenize(manager: Any, msgs: list[Any]) -> Any:
            texts = original(manager, msgs)
            for message in msgs:
                if isinstance(message, wire.ReadDetokenizeMsg):
                    read = message.read
                    if read is not None:
                        read = {**read, "tokens": [manager.tokenizer.decode([token]) for token in read["ids"]]}
                    self.extras[message.uid] = read, message.counters
            return texts

        return detokenize

    def put(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _put_user_replies(send_frontend: Any, replies: list[Any]) -> None:
            original(send_frontend, [self._dress(reply) for reply in replies])

        return _put_user_replies

    def _dress(self, reply: Any) -> Any:
        if type(reply) is not UserReply or not reply.finished or reply.uid not in self.extras:
            return reply
        read, counters = self.extras.pop(reply.uid)
        return wire.upgrade(reply, wire.ReadUserReply, read=read, counters=counters)


def _admitted(original: Callable[..., Any]) -> Callable[..., Any]:
    def _prompt_admitted_reply(msg: Any) -> Any:
        reply = original(msg)
        if isinstance(msg, wire.ReadPromptAdmittedMsg):
            return wire.upgrade(reply, wire.ReadUserReply, counters=msg.counters)
        return reply

    return _prompt_admitted_reply


def hooks() -> list[Hook]:
    passing = Passing()
    return [
        Hook("name-tokens", DETOKENIZE, passing.detokenize),
        Hook("pass-scores", PUT, passing.put),
        Hook("pass-counters", ADMITTED, _admitted),
    ]


def install() -> None:
    """Raises: HookError."""
    wire.register()
    checks.install(hooks())
