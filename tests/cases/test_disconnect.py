"""Disconnects, C01-C07: whoever leaves takes nothing with him."""

from __future__ import annotations

import asyncio
import logging
import random
from time import perf_counter

import pytest

from tests.support.answers import STREAM_HEAD, chunk, gated, held, in_turn, silent
from tests.support.client import GEN, READ1, STREAM, Client, completions, request
from tests.support.routers import InProcess, assert_healthy, eventually, running
from tests.support.upstream import Connection, Request, Upstream


async def test_c01_a_waiter_that_leaves_never_runs(router: InProcess, upstream: Upstream) -> None:
    """C01: a queued read whose client closes gives its place back at once and is never sent."""
    gate = asyncio.Event()
    upstream.handler = in_turn(gated(gate), held(0.0))
    async with await router.connect() as a, await router.connect() as b, await router.connect() as d:
        await a.send(READ1)
        await upstream.arrival(1)
        await b.send(completions(prompt="B"))
        await eventually(lambda: router.router.lane.queued == 1)
        b.close()
        await eventually(lambda: router.router.lane.queued == 0, 1.0)
        await d.send(completions(prompt="D"))
        await eventually(lambda: router.router.lane.queued == 1)
        gate.set()
        assert (await a.answer()).status == 200
        assert (await d.answer()).status == 200
    assert [r.json()["prompt"] for r in upstream.requests] == ["hi", "D"]
    answered = upstream.requests[0].answered_at
    assert answered is not None
    assert upstream.requests[1].head_at - answered < 0.2
    samples = await router.settled()
    assert samples.sum("requests_total", kind="read", outcome="client_gone") == 1


