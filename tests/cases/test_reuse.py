"""Connection reuse, R01-R05: a kept connection that dies costs nobody an answer, and makes nobody generate twice."""

from __future__ import annotations

import asyncio
import random

import pytest

from router.settings import Settings
from tests.support.answers import engine, held, in_turn, json_message, play
from tests.support.client import GEN, READ1, completions, get
from tests.support.routers import InProcess, assert_healthy, eventually, running
from tests.support.upstream import Connection, Request, Upstream

ERROR_MEMBERS = {"message", "type", "param", "code"}


async def test_r01_a_generation_is_never_sent_twice(router: InProcess, upstream: Upstream) -> None:
    """R01: a warm connection that closes without a byte gives 502, and the engine saw the request once."""
    upstream.handler = in_turn(engine, play("close"), engine)
    assert (await router.ask(GEN)).status == 200
    answer = await router.ask(GEN)
    assert answer.status == 502
    assert answer.json()["error"].keys() == ERROR_MEMBERS
    assert answer.get("retry-after") is None
    assert answer.get("x-should-retry") is None
    assert len(upstream.requests) == 2
    assert upstream.requests[0].connection is upstream.requests[1].connection
    await assert_healthy(router)


async def test_r01_a_read_is_sent_again_once_on_a_new_connection(router: InProcess, upstream: Upstream) -> None:
    """R01, D3: a read may be resent after a reused connection gave nothing; but once, and only then."""
    upstream.handler = in_turn(engine, play("close"), engine)
    assert (await router.ask(READ1)).status == 200
    assert (await router.ask(READ1)).status == 200
    warm, dead, again = upstream.requests
    assert warm.connection is dead.connection is not again.connection
    assert dead.raw == again.raw
    assert (await router.metrics()).sum("reads_resent_total") == 1


async def test_r01_a_read_is_not_sent_a_third_time(router: InProcess, upstream: Upstream) -> None:
    """D3: the second loss is the answer: 502."""
    upstream.handler = in_turn(engine, play("close"), play("close"), engine)
    assert (await router.ask(READ1)).status == 200
    assert (await router.ask(READ1)).status == 502
    assert len(upstream.requests) == 3
    await assert_healthy(router)


@pytest.mark.parametrize("steps", [("close",), ("reset",), (b"HTTP/1.1 200 OK\r\nConte", "close")])
async def test_r01_a_read_on_a_fresh_connection_is_not_resent(
    router: InProcess, upstream: Upstream, steps: tuple[bytes | str, ...]
) -> None:
    """D3: no resend on a fresh connection, nor after a byte of an answer."""
    upstream.handler = in_turn(play(*steps), engine)  # type: ignore[arg-type]
    assert (await router.ask(READ1)).status == 502
    assert len(upstream.requests) == 1
    await assert_healthy(router)


async def test_r01_a_read_with_a_byte_of_an_answer_is_not_resent(router: InProcess, upstream: Upstream) -> None:
    """D3: one byte of an answer on a reused connection is enough to make a resend wrong."""
    upstream.handler = in_turn(engine, play(b"H", 0.02, "close"), engine)
    assert (await router.ask(READ1)).status == 200
    assert (await router.ask(READ1)).status == 502
    assert len(upstream.requests) == 2


async def test_r02_idle_life_is_clearly_below_the_engines() -> None:
    """R02: reads spaced around the engine's own idle limit all succeed (both limits scaled down by ten)."""
    limit = 0.5

    async def closing(connection: Connection, request: Request) -> None:
        await engine(connection, request)
        count = len(connection.requests)

        def expire() -> None:
            if len(connection.requests) == count:
                connection.close()

        asyncio.get_running_loop().call_later(limit, expire)

    async def pair(seed: int) -> None:
        chance = random.Random(seed)
        async with Upstream(closing) as upstream, running(upstream, upstream_keepalive=0.3) as router:
            for _ in range(8):
                assert (await router.ask(READ1)).status == 200
                await asyncio.sleep(limit + chance.uniform(-0.01, 0.01))
            assert len(upstream.requests) == 8

    await asyncio.gather(*(pair(seed) for seed in range(5)))
    assert Settings(upstream="http://h").upstream_keepalive <= 3.0


