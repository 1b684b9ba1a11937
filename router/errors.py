"""The errors that the router itself answers with, all in one place."""

from __future__ import annotations

from router.observe.metrics import Outcome
from router.wire.message import WireError


class Answer(Exception):
    """An error answer of the router's own, on its way to the client.

    Attributes:
        status, code, message: of the JSON error.
        retry_after: seconds for the Retry-After field, or None.
        outcome: how the request is counted.
    """

    def __init__(
        self, status: int, code: str, message: str, *, outcome: Outcome, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.outcome: Outcome = outcome
        self.retry_after = retry_after

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        return [] if self.retry_after is None else [(b"retry-after", b"%d" % self.retry_after)]


class Unsent(Answer):
    """The engine was not there and got nothing, so that another endpoint may take the read."""


def engine_down(error: WireError) -> Unsent:
    return Unsent(
        503, "engine_unavailable", f"The engine is not there: {error}.", outcome="upstream_error", retry_after=1
    )


def engine_failed(error: WireError) -> Answer:
    return Answer(502, "bad_gateway", f"The engine failed: {error}.", outcome="upstream_error")


def read_timeout(seconds: float) -> Answer:
    return Answer(504, "read_timeout", f"The engine did not answer this read within {seconds:g} s.", outcome="timeout")


def not_acknowledged(url: str) -> Answer:
    message = f"{url} did not acknowledge the cache bypass, and --require-ack is set: this read was not isolated."
    return Answer(502, "not_acknowledged", message, outcome="upstream_error")


def lane_full(limit: int, retry_after: int) -> Answer:
    message = f"{limit} reads are waiting already; try again in {retry_after} s."
    return Answer(503, "lane_full", message, outcome="rejected", retry_after=retry_after)


def turn_expired(seconds: float, retry_after: int) -> Answer:
    message = f"No turn within {seconds:g} s; the read was not sent."
    return Answer(503, "queue_timeout", message, outcome="rejected", retry_after=retry_after)


def stopping() -> Answer:
    message = "The router is stopping; the read was not sent."
    return Answer(503, "shutting_down", message, outcome="rejected", retry_after=1)


def no_endpoint() -> Answer:
    message = "No endpoint for reads is up."
    return Answer(503, "engine_unavailable", message, outcome="upstream_error", retry_after=1)


def list_too_long(count: int, limit: int) -> Answer:
    message = f"{count} prompts in one request; at most {limit} are taken. Send fewer, or raise --max-list-prompts."
    return Answer(413, "list_too_long", message, outcome="rejected")
