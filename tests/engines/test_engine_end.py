"""The engine goes away: 503 within a second, and back once it is there again. And the router is small when idle."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from tests.support.engines import embedded_engine, router_at
from tests.support.routers import serving
from tests.support.upstream import Upstream

pytestmark = pytest.mark.engine


async def test_a_stopped_engine_is_503_with_retry_after_at_once() -> None:
    with embedded_engine("--context", "512", "--slots", "2") as engine:
        async with router_at(engine.url) as router:
            url = f"http://127.0.0.1:{router.port}/v1/completions"
            ask = {"prompt": "hi", "max_tokens": 1, "logprobs": 1}
            async with httpx.AsyncClient(trust_env=False) as http:
                assert (await http.post(url, json=ask)).headers["x-read-isolation"] == "engine"
                engine.process.terminate()
                await asyncio.to_thread(engine.process.wait)
                for body in (ask, {**ask, "max_tokens": 5}):
                    began = time.perf_counter()
                    answer = await http.post(url, json=body)
                    assert answer.status_code == 503
                    assert int(answer.headers["retry-after"]) >= 1
                    assert answer.json()["error"]["type"] == "router_error"
                    assert time.perf_counter() - began < 1.0
                async with asyncio.timeout(2.5):
                    while router.ready:
                        await asyncio.sleep(0.05)


async def test_serve_holds_at_most_80_mb_when_idle() -> None:
    async with Upstream() as upstream, serving(upstream) as process:
        assert process.rss < 80
