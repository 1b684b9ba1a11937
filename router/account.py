"""What is noted of one client request: its kind, its times and how it ended."""

from __future__ import annotations

from time import perf_counter

from router.observe.logs import access_logger
from router.observe.metrics import Kind, Metrics, Outcome
from router.observe.usage import Usage
from router.wire.exchange import Exchange
from router.wire.relay import Call


class Account:
    """The record of one client request; `close` writes it into the metrics, once.

    Attributes:
        waited: seconds spent waiting for a turn or at the gate, which are nobody's overhead.
        usage: the answer's token counts, where they were looked at.
        sent_at, first_byte_at: `time.perf_counter` of the first byte to the endpoint and the first byte back.
        forwarding: seconds from the endpoint's first bytes to their writing.
    """

    __slots__ = (
        "began",
        "classified",
        "ended_at",
        "first_byte_at",
        "forwarding",
        "kind",
        "metrics",
        "model",
        "outcome",
        "received_at",
        "route",
        "sent_at",
        "status",
        "usage",
        "waited",
    )

    def __init__(self, metrics: Metrics, began: float) -> None:
        self.metrics = metrics
        self.began = began
        self.received_at = began
        self.classified = False
        self.kind: Kind = "other"
        self.route = "other"
        self.model: str | None = None
        self.status = 0
        self.outcome: Outcome = "ok"
        self.usage: Usage | None = None
        self.ended_at = self.waited = self.sent_at = self.first_byte_at = self.forwarding = 0.0

    def classify(self, kind: Kind, route: str, model: str | None) -> None:
        self.kind = kind
        self.route = route
        self.model = model
        self.classified = True
        self.metrics.inflight[kind].inc()

    def timed(self, call: Call) -> None:
        """Take the times of the call that answered."""
        self.sent_at = call.sent_at
        self.first_byte_at = call.first_byte_at
        self.forwarding = call.forwarding

    def close(self) -> None:
        metrics, kind = self.metrics, self.kind
        self.ended_at = perf_counter()
        if self.classified:  # not if its body never came
            metrics.inflight[kind].dec()
        metrics.duration[kind].observe(self.ended_at - self.began)
        if self.first_byte_at:
            metrics.first_byte[kind].observe(self.first_byte_at - self.began)
            if self.sent_at:
                added = self.sent_at - self.received_at - self.waited + self.forwarding
                metrics.overhead[kind].observe(max(added, 0.0))
        metrics.count_request(kind, self.route, self.model, self.status, self.outcome)


def log_access(exchange: Exchange, account: Account) -> None:
    """One line for a request that ended: what it was and how it went, never what it said."""
    usage = account.usage
    fields = {
        "kind": account.kind,
        "method": exchange.method.decode("ascii"),
        "route": account.route,
        "status": account.status,
        "outcome": account.outcome,
        "queue_ms": round(account.waited * 1e3, 3),
        "engine_ms": round((account.ended_at - account.sent_at) * 1e3, 3) if account.sent_at else None,
        "total_ms": round((account.ended_at - account.began) * 1e3, 3),
        "model": account.metrics.model(account.model) if account.model is not None else None,
        "prompt_tokens": usage.prompt if usage else None,
        "cached_tokens": usage.cached if usage else None,
        "completion_tokens": usage.completion if usage else None,
    }
    access_logger.info(
        "request", extra={"fields": {name: value for name, value in fields.items() if value is not None}}
    )
