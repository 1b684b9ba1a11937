"""Timeouts and limits, T01-T06: each clock is its own, and what it ends is ended wholly."""

from __future__ import annotations

import asyncio
from time import perf_counter

import pytest

from tests.support.answers import STREAM_HEAD, chunk, held, in_turn, silent, stream
from tests.support.client import GEN, READ1, READ1_BODY, STREAM, Client, get, post, request
from tests.support.routers import InProcess, assert_healthy, eventually, running
from tests.support.upstream import Connection, Request, Upstream


async def test_t01_slow_answers_are_not_errors(router: InProcess, upstream: Upstream) -> None:
    """T01: a read that takes 6 s and a stream with a gap of 6 s succeed: no client library's 5 s is at work."""
    upstream.on("/v1/chat/completions", stream(b"data: 1\n\n", 6.0, b"data: [DONE]\n\n"))
    upstream.handler = held(6.0)
    read, streamed = await asyncio.gather(
        router.ask(READ1, 15), router.ask(post("/v1/chat/completions", b'{"stream":true}'), 15)
    )
    assert (read.status, read.whole) == (200, True)
    assert streamed.body == b"data: 1\n\ndata: [DONE]\n\n"
    assert streamed.whole


async def test_t02_three_hundred_streams_exhaust_no_pool(router: InProcess, upstream: Upstream) -> None:
    """T02: with 300 streams held open, a read and a health check are answered at once."""
    gate = asyncio.Event()

    async def open_stream(connection: Connection, request: Request) -> None:
        await connection.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await gate.wait()
        await connection.send(b"0\r\n\r\n")

    upstream.on("/v1/chat/completions", open_stream)
    clients = [await Client.connect(router.port) for _ in range(300)]
    for client in clients:
        await client.send(post("/v1/chat/completions", b'{"stream":true}'))
    answers = await asyncio.gather(*(client.head() for client in clients))
    assert {answer.status for answer in answers} == {200}
    began = perf_counter()
    assert (await router.ask(READ1)).status == 200
    assert (await router.admin("/livez")).status == 200
    assert (await router.admin("/readyz")).status == 200
    assert perf_counter() - began < 1.0
    gate.set()
    for client, answer in zip(clients, answers, strict=True):
        assert (await client.rest(answer)).whole
        client.close()
    await router.settled()


async def test_t03_a_read_that_hangs_is_ended(upstream: Upstream) -> None:
    """T03: after --read-timeout the client gets 504, the engine sees the close, and the next read starts."""
    upstream.handler = in_turn(silent, held(0.0))
    async with running(upstream, read_timeout=0.6) as router:
        began = perf_counter()
        first = asyncio.create_task(router.ask(READ1))
        hung = await upstream.arrival(1)
        second = await router.ask(READ1)
        answer = await first
        assert answer.status == 504
        assert answer.json()["error"]["type"] == "router_error"
        assert 0.5 < answer.head_at - began < 1.5
        assert second.status == 200
        await asyncio.wait_for(hung.connection.closed.wait(), 1.0)
        assert upstream.requests[1].head_at - answer.head_at < 0.2
        samples = await router.settled()
        assert samples.sum("requests_total", outcome="timeout", code="5xx") == 1
        assert samples.sum("reads_total", outcome="timeout") == 1


async def test_t03_a_read_that_hangs_within_its_answer_is_cut(upstream: Upstream) -> None:
    """T03: the same clock ends an answer that has begun, and then its end is abnormal."""

    async def stuck(connection: Connection, request: Request) -> None:
        await connection.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await connection.forever()

    upstream.handler = in_turn(stuck, held(0.0))
    async with running(upstream, read_timeout=0.4) as router:
        answer = await router.ask(READ1)
        assert (answer.status, answer.body, answer.whole) == (200, b"data: 1\n\n", False)
        await assert_healthy(router)


async def test_t04_waiting_and_running_have_clocks_of_their_own(upstream: Upstream) -> None:
    """T04: a waiter gets 503 and Retry-After at the queue's limit and never runs; the running read is not touched."""
    upstream.handler = held(1.2)
    async with running(upstream, queue_timeout=0.4) as router:
        first = asyncio.create_task(router.ask(READ1))
        await upstream.arrival(1)
        began = perf_counter()
        waiter = await router.ask(READ1)
        assert waiter.status == 503
        assert 0.3 < perf_counter() - began < 1.1
        retry = waiter.get("retry-after")
        assert retry is not None
        assert retry.isdigit()
        assert waiter.json()["error"].keys() == {"message", "type", "param", "code"}
        assert (await first).status == 200
        await asyncio.sleep(0.2)
        assert len(upstream.requests) == 1
        assert (await router.settled()).sum("requests_total", outcome="rejected", kind="read") == 1