async def test_r02_within_its_idle_life_a_connection_is_used_again(router: InProcess, upstream: Upstream) -> None:
    """R02: the expiry does not come from using each connection once."""
    for _ in range(3):
        assert (await router.ask(READ1)).status == 200
        assert (await router.ask(GEN)).status == 200
    assert len({id(r.connection) for r in upstream.requests}) == 1


async def test_r03_a_connection_that_the_engine_closed_is_not_used(router: InProcess, upstream: Upstream) -> None:
    """R03: the engine closes after its answer; the next generation goes on a fresh connection, once."""
    upstream.handler = in_turn(play(json_message({}), "close"), engine)
    assert (await router.ask(GEN)).status == 200
    await asyncio.sleep(0.1)
    assert (await router.ask(GEN)).status == 200
    assert len(upstream.requests) == 2
    assert upstream.requests[0].connection is not upstream.requests[1].connection


async def test_r04_an_answer_up_to_the_close_is_framed_again(router: InProcess, upstream: Upstream) -> None:
    """R04: no length, no chunks, `Connection: close`: the body arrives framed, and the client's connection stays."""
    upstream.handler = play(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhel", 0.05, b"lo", "close")
    async with await router.connect() as client:
        for _ in range(2):
            answer = await client.ask(GEN)
            assert (answer.body, answer.whole) == (b"hello", True)
            assert answer.get("connection") is None
            assert answer.get("transfer-encoding") == b"chunked"


async def test_r04_an_http_1_0_engine_is_understood(router: InProcess, upstream: Upstream) -> None:
    """The kind of R04: an answer in HTTP/1.0, with and without a length; its connection is not used again."""
    upstream.handler = in_turn(
        play(b"HTTP/1.0 200 OK\r\n\r\nhello", "close"), play(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello")
    )
    async with await router.connect() as client:
        for _ in range(3):
            answer = await client.ask(GEN)
            assert (answer.status, answer.body, answer.whole) == (200, b"hello", True)
    assert len({id(r.connection) for r in upstream.requests}) == 3


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("data", [READ1, GEN, get("/v1/models")], ids=["read", "generation", "get"])
async def test_r05_a_short_body_is_never_whole(router: InProcess, upstream: Upstream, end: str, data: bytes) -> None:
    """R05: 3 of 10 bytes: the client sees the head and an abnormal end; no retry."""
    upstream.handler = in_turn(
        play(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", 0.02, end),  # type: ignore[arg-type]
        held(0.0),
    )
    answer = await router.ask(data)
    assert answer.status == 200
    assert answer.body == b"abc"
    assert not answer.whole
    assert len(upstream.requests) == 1
    await assert_healthy(router)
    samples = await router.settled()
    assert samples.sum("requests_total", outcome="upstream_aborted") == 1


async def test_r05_a_short_sub_answer_is_a_502(router: InProcess, upstream: Upstream) -> None:
    """R05: where the router has buffered, for a merge, the client gets 502."""
    short = play(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\nabc", "close")
    upstream.handler = in_turn(engine, short, engine)
    answer = await router.ask(completions(prompt=["a", "b", "c"]))
    assert answer.status == 502
    assert answer.json()["error"]["type"] == "router_error"
    assert len(upstream.requests) == 2
    await assert_healthy(router)


@pytest.mark.parametrize(
    "extra",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison", b"\r\njunk", b"x"],
    ids=["a second answer", "junk", "one byte"],
)
async def test_a_connection_with_bytes_behind_its_answer_is_not_used_again(
    router: InProcess, upstream: Upstream, extra: bytes
) -> None:
    """The kind of R03 and R05: what comes behind an answer never becomes the next request's answer."""
    upstream.handler = in_turn(play(json_message({"n": 1}) + extra), play(json_message({"n": 2}), 0.02, extra), engine)
    assert (await router.ask(GEN)).json() == {"n": 1}
    assert (await router.ask(GEN)).json() == {"n": 2}
    await eventually(lambda: upstream.requests[1].answered_at is not None)
    await asyncio.sleep(0.05)
    assert "choices" in (await router.ask(GEN)).json()
    assert len({id(r.connection) for r in upstream.requests}) == 3
