"""Spans reach a real OTLP receiver, under the client's trace; without the variable nothing of OpenTelemetry is loaded."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from router.observe.tracing import ENDPOINT, from_environment
from router.settings import SettingsError
from tests.support.answers import held, message
from tests.support.client import READ1, get, post
from tests.support.routers import running
from tests.support.upstream import Connection, Request, Upstream

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
async def receiver() -> AsyncIterator[Upstream]:
    async def take(connection: Connection, request: Request) -> None:
        await connection.send(message(200, b""))

    async with Upstream(take) as receiver:
        yield receiver


async def test_a_read_is_three_spans_under_its_client_s_trace(
    upstream: Upstream, receiver: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT, receiver.url)
    upstream.handler = held(0.05)
    body = b'{"model":"m","prompt":"hi","max_tokens":1,"logprobs":1}'
    async with running(upstream) as router:
        await asyncio.gather(router.ask(READ1), router.ask(post("/v1/completions", body, f"traceparent: {PARENT}")))
        await router.ask(get("/v1/models"))
    assert [request.get("traceparent") for request in upstream.reads] == [None, PARENT.encode()]
    spans: list[Any] = []
    for request in receiver.requests:
        import gzip

        raw = request.body if request.get("content-encoding") is None else gzip.decompress(request.body)
        for resource in ExportTraceServiceRequest.FromString(raw).resource_spans:
            spans += [span for scope in resource.scope_spans for span in scope.spans]
    ours = [span for span in spans if span.trace_id.hex() == TRACE]
    assert {span.name for span in ours} == {"text_completion other", "queue", "engine"}
    whole = next(span for span in ours if span.name == "text_completion other")
    assert whole.parent_span_id.hex() == "b7ad6b7169203331"
    assert {span.parent_span_id for span in ours if span is not whole} == {whole.span_id}
    engine = next(span for span in ours if span.name == "engine")
    assert 0.04e9 < engine.end_time_unix_nano - engine.start_time_unix_nano < 1e9
    attributes = {attribute.key: attribute.value for attribute in whole.attributes}
    assert attributes["gen_ai.operation.name"].string_value == "text_completion"
    assert attributes["logprob_router.outcome"].string_value == "ok"
    assert not [span for span in spans if span.name == "other"]


def test_off_by_default_and_free_when_off() -> None:
    assert from_environment({}) is None
    code = "import sys, router.app; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SettingsError, match="logprob-router\\[otel\\]"):
        from_environment({ENDPOINT: "http://127.0.0.1:4318"})