async def test_t05_drips_occupy_nothing(upstream: Upstream) -> None:
    """T05: 200 dripping heads and 20 stalled bodies are closed by their deadlines; a half read holds no place."""
    async with running(upstream, header_timeout=0.8, body_timeout=0.8) as router:
        heads = [await Client.connect(router.port) for _ in range(200)]
        bodies = [await Client.connect(router.port) for _ in range(20)]
        half = post("/v1/completions", READ1_BODY)[:-10]
        for client in bodies:
            await client.send(half)
        began = perf_counter()
        line = iter(b"GET / HTTP/1.1\r\nHost: test\r\nX-Slow: aaaaaaaaaaa")

        async def drip() -> None:
            for byte in line:
                for client in heads:
                    try:
                        await client.send(bytes([byte]))
                    except ConnectionError:
                        return
                await asyncio.sleep(0.08)

        dripping = asyncio.create_task(drip())
        await asyncio.sleep(0.3)
        asked = perf_counter()
        assert (await router.ask(READ1)).status == 200
        assert perf_counter() - asked < 1.0
        assert router.router.lane.queued == 0
        for client in [*heads, *bodies]:
            try:
                answer = await client.answer(3)
                assert answer.status == 408
            except ConnectionError:
                pass  # closed without an answer, or reset by bytes that crossed it
        assert perf_counter() - began < 3.0
        await dripping
        for client in [*heads, *bodies]:
            client.close()
        assert len(upstream.requests) == 1
        await router.settled()


async def test_t05_a_slow_body_that_moves_is_let_be(upstream: Upstream) -> None:
    """T05: the body's clock runs between two pieces: a slow sender that goes on is served."""
    async with running(upstream, body_timeout=0.5) as router, await router.connect() as client:
        data = post("/v1/completions", READ1_BODY)
        await client.send(data[:-4])
        for byte in data[-4:]:
            await asyncio.sleep(0.25)
            assert upstream.requests == []
            await client.send(bytes([byte]))
        assert (await client.answer()).status == 200


async def test_t05_idle_connections_are_closed(upstream: Upstream) -> None:
    """The kind of T05: a connection without a request lives for --client-keepalive, used before or not."""
    async with (
        running(upstream, client_keepalive=0.3) as router,
        await router.connect() as fresh,
        await router.connect() as used,
    ):
        assert (await used.ask(READ1)).status == 200
        assert await fresh.closed(2.0)
        assert await used.closed(2.0)


@pytest.mark.parametrize(
    "fields",
    [["X-Big: " + "a" * 200_000], [f"X-{n}: 1" for n in range(2000)], ["X" * 100_000 + ": 1"]],
    ids=["200 KB in one", "2000 fields", "a name of 100 KB"],
)
async def test_t06_oversize_heads_are_refused(router: InProcess, upstream: Upstream, fields: list[str]) -> None:
    """T06: 431 (or 400) and close, and nothing reaches the engine."""
    async with await router.connect() as client:
        await client.send(get("/v1/models", *fields))
        answer = await client.answer()
        assert answer.status in (400, 431)
        assert await client.closed()
    assert upstream.requests == []


async def test_t06_a_long_target_is_refused(router: InProcess, upstream: Upstream) -> None:
    """The kind of T06: the request line counts too."""
    assert (await router.ask(get("/" + "a" * 100_000))).status in (400, 414, 431)
    assert upstream.requests == []


async def test_t06_a_head_without_an_end_is_refused(router: InProcess, upstream: Upstream) -> None:
    """The kind of T06: the limit holds before the head is complete."""
    async with await router.connect() as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: test\r\nX: ")
        sent = 0
        try:
            for _ in range(100):
                await client.send(b"a" * 10_000)
                sent += 10_000
                await asyncio.sleep(0)
        except ConnectionError:
            pass
        answer = await client.answer()
        assert answer.status == 431


async def test_t06_a_long_authorization_passes(router: InProcess, upstream: Upstream) -> None:
    """T06: 16 KB of Authorization is in use, and passes; so does it on a read and with 100 fields beside it."""
    token = "Authorization: Bearer " + "t" * 16_000
    many = [f"X-{n}: {n}" for n in range(100)]
    for data in (get("/v1/models", token, *many), post("/v1/completions", READ1_BODY, token, *many)):
        assert (await router.ask(data)).status == 200
    for arrived in upstream.requests:
        assert len(arrived.get("authorization") or b"") == 16_007
        assert arrived.get("x-99") == b"99"


async def test_limits_do_not_hold_for_answers_of_the_engine(router: InProcess, upstream: Upstream) -> None:
    """The kind of T01: a generation has no clock at all; only its own client ends it."""
    upstream.handler = silent
    async with running(upstream, read_timeout=0.2, queue_timeout=0.2, body_timeout=0.2) as router:
        async with await router.connect() as client:
            await client.send(GEN)
            arrived = await upstream.arrival(1)
            await asyncio.sleep(0.6)
            assert arrived.connection.closed_at is None
        await eventually(lambda: arrived.connection.closed_at is not None)


async def test_streams_have_no_clock_either(upstream: Upstream) -> None:
    """The kind of T01: nor does the body's clock run while the client only listens."""
    upstream.handler = stream(b"data: 1\n\n", 0.6, b"data: [DONE]\n\n")
    async with running(upstream, read_timeout=0.2, body_timeout=0.2, header_timeout=0.2) as router:
        assert (await router.ask(STREAM)).whole
        assert (await router.ask(request("POST", "/v1/files", b"x"))).whole
