"""One router with several endpoints for reads: one queue, and an endpoint that dies costs no read that was not in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.support.answers import held, silent
from tests.support.client import READ1, completions
from tests.support.routers import InProcess, eventually, running
from tests.support.upstream import Upstream

Fleet = tuple[InProcess, list[Upstream]]


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """A router whose reads go to three scripted engines; chat goes to a fourth."""
    async with AsyncExitStack() as stack:
        chat, *reads = [await stack.enter_async_context(Upstream(held(0.01))) for _ in range(4)]
        router = await stack.enter_async_context(running(chat, read_endpoint=tuple(each.url for each in reads)))
        await eventually(lambda: router.router.lane.statistics().up == (True, True, True))
        await eventually(lambda: all(endpoint.up for endpoint in router.router.endpoints.reads))
        yield router, reads


async def test_all_of_them_work_at_once(fleet: Fleet) -> None:
    router, reads = fleet
    answers = await asyncio.gather(*(router.ask(READ1) for _ in range(30)))
    assert {answer.status for answer in answers} == {200}
    assert sum(len(each.requests) for each in reads) == 30
    assert min(len(each.requests) for each in reads) >= 5
    assert [each.max_reads_overlap for each in reads] == [1, 1, 1]
    assert router.upstream.requests == []
    await router.settled()


async def test_an_endpoint_that_refuses_loses_no_read(fleet: Fleet) -> None:
    router, reads = fleet
    reads[1].stop()
    lists = [router.ask(completions(prompt=[f"{n} a", f"{n} b"], stream=n % 2 == 1)) for n in range(4)]
    answers = await asyncio.gather(*(router.ask(READ1) for _ in range(40)), *lists)
    assert {answer.status for answer in answers} == {200}
    assert reads[1].requests == []
    assert router.router.lane.statistics().up == (True, False, True)
    await router.settled()


async def test_it_comes_back(fleet: Fleet) -> None:
    router, reads = fleet
    reads[2].stop()
    await eventually(lambda: router.router.lane.statistics().up == (True, True, False), 5.0)
    async with Upstream(port=reads[2].port) as again:
        await eventually(lambda: router.router.lane.statistics().up == (True, True, True), 5.0)
        answers = await asyncio.gather(*(router.ask(READ1) for _ in range(9)))
        assert {answer.status for answer in answers} == {200}
        assert again.requests


async def test_without_any_the_answer_is_at_once(fleet: Fleet) -> None:
    router, reads = fleet
    for each in reads:
        each.handler = silent
    waiting = [asyncio.create_task(router.ask(READ1)) for _ in range(6)]
    for each in reads:
        await each.arrival(1)
    for each in reads:
        each.stop()
    for task in waiting:
        answer = await task
        assert answer.status in (502, 503), "502 for those that were at an endpoint, 503 for those that waited"
    await eventually(lambda: not any(router.router.lane.statistics().up), 5.0)
    answer = await router.ask(READ1)
    assert (answer.status, answer.get("retry-after")) == (503, b"1")
    assert answer.json()["error"]["code"] == "engine_unavailable"
    await router.settled()
