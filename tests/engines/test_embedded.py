"""The promise, on a real engine: the same read has the same bits, whatever else runs, and chat does not notice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from router.app import Router
from router.verify import report
from router.verify.cases import Bench, Plan
from router.verify.costs import Costs, measure
from router.verify.probe import Target
from router.verify.prompts import PromptMaker
from tests.support.engines import Engine, embedded_engine, free_port, router_at
from tests.support.routers import Samples, eventually

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with embedded_engine() as engine:
        yield engine


@pytest.fixture
async def router(engine: Engine) -> AsyncIterator[Router]:
    async with router_at(engine.url) as router:
        yield router


def url_of(router: Router) -> str:
    return f"http://127.0.0.1:{router.port}"


async def table(engine: Engine, router: Router, plan: Plan) -> tuple[Bench, Costs]:
    """Measure both columns and print them, as a reader of the test's output wants to see them."""
    targets = {"engine": Target(engine.url), "router": Target(url_of(router))}
    try:
        for target in targets.values():
            await target.prepare()
        prompts = PromptMaker(targets["engine"])
        await prompts.prepare()
        bench = Bench(targets, prompts, plan, lambda what: None)
        await bench.run()
        costs = await measure(bench)
    finally:
        for target in targets.values():
            await target.close()
    print("\n" + report.table(bench.rows, list(targets)))
    print(report.verdict(bench.rows, list(targets), costs)[0])
    return bench, costs


def assert_proven(bench: Bench, label: str) -> None:
    """The router's column is bitwise, the engine's own is not, the cache was warm and the load was there."""
    ours, theirs = report.total(bench.rows, "router"), report.total(bench.rows, "engine")
    assert report.moved(bench.rows, "router") == []
    assert ours.labels == {label: ours.reads}
    assert theirs.equal < theirs.reads, "the engine's own reads did not move: this would prove nothing"
    assert theirs.cached > 0
    assert ours.cached == 0
    loaded = sum(row.columns["router"].reads for row in bench.rows if row.load)
    assert ours.overlapped == loaded > 0


async def test_every_read_keeps_its_bits(engine: Engine, router: Router) -> None:
    plan = Plan(
        lengths=(60, 300, 512, 513, 819, 820), loaded_lengths=(60, 300, 513), chats=3, rotation=0, long_context=0
    )
    bench, costs = await table(engine, router, plan)
    assert_proven(bench, "engine")
    assert costs.chat_same["router"], "greedy chat changed while reads ran"


@pytest.mark.engines
async def test_every_read_keeps_its_bits_at_length(engine: Engine, router: Router) -> None:
    bench, _ = await table(
        engine, router, Plan(lengths=(2100, 4096), loaded_lengths=(820, 2100), chats=3, rotation=0, long_context=0)
    )
    assert_proven(bench, "engine")


@pytest.mark.engines
async def test_exclusive_isolation_holds_on_an_engine_with_stock_settings() -> None:
    """With one KV cache for all, being alone among reads is not enough; holding chat off is."""
    plan = Plan(lengths=(60, 300), loaded_lengths=(60, 300), chats=3, rotation=0, long_context=0)
    with embedded_engine("--unified-kv") as stock:
        async with router_at(stock.url, isolation="exclusive") as router:
            bench, costs = await table(stock, router, plan)
            print(report.cost_lines(bench.rows, costs, ["engine", "router"]))
            assert_proven(bench, "exclusive")


def without_what_varies(body: bytes) -> bytes:
    """An answer without the parts that differ between any two: ids, times, timings and the cache's state."""
    body = re.sub(rb'"(id|created)":("[^"]*"|\d+)', b"", body)
    body = re.sub(rb'"timings":\{[^}]*\}', b"", body)
    return re.sub(rb'"cached_tokens":\d+', b"", body)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_s_bytes_are_the_engine_s_own(engine: Engine, router: Router, stream: bool) -> None:
    body = {
        "messages": [{"role": "user", "content": "Name a river."}],
        "max_tokens": 12,
        "temperature": 0,
        "stream": stream,
    }
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        straight = await client.post(engine.url + "/v1/chat/completions", json=body)
        through = await client.post(url_of(router) + "/v1/chat/completions", json=body)
    assert without_what_varies(through.content) == without_what_varies(straight.content)
    assert {k: v for k, v in through.headers.items() if k not in ("content-length", "keep-alive")} == {
        k: v for k, v in straight.headers.items() if k not in ("content-length", "keep-alive")
    }


