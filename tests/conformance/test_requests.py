"""The corpus of requests, straight and through the router: only the documented fields differ."""

from __future__ import annotations

import pytest

from tests.conformance.corpus import REQUESTS
from tests.conformance.documented import at_the_engine
from tests.support.client import ask
from tests.support.routers import InProcess
from tests.support.upstream import Request, Upstream


def is_inspected(request: Request) -> bool:
    """By the contract: a JSON POST to one of the engines' generation endpoints is read whole."""
    return (
        request.method == b"POST"
        and request.path in ("/v1/completions", "/v1/chat/completions")
        and request.get("content-type") == b"application/json"
    )


@pytest.mark.parametrize("data", REQUESTS.values(), ids=REQUESTS.keys())
async def test_a_request_crosses_as_documented(router: InProcess, upstream: Upstream, data: bytes) -> None:
    """Same method, target and body; the same fields with the same values in the same order, but for the documented."""
    straight_answer = await ask(upstream.port, data)
    answer = await router.ask(data)
    straight, through = upstream.requests
    assert answer.status == straight_answer.status
    assert (through.method, through.target, through.version) == (straight.method, straight.target, b"1")
    assert through.body == straight.body
    size = len(straight.body) if is_inspected(straight) else None
    assert through.fields == at_the_engine(straight.fields, upstream.authority, inspected=size)
