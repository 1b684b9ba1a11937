"""Memory, Y01 and Y02, scaled to what a test run has time for."""

from __future__ import annotations

import asyncio
import random

from tests.support.answers import engine
from tests.support.client import Client, completions, request
from tests.support.routers import Process, serving
from tests.support.upstream import Connection, Request, Upstream


async def test_y01_parallel_uploads_are_not_held() -> None:
    """Y01: 20 parallel uploads of 20 MB to an engine that reads slowly at first: well under what they weigh."""
    piece, count = bytes(1 << 20), 20

    async def slow(connection: Connection, request: Request) -> None:
        connection.pause()
        await asyncio.sleep(1.0)
        connection.resume()
        await request.whole.wait()
        await engine(connection, request)

    async with Upstream() as upstream, serving(upstream) as router:
        upstream.on("/v1/files", slow, early=True)
        await router.ask(completions())
        before = peak = router.rss
        head = request("POST", "/v1/files", None, f"Content-Length: {len(piece) * count}")

        async def upload() -> None:
            async with await Client.connect(router.port) as client:
                await client.send(head)
                for _ in range(count):
                    await client.send(piece)
                assert (await client.answer(60)).status == 200

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, router.rss)
                await asyncio.sleep(0.02)

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(upload() for _ in range(20)))
        watching.cancel()
        assert peak - before < 100
        assert [r.size for r in upstream.requests if r.path == "/v1/files"] == [len(piece) * count] * 20


async def some_reads(router: Process, number: int, chance: random.Random) -> None:
    async def lane(share: int) -> None:
        async with await Client.connect(router.port) as client:
            for _ in range(share):
                data = completions(
                    f"Cookie: sid={chance.getrandbits(64):x}",
                    f"X-Request-Id: {chance.getrandbits(64):x}",
                    model=f"m{chance.getrandbits(32)}",
                    prompt=f"{chance.getrandbits(256):x}",
                )
                assert (await client.ask(data)).status == 200

    await asyncio.gather(*(lane(number // 8) for _ in range(8)))


async def test_y02_memory_does_not_grow_with_what_came_by() -> None:
    """Y02: after a warm-up, thousands of reads with new cookies, ids and models leave the memory where it was."""
    async with Upstream() as upstream, serving(upstream) as router:
        chance = random.Random(2)
        await some_reads(router, 2000, chance)
        before = router.rss
        await some_reads(router, 4000, chance)
        assert router.rss - before < 4
        assert len(upstream.requests) == 6000
        assert upstream.max_reads_overlap == 1