async def test_a_list_and_a_stream_give_the_single_reads_numbers(router: Router) -> None:
    prompts = ["The capital of France is", "Two and two are", "The sky is"]
    ask = {"max_tokens": 1, "logprobs": 5, "temperature": 0}
    async with httpx.AsyncClient(base_url=url_of(router), trust_env=False, timeout=60) as client:
        singles = [
            (await client.post("/v1/completions", json={**ask, "prompt": p})).json()["choices"][0] for p in prompts
        ]
        whole = await client.post("/v1/completions", json={**ask, "prompt": prompts})
        events = await client.post("/v1/completions", json={**ask, "prompt": prompts, "stream": True})
    assert whole.headers["x-read-isolation"] == "engine"
    assert [c["logprobs"] for c in whole.json()["choices"]] == [c["logprobs"] for c in singles]
    assert [c["index"] for c in whole.json()["choices"]] == [0, 1, 2]
    streamed = [json.loads(line[6:]) for line in events.text.splitlines() if line.startswith("data: {")]
    found = {
        c["index"]: c["logprobs"]["content"][0]["logprob"]
        for event in streamed
        for c in event["choices"]
        if c.get("logprobs")
    }
    assert [found[i] for i in range(3)] == [c["logprobs"]["content"][0]["logprob"] for c in singles]
    assert events.text.count("[DONE]") == 1


async def test_200_mixed_clients_leave_nothing_behind(router: Router) -> None:
    """Some leave while they wait, some while they are served; then all gauges are 0 and the router serves at once."""
    chance = random.Random(11)

    async def client(number: int) -> None:
        body: dict[str, object] = {"prompt": f"Number {number} is", "max_tokens": 1, "temperature": 0}
        if number % 4:
            body["logprobs"] = 2
        if number % 16 == 1:
            body["prompt"] = ["one", "two", "three"]
        timeout = chance.choice([0.01, 0.1, 0.5, 60, 60])
        async with httpx.AsyncClient(base_url=url_of(router), trust_env=False, timeout=timeout) as http:
            try:
                answer = await http.post("/v1/completions", json=body)
            except httpx.TimeoutException:
                return
            assert answer.status_code == 200, answer.text

    await asyncio.gather(*(client(number) for number in range(200)))
    async with asyncio.timeout(30):
        await router.lane.idle()
        while any(Samples(router.metrics.render().decode()).gauges().values()):
            await asyncio.sleep(0.05)
    async with httpx.AsyncClient(base_url=url_of(router), trust_env=False, timeout=10) as http:
        for extra in ({}, {"logprobs": 1}):
            answer = await http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1, **extra})
            assert answer.status_code == 200


async def test_without_knobs_the_label_is_honest(engine: Engine) -> None:
    async with router_at(engine.url, body_knobs=False) as router, httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(
            url_of(router) + "/v1/completions", json={"prompt": "hi", "max_tokens": 1, "logprobs": 1}
        )
    assert answer.headers["x-read-isolation"] == "serial"


async def test_the_canary_comes_back_the_same_until_the_engine_restarts() -> None:
    """Under chat the stored read keeps its bits; another process of the engine is another baseline, and no alarm."""
    small, port = ("--slots", "2", "--context", "512"), free_port()
    async with contextlib.AsyncExitStack() as stack:
        with embedded_engine(*small, port=port) as engine:
            router = await stack.enter_async_context(router_at(engine.url, canary_interval=0.1))
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=url_of(router), trust_env=False))

            def checks(result: str) -> float:
                return router.metrics.canary_checks_total.labels(result)._value.get()

            await eventually(lambda: checks("baseline") == 1, 30)
            seen = checks("same")
            chat = {"messages": [{"role": "user", "content": "Name a river."}], "max_tokens": 40, "temperature": 0}
            answer = await http.post("/v1/chat/completions", json=chat, timeout=60)
            assert answer.status_code == 200
            await eventually(lambda: checks("same") >= seen + 3, 30)
        await eventually(lambda: not router.ready, 10)
        with embedded_engine(*small, port=port):
            await eventually(lambda: checks("baseline") == 2, 30)
            seen = checks("same")
            await eventually(lambda: checks("same") > seen, 30)
            assert checks("different") == 0
            assert router.metrics.canary_deviation_nats._value.get() == 0
