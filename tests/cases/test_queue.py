"""The queue, Q01-Q06: in order, bounded, fair, and nobody else's business."""

from __future__ import annotations

import asyncio
from time import perf_counter

import pytest

from tests.support.answers import engine, gated, held, in_turn, json_message, play
from tests.support.client import GEN, GEN_BODY, READ1, READ1_BODY, completions, get, post
from tests.support.routers import InProcess, assert_healthy, eventually, running
from tests.support.upstream import Upstream


async def test_q01_reads_run_in_the_order_of_their_bodies(router: InProcess, upstream: Upstream) -> None:
    """Q01: 20 reads run one at a time, in the order in which their bodies were complete."""
    upstream.handler = held(0.02)
    late = await router.connect()
    data = completions(user="late")
    await late.send(data[:-1])  # its head is the first, its body the last to be complete
    await asyncio.sleep(0.02)
    asking = []
    for number in range(20):
        asking.append(asyncio.create_task(router.ask(completions(user=str(number)))))
        await asyncio.sleep(0.005)
    await eventually(lambda: router.router.lane.queued + len(upstream.requests) >= 20)
    await late.send(data[-1:])
    assert {answer.status for answer in await asyncio.gather(*asking)} == {200}
    assert (await late.answer()).status == 200
    late.close()
    assert [r.json()["user"] for r in upstream.requests] == [*map(str, range(20)), "late"]
    assert upstream.max_reads_overlap == 1
    assert (await router.metrics()).sum("read_queue_wait_seconds_count") == 21


async def test_q02_a_full_queue_refuses_at_once(upstream: Upstream) -> None:
    """Q02: limit + 5 reads: five get 503 with an integer Retry-After at once; generations are not affected."""
    gate = asyncio.Event()
    upstream.handler = in_turn(gated(gate), engine)
    async with running(upstream, max_queued_reads=5) as router:
        asking = [asyncio.create_task(router.ask(READ1))]
        await upstream.arrival(1)
        asking += [asyncio.create_task(router.ask(READ1)) for _ in range(4)]
        asking.append(asyncio.create_task(router.ask(completions(prompt=["a", "b", "c"]))))
        await eventually(lambda: router.router.lane.queued == 5)
        for _ in range(5):
            began = perf_counter()
            answer = await router.ask(READ1)
            assert perf_counter() - began < 0.05
            assert answer.status == 503
            retry = answer.get("retry-after")
            assert retry is not None
            assert int(retry) >= 1
            assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
            assert answer.json()["error"]["type"] == "router_error"
        assert (await router.ask(post("/v1/chat/completions", b"{}"))).status == 200
        gate.set()
        assert {answer.status for answer in await asyncio.gather(*asking)} == {200}
        await assert_healthy(router)
        samples = await router.settled()
        assert samples.sum("requests_total", kind="read", outcome="rejected", code="5xx") == 5


async def test_q03_one_refusal_fails_one_read(router: InProcess, upstream: Upstream) -> None:
    """Q03: of five reads the engine refuses the second; the others succeed."""
    busy = play(json_message({"error": "busy"}, 429))
    upstream.handler = in_turn(held(0.05), busy, engine)
    asking = []
    for number in range(5):
        asking.append(asyncio.create_task(router.ask(completions(user=str(number)))))
        await asyncio.sleep(0.005)
    assert [answer.status for answer in await asyncio.gather(*asking)] == [200, 429, 200, 200, 200]
    assert [r.json()["user"] for r in upstream.requests] == list("01234")


async def test_q04_other_traffic_is_not_held_back(router: InProcess, upstream: Upstream) -> None:
    """Q04: while a read is held, 50 generations and a GET reach the engine at once."""
    gate = asyncio.Event()
    upstream.handler = in_turn(gated(gate), engine)
    read = asyncio.create_task(router.ask(READ1))
    await upstream.arrival(1)
    waiting = asyncio.create_task(router.ask(READ1))
    began = perf_counter()
    answers = await asyncio.gather(*(router.ask(GEN) for _ in range(50)), router.ask(get("/v1/models")))
    assert {answer.status for answer in answers} == {200}
    assert perf_counter() - began < 1.0
    assert not read.done()
    assert not waiting.done()
    gate.set()
    assert (await read).status == (await waiting).status == 200


