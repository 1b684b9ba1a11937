"""The corpus of answers, straight and through the router: only the documented fields differ."""

from __future__ import annotations

import pytest

from tests.conformance.corpus import ANSWERS
from tests.conformance.documented import at_the_client
from tests.support.answers import play
from tests.support.client import GEN, READ1, Client, get, request
from tests.support.routers import InProcess
from tests.support.upstream import Upstream

ENDS_WITH_THE_CONNECTION = {"up to the close", "http 1.0"}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("data", [get("/v1/models"), GEN, READ1], ids=["get", "generation", "read"])
async def test_an_answer_crosses_as_documented(router: InProcess, upstream: Upstream, name: str, data: bytes) -> None:
    """Same status, reason and body; the same fields in the same order, but for the documented ones."""
    upstream.handler = play(ANSWERS[name], "close") if name in ENDS_WITH_THE_CONNECTION else play(ANSWERS[name])
    async with await Client.connect(upstream.port, lenient=True) as client:
        straight = await client.ask(data)
    async with await router.connect() as client:
        through = await client.ask(data)
        assert through.whole
        assert (through.status, through.reason) == (straight.status, straight.reason)
        assert through.body == straight.body
        expected = at_the_client(straight.status, straight.fields)
        labels = [(n, v) for n, v in through.fields if n in (b"X-Read-Isolation", b"Server-Timing")]
        assert [name for name, _ in labels] == ([b"X-Read-Isolation", b"Server-Timing"] if data is READ1 else [])
        assert [field for field in through.fields if field not in labels] == expected
        assert (await client.ask(data)).whole, "the client's connection goes on"


async def test_an_answer_to_head_crosses_as_documented(router: InProcess, upstream: Upstream) -> None:
    """An answer to HEAD has the fields that it came with, and no framing of ours."""
    for head in (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\n"):
        upstream.handler = play(head)
        answer = await router.ask(request("HEAD", "/v1/models"))
        assert answer.raw_head == head
        assert answer.body == b""
