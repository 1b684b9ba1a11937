"""The openai SDK's three ways to ask for log-probabilities, through the router on the embedded engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import openai
import pytest

from router.app import Router
from tests.support.engines import Engine, embedded_engine, router_at

pytestmark = pytest.mark.engine

MESSAGES = [{"role": "user", "content": "Is the sky blue? Answer yes or no."}]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with embedded_engine("--context", "512", "--slots", "2") as engine:
        yield engine


@pytest.fixture
async def router(engine: Engine) -> AsyncIterator[Router]:
    async with router_at(engine.url) as router:
        yield router


async def test_sync_async_and_stream_agree(router: Router) -> None:
    where = {"base_url": f"http://127.0.0.1:{router.port}/v1", "api_key": "none", "max_retries": 0}
    ask = {
        "model": "smollm2-135m",
        "messages": MESSAGES,
        "max_tokens": 1,
        "logprobs": True,
        "top_logprobs": 3,
        "temperature": 0,
    }

    def top(content: object) -> list[tuple[str, float]]:
        return [(entry.token, entry.logprob) for entry in content[0].top_logprobs]  # type: ignore[index]

    def sync() -> list[tuple[str, float]]:
        with openai.OpenAI(**where) as client:  # type: ignore[arg-type]
            return top(client.chat.completions.create(**ask).choices[0].logprobs.content)  # type: ignore[call-overload]

    first = await asyncio.to_thread(sync)
    async with openai.AsyncOpenAI(**where) as client:  # type: ignore[arg-type]
        raw = await client.chat.completions.with_raw_response.create(**ask)  # type: ignore[call-overload]
        assert raw.headers["x-read-isolation"] == "engine"
        second = top(raw.parse().choices[0].logprobs.content)
        third = None
        async for event in await client.chat.completions.create(**ask, stream=True):  # type: ignore[call-overload]
            if event.choices and event.choices[0].logprobs and event.choices[0].logprobs.content:
                third = top(event.choices[0].logprobs.content)
    assert first == second == third
    assert len(first) == 3
