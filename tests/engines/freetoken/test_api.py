"""The API's hooks in this process: what is answered, what is refused, what happens when a client leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import freetoken.server.api_server as server
import pytest
from freetoken.server import openai_api
from freetoken.server.api_models import CompletionRequest

from router.engines.freetoken import api, launch
from router.engines.freetoken.options import Options
from tests.engines.freetoken import api_properties, hooked
from tests.engines.freetoken.api_properties import BYPASS, CHAT, READ, events
from tests.engines.freetoken.desk import open_desk

pytestmark = pytest.mark.engines


async def test_a_completion_read_has_its_log_probabilities() -> None:
    await api_properties.completion_reads_are_answered()


async def test_a_chat_read_has_its_log_probabilities() -> None:
    await api_properties.chat_reads_are_answered()


async def test_the_prompts_of_a_list_are_sent_together() -> None:
    await api_properties.lists_are_sent_together()


async def test_counters_reach_the_api() -> None:
    await api_properties.counters_are_served()


async def test_what_is_no_read_is_untouched() -> None:
    await api_properties.other_requests_are_untouched()


async def test_the_header_decides_and_the_flag_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooked.READS, "options", Options(isolate_all=True, bypass_header="X-Other"))
    async with open_desk() as (client, _):
        isolated = await client.post("/v1/completions", json=READ)
        assert isolated.headers["X-Other"] == "applied"
        not_isolated = await client.post("/v1/completions", json=READ, headers={"X-Other": "0"})
        assert "X-Other" not in not_isolated.headers
        assert not_isolated.json()["choices"][0]["logprobs"] == isolated.json()["choices"][0]["logprobs"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("completions", {"logprobs": 257}, "logprobs must be between 0 and 256"),
        ("completions", {"logprobs": -1}, "logprobs must be between 0 and 256"),
        ("completions", {"n": 2}, "Only n=1 is supported"),
        ("completions", {"echo": True}, "echo is not supported"),
        (
            "completions",
            {"prompt": [1, 2]},
            "OpenAI token-id prompt inputs are not supported; pass text prompt strings instead",
        ),
        ("chat/completions", {"top_logprobs": 300}, "top_logprobs must be between 0 and 256"),
        ("chat/completions", {"n": 2}, "Only n=1 is supported"),
        (
            "chat/completions",
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]}
                ]
            },
            "images are not supported in reads (logprobs with max_tokens 1)",
        ),
    ],
)
async def test_what_a_read_may_not_ask(path: str, body: dict[str, Any], message: str) -> None:
    async with open_desk() as (client, desk):
        answer = await client.post(
            f"/v1/{path}", json={**(READ if path == "completions" else CHAT), **body}, headers=BYPASS
        )
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)
        assert not desk.tasks


async def test_a_streamed_read_is_one_event() -> None:
    async with open_desk() as (client, _):
        whole = (await client.post("/v1/completions", json=READ, headers=BYPASS)).json()
        wanted = {"stream": True, "stream_options": {"include_usage": True}}
        answer = await client.post("/v1/completions", json={**READ, **wanted}, headers=BYPASS)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["X-Cache-Bypass"] == "applied"
        event, usage = events(answer.text)
        assert event["choices"] == whole["choices"]
        assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
        chat = await client.post("/v1/chat/completions", json={**CHAT, "stream": True}, headers=BYPASS)
        (event,) = events(chat.text)
        assert event["object"] == "chat.completion.chunk"
        assert event["choices"][0]["delta"]["role"] == "assistant"
        assert event["choices"][0]["logprobs"]["content"]


class Gone:
    """The request of a client that is not there any more."""

    headers = BYPASS

    async def receive(self) -> dict[str, str]:
        await asyncio.sleep(0.1)
        return {"type": "http.disconnect"}


async def test_a_client_that_leaves_ends_its_reads() -> None:
    async with open_desk() as (_, desk):
        desk.hold.clear()
        request = CompletionRequest(**{**READ, "prompt": ["one", "two"]})
        answer = await openai_api.handle_completion(request, Gone(), server.get_global_state(), {})
        assert answer.status_code == 499
        assert len(desk.aborted) == 2
        assert not hooked.READS.by_uid


async def test_a_cancelled_read_is_aborted() -> None:
    async with open_desk() as (client, desk):
        desk.hold.clear()
        call = asyncio.create_task(client.post("/v1/completions", json=READ, headers=BYPASS))
        while not desk.tasks:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        while not desk.aborted:  # FreeToken sends it a little later
            await asyncio.sleep(0.01)
        assert not hooked.READS.by_uid


async def test_an_answer_without_scores_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_marked", lambda params: params)
    async with open_desk() as (client, _):
        for path, body in (("completions", READ), ("chat/completions", CHAT)):
            answer = await client.post(f"/v1/{path}", json=body, headers=BYPASS)
            assert answer.status_code == 500
            assert "X-Cache-Bypass" not in answer.headers


async def test_a_gone_client_of_chat_reads() -> None:
    from freetoken.server.api_models import ChatCompletionRequest

    async with open_desk() as (_, desk):
        desk.hold.clear()
        answer = await openai_api.handle_chat_completion(
            ChatCompletionRequest(**CHAT), Gone(), server.get_global_state(), {}
        )
        assert answer.status_code == 499
        assert len(desk.aborted) == 1


def test_every_hook_fits_the_installed_freetoken() -> None:
    assert launch.problems() == []


async def test_metrics_text() -> None:
    async with open_desk():
        hooked.READS.totals = {"read_passes": 7, "evicted_kv_tokens.read": 5}
        server.get_global_state().stats.kv_total_pages = 4
        server.get_global_state().stats.kv_used_pages = 1
        text = hooked.READS.metrics().body.decode()
    assert 'logprob_router_engine_evicted_kv_tokens_total{cause="read"} 5\n' in text
    assert "logprob_router_engine_read_passes_total 7\n" in text
    assert "logprob_router_engine_kv_used_ratio 0.25\n" in text
