"""lm-evaluation-harness's `local-completions`, unmodified: log-likelihoods that do not depend on batch size or order.

The scripted engine moves its scores as engines do: by what shares a request, and by what its cache holds.
"""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from typing import Any

import pytest

from tests.support.answers import json_message, message
from tests.support.routers import running
from tests.support.upstream import Connection, Request, Upstream

Item = tuple[str, str]

ITEMS: list[Item] = [
    (f"Question {number}: is {'a boat' if number % 3 else 'the sea'} wet? Answer:", f" {answer}")
    for number in range(10)
    for answer in ("yes", "no")
]
"""Ten questions of two options: a task of 20 log-likelihoods."""


def prompts_of(body: dict[str, Any]) -> list[list[int]]:
    """A flat list of ids is one prompt."""
    prompt = body["prompt"]
    return [prompt] if isinstance(prompt[0], int) else prompt


class Engine:
    """Serves a character tokenizer and echoed log-probabilities; rows of a larger batch, and cached ones, move."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, ...]] = set()
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, connection: Connection, request: Request) -> None:
        if request.path == "/tokenizer_info":
            await connection.send(json_message({"eos_token": "\0", "bos_token": None, "chat_template": ""}))
        elif request.path == "/tokenize":
            await connection.send(json_message({"tokens": [ord(c) for c in request.json()["prompt"]]}))
        elif request.path == "/v1/completions":
            await self.score(connection, request)
        else:
            await connection.send(message(404, b"{}"))

    async def score(self, connection: Connection, request: Request) -> None:
        body = request.json()
        self.bodies.append(body)
        bypassed = request.get("x-cache-bypass") is not None
        prompts = [tuple(prompt) for prompt in prompts_of(body)]
        choices = []
        for index, prompt in enumerate(prompts):
            off = 1e-3 * (len(prompts) - 1) + (0.0 if bypassed else 0.125 * (prompt in self.seen))
            values = [None, *(-(zlib.crc32(bytes(prompt[:at])) % 997) / 100 - off for at in range(1, len(prompt) + 1))]
            top = [None if value is None else {"x": value} for value in values]
            choices.append(
                {"index": index, "text": "", "logprobs": {"token_logprobs": values, "top_logprobs": top}},
            )
            if not bypassed:
                self.seen.add(prompt)
        choices.reverse()  # the client sorts by index, so that one is what must be right
        fields = [("X-Cache-Bypass", "applied")] if bypassed else []
        await connection.send(json_message({"id": "c", "object": "text_completion", "choices": choices}, fields=fields))


def loglikelihoods(
    url: str, batch: int, items: list[Item], concurrent: int = 1, model: str = "m"
) -> dict[Item, tuple[float, bool]]:
    """What the harness makes of the items."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    harness = LocalCompletionsAPI(
        model=model,
        base_url=f"{url}/v1/completions",
        tokenizer_backend="remote",
        batch_size=batch,
        num_concurrent=concurrent,
        max_retries=1,
    )
    asked = [Instance(request_type="loglikelihood", doc={}, arguments=item, idx=0) for item in items]
    return dict(zip(items, harness.loglikelihood(asked, disable_tqdm=True), strict=True))


async def answers(url: str, batch: int, items: list[Item], concurrent: int = 1) -> dict[Item, tuple[float, bool]]:
    return await asyncio.to_thread(loglikelihoods, url, batch, items, concurrent)


@pytest.mark.filterwarnings("default::DeprecationWarning")
async def test_the_same_numbers_at_any_batch_size_and_in_any_order(upstream: Upstream) -> None:
    engine = Engine()
    upstream.handler = engine
    shuffled = random.Random(3).sample(ITEMS, len(ITEMS))
    async with running(upstream, require_ack=True) as router:
        through = f"http://127.0.0.1:{router.port}"
        alone = await answers(through, 1, ITEMS)
        sent = sorted(json.dumps({**body, "prompt": prompts_of(body)}) for body in engine.bodies)
        assert len(sent) == len(ITEMS)
        for batch, items, concurrent in ((8, ITEMS, 1), (1, shuffled, 4), (8, shuffled, 2), (1, ITEMS, 1)):
            engine.bodies.clear()
            assert await answers(through, batch, items, concurrent) == alone
            again = sorted(json.dumps({**body, "prompt": prompts_of(body)}) for body in engine.bodies)
            assert again == sent, "each sub-read asks what the single read asked"
        assert upstream.max_reads_overlap == 1
    assert len(alone) == 20
    assert json.loads(sent[0]).keys() == {"model", "prompt", "temperature", "max_tokens", "logprobs", "seed", "echo"}
    straight = [await answers(upstream.url, batch, ITEMS) for batch in (1, 8, 1)]
    assert straight[0] == alone
    assert straight[0] != straight[1] != straight[2] != straight[0], "straight at the engine they must move"
