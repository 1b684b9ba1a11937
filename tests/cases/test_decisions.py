"""Endpoints that run several engine reads inside one request take a turn in the lane as a whole."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.answers import held, json_message, play
from tests.support.client import READ1, post
from tests.support.routers import running
from tests.support.upstream import Connection, Request, Upstream

PATHS = ["/v1/systemone", "/v1/decisions", "/generative_scoring", "/v1/score"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_decision_waits_for_its_turn_and_goes_as_it_came(upstream: Upstream, path: str) -> None:
    body = b'{"query" : "which?", "items":["a","b"], "n": 1e0}'
    upstream.handler = held(0.15, play(json_message({"scores": [0.5, 0.25]})))
    async with running(upstream) as router:
        first, second = await asyncio.gather(router.ask(READ1), router.ask(post(path, body)))
    assert first.status == second.status == 200
    assert upstream.max_reads_overlap == 1
    sent = next(request for request in upstream.reads if request.path == path)
    assert sent.body == body
    assert sent.get("x-cache-bypass") == b"1"
    assert second.get("x-read-isolation") == b"serial"


@pytest.mark.parametrize("path", PATHS)
async def test_its_label_is_the_endpoint_s_acknowledgement(upstream: Upstream, path: str) -> None:
    async def acknowledging(connection: Connection, request: Request) -> None:
        await connection.send(json_message({"scores": [1]}, fields=[("X-Cache-Bypass", "applied")]))

    upstream.handler = acknowledging
    async with running(upstream, require_ack=True) as router:
        answer = await router.ask(post(path, b'{"items":["a"]}'))
    assert answer.status == 200
    assert answer.get("x-read-isolation") == b"engine"
