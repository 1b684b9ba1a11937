"""AnyJev's two clients, unmodified: what they send reaches the engine as they sent it, one read at a time."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from typing import Any

import pytest

from tests.support.answers import json_message
from tests.support.routers import running
from tests.support.upstream import Connection, Request, Upstream

IDS = {"A": 11, "B": 22}


class Encoded:
    def __init__(self, ids: list[int]) -> None:
        self.input_ids = ids


class Tokenizer:
    """A tokenizer in miniature: a character is a token."""

    def __call__(self, text: str, **_: object) -> Encoded:
        return Encoded([ord(c) for c in text])

    def decode(self, ids: list[int]) -> str:
        return next(label for label, number in IDS.items() if number == ids[0])

    def convert_ids_to_tokens(self, number: int) -> str:
        return self.decode([number])


async def scoring(connection: Connection, request: Request) -> None:
    """Scores that depend on the prompt, keyed as the request asks."""
    body = request.json()
    size = len(body["prompt"])
    by_id = body.get("return_tokens_as_token_ids")
    top = {f"token_id:{number}" if by_id else label: -size / number for label, number in IDS.items()}
    choice = {"index": 0, "text": "A", "logprobs": {"top_logprobs": [top]}}
    await connection.send(json_message({"id": "c", "choices": [choice]}, fields=[("X-Cache-Bypass", "applied")]))


async def test_vllm_backend(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers: Any = types.ModuleType(
        "transformers"
    )  # only its tokenizer is wanted, and a real one is a large download
    transformers.AutoTokenizer = types.SimpleNamespace(from_pretrained=lambda name: Tokenizer())
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    from anyjev.backends.vllm import VLLMBackend

    upstream.handler = scoring
    prompts = [f"{'x' * n}?" for n in range(1, 9)]
    async with running(upstream, require_ack=True) as router:
        backend = VLLMBackend(f"http://127.0.0.1:{router.port}", "m", workers=8)
        found = await asyncio.to_thread(backend.next_token_logprobs, prompts, [[11, 22]] * 8)
    assert [list(scores) for scores in found] == [[-len(p) / 11, -len(p) / 22] for p in prompts]
    assert upstream.max_reads_overlap == 1
    for request in upstream.reads:
        body = request.json()
        assert body == {
            "model": "m",
            "prompt": body["prompt"],
            "max_tokens": 1,
            "temperature": 0.0,
            "logprobs": 2,
            "allowed_token_ids": [11, 22],
        }
        assert request.get("authorization") == b"Bearer EMPTY"
        assert request.body == json.dumps(body).encode()


async def test_tacit_s_server_engine(upstream: Upstream) -> None:
    from anyjev.tacit import ServerEngine

    upstream.handler = scoring
    async with running(upstream) as router:
        engine = ServerEngine(f"http://127.0.0.1:{router.port}", "m", Tokenizer(), api_key="k")
        found = await asyncio.to_thread(engine.read, ["ab", "abcd", "abcdefgh"], [[11, 22]] * 3)
    assert len(found) == 3
    assert upstream.max_reads_overlap == 1
    assert [request.json()["prompt"] for request in upstream.reads] == [
        [ord(c) for c in text] for text in ("ab", "abcd", "abcdefgh")
    ]
    for request in upstream.reads:
        body = request.json()
        assert body["return_tokens_as_token_ids"] is True
        assert body["logprobs"] == 20
        assert body["max_tokens"] == 1
    spread = [scores[1] - scores[0] for scores in found]
    assert spread == sorted(spread), "the answers came back in another order"
