"""The canary: one read must come back as it was; a new engine begins anew; it never runs while reads wait."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from router.canary import Canary, scores_of
from tests.support.answers import json_message
from tests.support.client import READ1
from tests.support.routers import eventually, running
from tests.support.upstream import Connection, Request, Upstream


def answer(*values: float) -> bytes:
    top = [{"id": number, "logprob": value} for number, value in enumerate(values)]
    return json.dumps({"choices": [{"logprobs": {"content": [{"logprob": values[0], "top_logprobs": top}]}}]}).encode()


@pytest.mark.parametrize(
    "body",
    [b"x", b"{}", b'{"choices":[]}', b'{"choices":[{"logprobs":null}]}', b'{"choices":[{"logprobs":{"a":[1]}}]}'],
)
def test_an_answer_without_scores(body: bytes) -> None:
    assert scores_of(body) is None


async def test_same_different_and_a_new_era() -> None:
    answers: list[tuple[int, bytes]] = []
    era: list[Any] = [1]
    told: list[tuple[str, float]] = []

    async def ask() -> tuple[int, bytes]:
        return answers.pop(0)

    canary = Canary(ask, lambda: era[0], lambda result, deviation: told.append((result, deviation)))
    answers += [(0, b""), (200, answer(-1.0, -2.0)), (200, answer(-1.0, -2.0)), (200, answer(-1.0, -2.25)), (500, b"x")]
    for _ in range(5):
        await canary.check()
    era[0] = 2
    answers += [(200, answer(-3.0)), (200, answer(-3.0))]
    for _ in range(2):
        await canary.check()
    assert told == [
        ("failed", 0.0),
        ("baseline", 0.0),
        ("same", 0.0),
        ("different", 0.25),
        ("failed", 0.0),
        ("baseline", 0.0),
        ("same", 0.0),
    ]


async def test_through_the_lane_and_into_the_metrics(upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    score = [-1.5]
    bodies: list[dict[str, Any]] = []

    async def handler(connection: Connection, request: Request) -> None:
        bodies.append(request.json())
        assert request.get("x-cache-bypass") == b"1"
        await connection.send(json_message(json.loads(answer(score[0], -2.0))))

    upstream.handler = handler
    upstream.models = ["tiny"]
    async with running(upstream, canary_interval=0.05) as router:
        results = router.router.metrics.canary_checks_total

        def count(result: str) -> float:
            return results.labels(result)._value.get()

        await eventually(lambda: count("same") >= 2, 5)
        assert count("baseline") == 1
        assert bodies[0]["model"] == "tiny"
        score[0] = -1.0
        await eventually(lambda: count("different") >= 1, 5)
        assert router.router.metrics.canary_deviation_nats._value.get() == 0.5
    assert "the canary's read moved by 0.5 nats" in caplog.text


async def test_it_never_runs_while_reads_wait(upstream: Upstream) -> None:
    gate = asyncio.Event()

    async def handler(connection: Connection, request: Request) -> None:
        await gate.wait()
        await connection.send(json_message(json.loads(answer(-1.0))))

    upstream.handler = handler
    async with running(upstream, canary_interval=0.02) as router:
        reads = [asyncio.create_task(router.ask(READ1)) for _ in range(3)]
        await eventually(lambda: len(upstream.requests) >= 1)
        await asyncio.sleep(0.2)
        assert len(upstream.requests) == 1
        gate.set()
        await asyncio.gather(*reads)
        assert upstream.max_reads_overlap == 1


async def test_a_dead_engine_is_a_failed_check(upstream: Upstream) -> None:
    async with running(upstream) as router:
        upstream.stop()
        assert await router.router.reading.replay() == (0, b"")
        router.router.lane.close()
        assert await router.router.reading.replay() == (0, b"")
