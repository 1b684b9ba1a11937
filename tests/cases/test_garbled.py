"""Engines that do not speak HTTP well: the client gets 502 or a right answer, and nobody gets another's."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.answers import engine, play
from tests.support.client import GEN, READ1, completions
from tests.support.routers import InProcess, assert_healthy
from tests.support.upstream import Upstream

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"

GARBLED = {
    "length and chunks": OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "chunks and length": OK + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n" + CHUNKS,
    "two lengths": OK + b"Content-Length: 3\r\nContent-Length: 5\r\n\r\nhello",
    "the same length twice": OK + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "a signed length": OK + b"Content-Length: +5\r\n\r\nhello",
    "a list of lengths": OK + b"Content-Length: 5, 5\r\n\r\nhello",
    "a length of 23 digits": OK + b"Content-Length: 99999999999999999999999\r\n\r\nhello",
    "another coding": OK + b"Transfer-Encoding: gzip\r\n\r\nhello",
    "two codings": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS,
    "chunked twice": OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "chunked, not last": OK + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKS,
    "nearly chunked": OK + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS,
    "bare line feeds": b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
    "a folded line": OK + b"X: a\r\n b\r\nContent-Length: 5\r\n\r\nhello",
    "a folded coding": OK + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKS,
    "NUL in a value": OK + b"X: a\x00b\r\nContent-Length: 5\r\n\r\nhello",
    "CR in a value": OK + b"X: a\rb: c\r\nContent-Length: 5\r\n\r\nhello",
    "NUL in the reason": b"HTTP/1.1 200 O\x00K\r\nContent-Length: 5\r\n\r\nhello",
    "a space before the colon": OK + b"Content-Length : 5\r\n\r\nhello",
    "a space in a name": OK + b"X Y: 1\r\nContent-Length: 5\r\n\r\nhello",
    "status 99": b"HTTP/1.1 099 OK\r\nContent-Length: 5\r\n\r\nhello",
    "status of four digits": b"HTTP/1.1 2000 OK\r\nContent-Length: 5\r\n\r\nhello",
    "HTTP/2 in words": b"HTTP/2.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "no HTTP": b"<html>hello</html>",
    "TLS": b"\x15\x03\x01\x00\x02\x02\x46",
    "a bad chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
    "a chunk that is longer than it says": OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloworld\r\n0\r\n\r\n",
    "a head of 1 MB": OK + b"X: " + b"a" * 1_000_000 + b"\r\nContent-Length: 5\r\n\r\nhello",
    "100 without end": b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
}


@pytest.mark.parametrize("raw", GARBLED.values(), ids=GARBLED.keys())
async def test_a_garbled_answer_is_a_bad_gateway(router: InProcess, upstream: Upstream, raw: bytes) -> None:
    """The kind of R05 and F07, on the engine's side: 502 for a generation, a read and a list; then all is well."""
    upstream.handler = play(raw, "forever")
    for data in (GEN, READ1, completions(prompt=["a", "b"])):
        answer = await router.ask(data)
        assert answer.status == 502
        assert answer.json()["error"]["type"] == "router_error"
    assert len(upstream.requests) == 3, "and nothing is sent again"
    upstream.handler = engine
    await assert_healthy(router)


@pytest.mark.parametrize("tail", [b"zz\r\n", b"5\r\nhelloworld\r\n", b"-1\r\n", b"5\nhello\n"])
async def test_a_chunk_that_goes_bad_later_is_an_abnormal_end(
    router: InProcess, upstream: Upstream, tail: bytes
) -> None:
    """The kind of S03: what was right is passed on, and then the answer breaks off."""
    upstream.handler = play(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n", 0.05, tail, "forever")
    for data in (GEN, READ1):
        answer = await router.ask(data)
        assert answer.body.startswith(b"first")
        assert not answer.whole
    upstream.handler = engine
    await assert_healthy(router)
    assert (await router.settled()).sum("requests_total", outcome="upstream_aborted") == 2


async def test_an_answer_that_comes_in_single_bytes(router: InProcess, upstream: Upstream) -> None:
    """The kind of S01: segments have no meaning."""
    raw = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS
    upstream.handler = play(*(piece for byte in raw for piece in (bytes([byte]), 0.001)))
    answer = await asyncio.wait_for(router.ask(GEN), 10)
    assert (answer.status, answer.get("x-a"), answer.body, answer.whole) == (200, b"1", b"hello", True)
