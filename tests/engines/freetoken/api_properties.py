"""What must hold of the API's and the tokenizer's hooks; each raises if it does not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import torch
from freetoken.message.tokenizer import PromptAdmittedMsg
from freetoken.tokenizer import server as worker

from router.engines.freetoken import wire
from tests.engines.freetoken import hooked
from tests.engines.freetoken.desk import open_desk, tokenizer
from tests.engines.freetoken.standin.model import scores

BYPASS = {"X-Cache-Bypass": "1"}
READ = {"model": "m", "prompt": "which one?", "max_tokens": 1, "temperature": 0, "logprobs": 4}
CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "which?"}],
    "max_tokens": 1,
    "temperature": 0,
    "logprobs": True,
    "top_logprobs": 3,
}


def reference(text: str) -> list[tuple[int, float]]:
    """Token ids and log-probabilities by our own arithmetic, best first, ties by id; the pass is the prompt alone."""
    ids = tokenizer().encode(text)
    logits = scores(ids, len(ids), 0).double()
    values = logits - torch.logsumexp(logits, 0)
    return sorted(enumerate(values.tolist()), key=lambda pair: (-pair[1], pair[0]))


def same(ids: list[int], values: list[float], expected: list[tuple[int, float]]) -> None:
    assert ids == [token for token, _ in expected]
    assert all(abs(got - want) < 1e-5 for got, (_, want) in zip(values, expected, strict=True))


async def completion_reads_are_answered() -> None:
    async with open_desk() as (client, _):
        answer = await client.post("/v1/completions", json=READ, headers=BYPASS)
        assert answer.status_code == 200, answer.text
        assert answer.headers["X-Cache-Bypass"] == "applied"
        body = answer.json()
        (choice,) = body["choices"]
        found = choice["logprobs"]
        expected = reference("which one?")[:4]
        same(found["top_token_ids"][0], found["top_token_logprobs"][0], expected)
        same(found["token_ids"], found["token_logprobs"], expected[:1])
        assert found["tokens"] == [choice["text"]] == [tokenizer().decode([expected[0][0]])]
        assert choice["finish_reason"] == "length"
        assert body["usage"] == {
            "prompt_tokens": 10,
            "completion_tokens": 1,
            "total_tokens": 11,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        assert not hooked.READS.by_uid


async def chat_reads_are_answered() -> None:
    async with open_desk() as (client, _):
        answer = await client.post("/v1/chat/completions", json=CHAT, headers=BYPASS)
        assert answer.status_code == 200, answer.text
        assert answer.headers["X-Cache-Bypass"] == "applied"
        (choice,) = answer.json()["choices"]
        (entry,) = choice["logprobs"]["content"]
        expected = reference("<|im_start|>user\nwhich?<|im_end|>\n<|im_start|>assistant\n")[:3]
        top = entry["top_logprobs"]
        same([one["token_id"] for one in top], [one["logprob"] for one in top], expected)
        assert entry["token"] == choice["message"]["content"] == top[0]["token"]
        assert bytes(entry["bytes"]).decode() == entry["token"]


async def lists_are_sent_together() -> None:
    """All prompts of a list are in the engine before the first is answered; the answers keep their order."""
    async with open_desk() as (client, desk):
        desk.hold.clear()
        call = client.post("/v1/completions", json={**READ, "prompt": ["one", "two", "three"]}, headers=BYPASS)

        async def release() -> None:
            while len(desk.tasks) < 3:
                await asyncio.sleep(0.01)
            desk.hold.set()

        answer, _ = await asyncio.wait_for(asyncio.gather(call, release()), 10)
        choices = answer.json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2]
        for choice, prompt in zip(choices, ("one", "two", "three"), strict=True):
            found = choice["logprobs"]
            same(found["top_token_ids"][0], found["top_token_logprobs"][0], reference(prompt)[:4])
        assert answer.json()["usage"]["prompt_tokens"] == 11


async def counters_are_served() -> None:
    counters = {"read_passes": 7, "evicted_kv_tokens.read": 5, "evicted_kv_tokens.chat": 6}
    message = wire.ReadPromptAdmittedMsg(uid=1, prompt_tokens=3, counters=counters)
    reply = worker._prompt_admitted_reply(message)
    assert reply.counters == counters
    assert reply.prompt_tokens_delta == 3
    assert type(worker._prompt_admitted_reply(PromptAdmittedMsg(uid=1, prompt_tokens=3))) is worker.UserReply
    async with open_desk():
        from freetoken.server.stats import StatsTracker

        StatsTracker().observe(reply)
        assert hooked.READS.totals == counters


async def other_requests_are_untouched() -> None:
    """No header: log-probabilities, no acknowledgement. Not a read: as FreeToken does it, header or not."""
    async with open_desk() as (client, desk):
        plain = await client.post("/v1/completions", json=READ)
        assert plain.json()["choices"][0]["logprobs"] is not None
        assert "X-Cache-Bypass" not in plain.headers
        for changed in ({"max_tokens": 2}, {"max_tokens": 1, "logprobs": None}):
            answer = await client.post("/v1/completions", json={**READ, **changed}, headers=BYPASS)
            assert "X-Cache-Bypass" not in answer.headers
            if "logprobs" in changed:
                assert answer.json()["choices"][0]["logprobs"] is None
            else:
                assert (answer.status_code, answer.json()["error"]["message"]) == (400, "logprobs is not supported")
        for changed in ({"max_tokens": 3}, {"logprobs": False}):
            answer = await client.post("/v1/chat/completions", json={**CHAT, **changed}, headers=BYPASS)
            assert answer.status_code == 200
            assert "logprobs" not in answer.json()["choices"][0]
            assert "X-Cache-Bypass" not in answer.headers
        assert not hooked.READS.by_uid
        assert not desk.aborted


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