async def test_q05_a_list_lets_singles_between(router: InProcess, upstream: Upstream) -> None:
    """Q05: a read behind a list of 500 waits for at most two of its sub-reads; the list keeps its order."""
    upstream.handler = held(0.002)
    prompts = [f"p{n}" for n in range(500)]
    listing = asyncio.create_task(router.ask(completions(prompt=prompts), 60))
    await upstream.arrival(5)
    before = len(upstream.requests)
    single = asyncio.create_task(router.ask(completions(prompt="single")))
    await eventually(lambda: len(upstream.requests) > before + 4)
    assert (await single).status == 200
    order = [r.json()["prompt"] for r in upstream.requests]
    assert order.index("single") - before <= 3
    choices = (await listing).json()["choices"]
    assert [c["text"] for c in choices] == prompts
    assert [c["index"] for c in choices] == list(range(500))
    assert upstream.max_reads_overlap == 1


async def test_q05_two_lists_take_turns(router: InProcess, upstream: Upstream) -> None:
    """Q05: two lists share the lane sub-read by sub-read."""
    upstream.handler = held(0.005)
    a, b = await asyncio.gather(
        router.ask(completions(prompt=[f"a{n}" for n in range(10)])),
        router.ask(completions(prompt=[f"b{n}" for n in range(10)])),
    )
    assert (a.status, b.status) == (200, 200)
    order = [r.json()["prompt"][0] for r in upstream.requests]
    assert "aaa" not in "".join(order)
    assert "bbb" not in "".join(order)


@pytest.mark.parametrize("fields", [["X-Cache-Bypass: 7"], ["x-cache-bypass: 7", "X-CACHE-BYPASS: 8"], []])
@pytest.mark.parametrize("connection", [[], ["Connection: X-Cache-Bypass"]])
async def test_q06_a_read_carries_the_routers_bypass_header_once(
    router: InProcess, upstream: Upstream, fields: list[str], connection: list[str]
) -> None:
    """Q06: whatever the caller sends, or names in Connection, a read has the header once, with the router's value."""
    for data in (completions(*fields, *connection), completions(*fields, *connection, prompt=["a", "b"])):
        assert (await router.ask(data)).status == 200
    assert [r.all("x-cache-bypass") for r in upstream.requests] == [[b"1"]] * 3


async def test_q06_other_traffic_keeps_the_callers_header(router: InProcess, upstream: Upstream) -> None:
    """Q06: on everything else the caller's own field is forwarded as it is."""
    await router.ask(post("/v1/completions", GEN_BODY, "x-cache-bypass: 7"))
    await router.ask(get("/v1/models", "X-Cache-Bypass: 8"))
    assert [r.all("x-cache-bypass") for r in upstream.requests] == [[b"7"], [b"8"]]


async def test_q06_the_header_can_have_another_name(upstream: Upstream) -> None:
    """Q06: with --bypass-header the name and value are the user's, and so is the acknowledgement's name."""
    upstream.handler = play(json_message({}, fields=[("X-Alone", "applied")]))
    async with running(upstream, bypass_header="X-Alone: yes") as router:
        answer = await router.ask(post("/v1/completions", READ1_BODY, "X-Cache-Bypass: mine"))
    assert answer.get("x-read-isolation") == b"engine"
    assert upstream.requests[0].all("x-alone") == [b"yes"]
    assert upstream.requests[0].all("x-cache-bypass") == [b"mine"]


async def test_two_endpoints_share_one_queue(upstream: Upstream) -> None:
    """Section 6 of the design: each endpoint has a slot, and the queue serves whichever is free."""
    async with Upstream(held(0.02)) as one, Upstream(held(0.02)) as two:
        async with running(upstream, read_endpoint=(one.url, two.url)) as router:
            answers = await asyncio.gather(*(router.ask(READ1) for _ in range(20)), router.ask(GEN))
            assert {answer.status for answer in answers} == {200}
        assert len(one.requests) + len(two.requests) == 20
        assert min(len(one.requests), len(two.requests)) > 5
        assert one.max_reads_overlap == two.max_reads_overlap == 1
    assert [r.is_read for r in upstream.requests] == [False]
