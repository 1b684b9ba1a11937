"""Differential fuzz of the framing: the engine sees exactly what the client sent, or nothing; never another request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.wire import Seen, conversations, understood
from tests.support.client import Client
from tests.support.routers import InProcess, running
from tests.support.upstream import Upstream

EXAMPLES = 600
QUIET = 0.015
"""Seconds of silence after which the router is taken to wait for more."""


PATIENCE = 2.0


class Bench:
    """A router and a strict engine that live through all examples."""

    def __init__(self, runner: asyncio.Runner, router: InProcess, upstream: Upstream) -> None:
        self.runner = runner
        self.router = router
        self.upstream = upstream
        self.tally: Counter[str] = Counter()

    async def receive(self, client: Client, got: bytes) -> bytes:
        """What comes next; silence is the end only once every request that the engine saw has its answer here."""
        try:
            return await client.receive(QUIET)
        except TimeoutError:
            if got.count(b"HTTP/1.1 ") >= sum(r.whole_at is not None for r in self.upstream.requests):
                raise
        return await client.receive(PATIENCE)

    async def converse(self, segments: list[bytes]) -> tuple[list[Seen], bytes]:
        """Send the segments; what the engine saw complete, and what the client got."""
        self.upstream.requests.clear()
        got = b""
        async with await Client.connect(self.router.port) as client:
            try:
                for segment in segments:
                    await client.send(segment)
                    await asyncio.sleep(0)
                while data := await self.receive(client, got):
                    got += data
            except (TimeoutError, ConnectionError):
                pass
        seen = [Seen(r.method, r.target, r.body) for r in self.upstream.requests if r.whole_at is not None]
        return seen, got


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        upstream = runner.run(stack.enter_async_context(Upstream()))
        router = runner.run(stack.enter_async_context(running(upstream)))
        bench = Bench(runner, router, upstream)
        yield bench
        runner.run(stack.aclose())
    # The fuzz would prove nothing if nearly all were refused, or nearly none.
    assert bench.tally["served"] > EXAMPLES // 10, bench.tally
    assert bench.tally["refused"] > EXAMPLES // 10, bench.tally


def origin_form(seen: Seen) -> Seen:
    """An absolute target is reduced to its path and query."""
    if seen.target.lower().startswith(b"http://"):
        return seen._replace(target=b"/" + seen.target.split(b"/", 3)[3])
    return seen


@given(segments=conversations())
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_the_engine_sees_what_was_sent_or_nothing(bench: Bench, segments: list[bytes]) -> None:
    """Whatever the client sends, complete requests at the engine are a prefix of what a strict reader finds in it."""
    sent, malformed = understood(b"".join(segments))
    seen, got = bench.runner.run(bench.converse(segments))
    assert seen == [origin_form(s) for s in sent][: len(seen)]
    assert not bench.upstream.violations
    assert got.count(b"HTTP/1.1 ") >= len(seen)
    if malformed and len(seen) == len(sent) and got:
        assert b"\r\nconnection: close\r\n" in got.lower()
    bench.tally["served" if seen else "refused"] += 1