async def test_c02_leaving_during_prefill_closes_the_engines_connection(
    router: InProcess, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    """C02: an RST while the engine is silent is seen there within 1 s, and the next read starts at once."""
    upstream.handler = in_turn(silent, held(0.0))
    async with await router.connect() as a, await router.connect() as b:
        await a.send(READ1)
        request = await upstream.arrival(1)
        await b.send(READ1)
        await eventually(lambda: router.router.lane.queued == 1)
        left = perf_counter()
        a.reset()
        assert (await b.answer()).status == 200
        assert perf_counter() - left < 1.0
        await asyncio.wait_for(request.connection.closed.wait(), 1.0)
    samples = await router.settled()
    assert samples.sum("requests_total", kind="read", outcome="client_gone") == 1
    assert samples.sum("reads_total", outcome="client_gone") == 1
    unacknowledged = [r for r in caplog.records if "does not acknowledge" in r.getMessage()]
    assert [r for r in caplog.records if r.levelno > logging.INFO] == unacknowledged


async def test_c03_leaving_mid_stream_discards_the_connection(router: InProcess, upstream: Upstream) -> None:
    """C03: an endless stream ends at the engine within 1 s, and its connection is not used again."""

    async def endless(connection: Connection, request: Request) -> None:
        await connection.send(STREAM_HEAD)
        while True:
            await connection.send(chunk(b"data: {}\n\n"))
            await asyncio.sleep(0.01)

    upstream.handler = in_turn(endless, held(0.0))
    async with await router.connect() as client:
        await client.send(STREAM)
        answer = await client.head()
        while len(answer.body) < 30:
            await client.more(answer)
    await asyncio.wait_for(upstream.requests[0].connection.closed.wait(), 1.0)
    assert (await router.ask(GEN)).status == 200
    assert upstream.requests[1].connection is not upstream.requests[0].connection
    assert (await router.settled()).sum("requests_total", kind="chat", outcome="client_gone") == 1


async def test_c04_two_hundred_who_leave_leak_no_slot(router: InProcess, upstream: Upstream) -> None:
    """C04: 200 reads closed after 0-50 ms; never two at the engine, and everything works afterwards."""
    upstream.handler = held(0.01)
    chance = random.Random(4)

    async def leave() -> None:
        async with await router.connect() as client:
            await client.send(READ1)
            await asyncio.sleep(chance.random() * 0.05)
            if chance.random() < 0.5:
                client.reset()

    for _ in range(10):
        await asyncio.gather(*(leave() for _ in range(20)))
    await assert_healthy(router)
    assert upstream.max_reads_overlap == 1


async def test_c05_cancelled_calls_leave_nothing_in_the_pool() -> None:
    """C05: three rounds of 50 abandoned generations, then 120 that finish; sockets to the engine go away."""
    async with Upstream(silent) as upstream, running(upstream, upstream_keepalive=0.3) as router:
        for round in range(1, 4):
            clients = [await Client.connect(router.port) for _ in range(50)]
            for client in clients:
                await client.send(GEN)
            await upstream.arrival(50 * round)
            for client in clients:
                client.close()
        upstream.handler = held(0.05)
        answers = await asyncio.gather(*(router.ask(GEN) for _ in range(120)))
        assert {answer.status for answer in answers} == {200}
        await eventually(lambda: upstream.open_connections == 0)
        await assert_healthy(router)


async def test_c06_an_abandoned_list_stops_where_it_is(router: InProcess, upstream: Upstream) -> None:
    """C06: after the client left, the running sub-read is aborted and no further one is sent."""
    upstream.handler = in_turn(held(0.02), silent, held(0.0))
    async with await router.connect() as client:
        await client.send(completions(prompt=[f"p{n}" for n in range(10)]))
        second = await upstream.arrival(2)
    await asyncio.wait_for(second.connection.closed.wait(), 1.0)
    assert (await router.ask(completions(prompt="other"))).status == 200
    assert [r.json()["prompt"] for r in upstream.requests] == ["p0", "p1", "other"]
    await assert_healthy(router)


@pytest.mark.parametrize("data", [READ1, GEN], ids=["read", "generation"])
async def test_c07_a_half_closed_client_is_gone(router: InProcess, upstream: Upstream, data: bytes) -> None:
    """C07: a client that shuts its sending half is treated as gone: no answer, the engine aborted, nothing leaks."""
    upstream.handler = silent
    async with await router.connect() as client:
        await client.send(data)
        request = await upstream.arrival(1)
        client.half_close()
        assert await client.closed(1.0)
    await asyncio.wait_for(request.connection.closed.wait(), 1.0)
    upstream.handler = held(0.0)
    await assert_healthy(router)


async def test_c07_a_half_close_with_the_request_reaches_no_engine_for_long(
    router: InProcess, upstream: Upstream
) -> None:
    """C07: the same when the half-close comes with the request's last byte."""
    upstream.handler = silent
    async with await router.connect() as client:
        await client.send(READ1)
        client.half_close()
        assert await client.closed(2.0)
    await eventually(lambda: all(c.closed_at is not None for c in upstream.connections))
    upstream.handler = held(0.0)
    await assert_healthy(router)


async def test_leaving_an_upload_that_the_engine_does_not_read(router: InProcess, upstream: Upstream) -> None:
    """The kind of C02: a client whose socket is not being read, since the engine is stuck, is seen to reset it."""

    async def stuck(connection: Connection, request: Request) -> None:
        connection.pause()
        await connection.forever()

    upstream.on("/v1/files", stuck, early=True)
    async with await router.connect() as client:
        await client.send(request("POST", "/v1/files", None, f"Content-Length: {1 << 30}"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.send(bytes(64 << 20)), 0.5)
        assert (await router.metrics()).sum("inflight_requests") == 1
        client.reset()
    assert (await router.settled()).sum("requests_total", outcome="client_gone") == 1
    upstream.requests[0].connection.resume()
    await asyncio.wait_for(upstream.requests[0].connection.closed.wait(), 2.0)


async def test_leaving_with_a_request_in_the_pipe(router: InProcess, upstream: Upstream) -> None:
    """The kind of C02: a client that pipelines and leaves during the first answer is gone for both requests."""
    upstream.handler = silent
    async with await router.connect() as client:
        await client.send(READ1 + GEN)
        request = await upstream.arrival(1)
    await asyncio.wait_for(request.connection.closed.wait(), 2.0)
    await router.settled()
    assert len(upstream.requests) == 1
