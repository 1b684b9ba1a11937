"""Spans by OpenTelemetry's `gen_ai` conventions: one for a request, one for its queue, one for the engine.

On only where `OTEL_EXPORTER_OTLP_ENDPOINT` is set, with the extra `otel`; otherwise nothing of OpenTelemetry is
imported.
A client's `traceparent` becomes the parent, and crosses to the engine untouched.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from router.settings import SettingsError

if TYPE_CHECKING:
    from router.account import Account
    from router.wire.exchange import Exchange

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_CHAT_ROUTES = frozenset({"/v1/chat/completions", "/api/chat", "/v1/messages"})


class Tracing(Protocol):
    """Takes a request that ended."""

    def record(self, exchange: Exchange, account: Account) -> None: ...

    def close(self) -> None:
        """Send what is left."""


def from_environment(environ: Mapping[str, str] | None = None) -> Tracing | None:
    """Tracing as the environment asks for it, or None.

    Raises:
        SettingsError: it asks, and the extra is not installed.
    """
    if not (os.environ if environ is None else environ).get(ENDPOINT):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise SettingsError(
            f"{ENDPOINT} is set, but OpenTelemetry is not: pip install 'logprob-router[otel]'"
        ) from None
    provider = TracerProvider(resource=Resource.create({"service.name": "logprob-router"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return _OpenTelemetry(provider)


class _OpenTelemetry:
    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("logprob-router")
        self._extract = TraceContextTextMapPropagator().extract
        self._inside = set_span_in_context
        # The account's times are perf_counter's; spans want the wall clock's.
        self._offset = time.time() - time.perf_counter()

    def record(self, exchange: Exchange, account: Account) -> None:
        if account.kind == "other":
            return
        carrier = {}
        for name in (b"traceparent", b"tracestate"):
            value = exchange.get(name)
            if value is not None:
                carrier[name.decode()] = value.decode("latin-1")
        operation = "chat" if account.route in _CHAT_ROUTES else "text_completion"
        model = account.metrics.model(account.model)
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.request.model": model,
            "http.route": account.route,
            "http.response.status_code": account.status,
            "logprob_router.kind": account.kind,
            "logprob_router.outcome": account.outcome,
        }
        if account.usage is not None and account.usage.prompt is not None:
            attributes["gen_ai.usage.input_tokens"] = account.usage.prompt
        span = self._span(f"{operation} {model}", account.began, self._extract(carrier), attributes)
        inside = self._inside(span)
        if account.waited:
            queued = account.received_at + account.waited
            self._span("queue", account.received_at, inside).end(self._wall(queued))
        if account.sent_at:
            self._span("engine", account.sent_at, inside).end(self._wall(account.ended_at))
        span.end(self._wall(account.ended_at))

    def _span(self, name: str, start: float, context: Any, attributes: dict[str, Any] | None = None) -> Any:
        return self._tracer.start_span(name, context=context, attributes=attributes, start_time=self._wall(start))

    def _wall(self, at: float) -> int:
        return int((at + self._offset) * 1e9)

    def close(self) -> None:
        self._provider.shutdown()
