"""Everything at once: many clients of every kind, some of which leave, and the invariants that hold throughout."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from tests.support.answers import LAST_CHUNK, STREAM_HEAD, chunk, completion, engine, json_message
from tests.support.client import GEN, READ1, STREAM, Client, completions, get, post, request
from tests.support.routers import InProcess, assert_healthy, running
from tests.support.upstream import Connection, Request, Upstream


class Unsteady:
    """Answers everything after a random while, in one of several shapes, and at times fails."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    async def __call__(self, connection: Connection, request: Request) -> None:
        await asyncio.sleep(self.chance.random() * 0.01)
        fate = self.chance.random()
        if fate < 0.03:
            connection.reset()
        elif fate < 0.05:
            connection.close()
        elif fate < 0.08:
            await connection.send(json_message({"error": "busy"}, 429))
        elif b'"stream": true' in request.body or b'"stream":true' in request.body:
            await connection.send(STREAM_HEAD)
            for number in range(5):
                event = json.dumps({"id": "c", "choices": [{"index": 0, "text": str(number)}]})
                await connection.send(chunk(f"data: {event}\n\n".encode()))
                await asyncio.sleep(0.002)
            await connection.send(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)
        elif request.method == b"POST" and request.path == "/v1/completions":
            await connection.send(json_message(completion(request.json())))
        else:
            await connection.send(json_message({"size": request.size}))


KINDS = (
    READ1,
    READ1,
    completions(stream=True),
    completions(prompt=["a", "b", "c", "d"]),
    completions(prompt=["a", "b"], stream=True),
    GEN,
    STREAM,
    get("/v1/models"),
    post("/v1/files", b"x" * 300_000),
    request("POST", "/v1/files", None, "Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n",
)


async def client(router: InProcess, seed: int) -> list[int]:
    """One client: a few requests on a connection, until it leaves or has had enough. The statuses that it saw."""
    chance = random.Random(seed)
    statuses: list[int] = []
    async with await Client.connect(router.port, receive_buffer=chance.choice([None, 8192])) as connection:
        try:
            for _ in range(chance.randint(1, 6)):
                data = chance.choice(KINDS)
                if chance.random() < 0.1:
                    await connection.send(data[: chance.randrange(1, len(data))])
                    return statuses
                await connection.send(data)
                fate = chance.random()
                if fate < 0.25:
                    await asyncio.sleep(chance.random() * 0.05)
                    if chance.random() < 0.5:
                        connection.reset()
                    return statuses
                if fate < 0.3:
                    connection.half_close()
                    return statuses
                method = data.split(b" ", 1)[0].decode()
                statuses.append((await connection.answer(30, method=method)).status)
        except ConnectionError:
            pass  # the engine failed in the middle of an answer
    return statuses


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_two_hundred_mixed_clients(seed: int) -> None:
    """At most one read at the engine at any time; afterwards every gauge is 0 and a read and a chat succeed at once."""
    async with Upstream(Unsteady(seed)) as upstream, running(upstream) as router:
        statuses = await asyncio.gather(*(client(router, seed * 1000 + number) for number in range(200)))
        assert upstream.max_reads_overlap == 1
        seen = {status for each in statuses for status in each}
        assert {200, 429} <= seen <= {200, 429, 502}
        assert sum(len(each) for each in statuses) > 200
        samples = await router.settled(5.0)
        assert samples.sum("requests_total", outcome="client_gone") > 20
        assert router.router.lane.is_idle
        upstream.handler = engine
        await assert_healthy(router)


async def test_mixed_clients_under_exclusive_isolation() -> None:
    """With the gate, no other traffic is at the engine while a read is; and all of it is served."""
    overlaps = 0
    others: set[Request] = set()

    async def watching(connection: Connection, request: Request) -> None:
        nonlocal overlaps
        if not request.is_read and request.method == b"POST":
            others.add(request)
        others.difference_update({r for r in others if r.connection.is_gone})
        overlaps += bool(request.is_read and others)
        try:
            await asyncio.sleep(0.003)
            overlaps += bool(request.is_read and {r for r in others if not r.connection.is_gone})
            await connection.send(json_message(completion({"prompt": "x"})))
        finally:
            others.discard(request)

    async with Upstream(watching) as upstream, running(upstream, isolation="exclusive", max_hold=0.1) as router:
        chats, reads, _ = await asyncio.gather(
            asyncio.gather(*(router.ask(GEN, 30) for _ in range(60))),
            asyncio.gather(*(router.ask(READ1, 30) for _ in range(60))),
            asyncio.gather(*(client(router, number) for number in range(40))),
        )
        assert {answer.status for answer in (*chats, *reads)} == {200}
        assert {answer.get("x-read-isolation") for answer in reads} == {b"exclusive"}
        assert overlaps == 0
        assert upstream.max_reads_overlap == 1
        await assert_healthy(router)
