"""Which requests are reads, K01-K14, through the wire: what queues, and what passes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support.answers import held, play
from tests.support.client import post
from tests.support.routers import InProcess
from tests.support.upstream import Upstream

V1 = "/v1/completions"
CHAT = "/v1/chat/completions"
ABSENT: Any = object()


def completion(**members: Any) -> dict[str, Any]:
    body = {"model": "m", "prompt": "hi", "max_tokens": 1, "logprobs": 1, **members}
    return {name: value for name, value in body.items() if value is not ABSENT}


def chat(**members: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **members}
    return {name: value for name, value in body.items() if value is not ABSENT}


async def is_read(router: InProcess, path: str, body: dict[str, Any] | str) -> bool:
    """Send it twice at once. Reads are labelled and never overlap at the engine; all else meets there, untouched."""
    upstream = router.upstream
    raw = (body if isinstance(body, str) else json.dumps(body)).encode()
    before = len(upstream.requests)
    upstream.handler = held(0.05)
    answers = await asyncio.gather(*(router.ask(post(path, raw, "X-A: 1")) for _ in range(2)))
    assert {answer.status for answer in answers} == {200}
    first, second = upstream.requests[before:]
    assert first.is_read is second.is_read
    for arrived in (first, second):
        assert arrived.body == raw
        assert arrived.target == path.encode()
        assert arrived.get("content-type") == b"application/json"
        assert arrived.get("x-a") == b"1"
        assert arrived.all("x-cache-bypass") == ([b"1"] if arrived.is_read else [])
    assert [a.get("x-read-isolation") for a in answers] == [b"serial" if first.is_read else None] * 2
    assert first.answered_at is not None
    assert (second.head_at >= first.answered_at) is first.is_read
    assert upstream.max_reads_overlap <= 1
    return first.is_read


@pytest.mark.parametrize(("logprobs", "read"), [(0, True), (5, True), (5.0, True), (None, False), (ABSENT, False)])
async def test_k01_zero_logprobs_are_set(router: InProcess, logprobs: Any, read: bool) -> None:
    """K01: on completions 0 is a request for the chosen token's log-probability; null is none."""
    assert await is_read(router, V1, completion(logprobs=logprobs)) is read


@pytest.mark.parametrize("logprobs", ["5", []])
async def test_k02_wrong_types_are_the_engines_to_refuse(router: InProcess, upstream: Upstream, logprobs: Any) -> None:
    """K02: the engine's 400 arrives unchanged, whether it was queued or not."""
    refusal = b'HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"object": 1}'
    upstream.handler = play(refusal)
    body = json.dumps(completion(logprobs=logprobs)).encode()
    answer = await router.ask(post(V1, body))
    assert (answer.status, answer.body) == (400, b'{"object": 1}')
    assert upstream.requests[0].body == body


@pytest.mark.parametrize(
    ("logprobs", "read"), [(True, True), (1, True), ("true", True), (False, False), (0, False), (None, False)]
)
async def test_k03_chat_takes_a_truth_value(router: InProcess, logprobs: Any, read: bool) -> None:
    """K03: on chat, logprobs is a boolean in the forms that the engine coerces."""
    assert await is_read(router, CHAT, chat(logprobs=logprobs)) is read


async def test_k03_top_logprobs_alone_are_no_request(router: InProcess) -> None:
    """K03: top_logprobs without logprobs asks for nothing."""
    assert not await is_read(router, CHAT, chat(top_logprobs=5))


@pytest.mark.parametrize(
    ("cap", "read"),
    [("1.0", True), ('"1"', True), ("1e0", True), ("1.5", False), ("2", False), ("null", False), (None, False)],
)
async def test_k04_the_cap_is_read_as_the_engine_coerces_it(router: InProcess, cap: str | None, read: bool) -> None:
    """K04: 1.0, "1" and 1e0 are one token; absent or null is the engine's 16."""
    member = "" if cap is None else f',"max_tokens":{cap}'
    assert await is_read(router, V1, '{"prompt":"hi","logprobs":1' + member + "}") is read


@pytest.mark.parametrize(
    ("old", "new", "read"), [(ABSENT, 1, True), (50, 1, True), (1, 50, False), (1, None, True), (50, None, False)]
)
async def test_k05_on_chat_the_newer_cap_wins(router: InProcess, old: Any, new: Any, read: bool) -> None:
    """K05: max_completion_tokens, unless it is null."""
    assert await is_read(router, CHAT, chat(logprobs=True, max_tokens=old, max_completion_tokens=new)) is read


async def test_k05_completions_ignore_the_newer_cap(router: InProcess) -> None:
    """K05: on completions max_completion_tokens means nothing."""
    assert not await is_read(router, V1, completion(max_tokens=ABSENT, max_completion_tokens=1))
    assert await is_read(router, V1, completion(max_completion_tokens=50))


@pytest.mark.parametrize(("echo", "read"), [(True, True), (False, False), (ABSENT, False)])
async def test_k06_echo_scoring_generates_nothing(router: InProcess, echo: Any, read: bool) -> None:
    """K06, D1: echo with logprobs and no token to generate is a read."""
    assert await is_read(router, V1, completion(max_tokens=0, logprobs=10, echo=echo)) is read


async def test_k07_lm_evals_payload_is_two_sub_reads(router: InProcess, upstream: Upstream) -> None:
    """K07: a list of token lists is split; each sub-read keeps the other members, and the lengths come back."""
    body = b'{"model":"m","prompt":[[1,2,3],[4,5]],"temperature":0,"max_tokens":1,"logprobs":1,"seed":1234,"echo":true}'
    answer = await router.ask(post(V1, body))
    assert [r.body for r in upstream.requests] == [
        body.replace(b"[[1,2,3],[4,5]]", b"[1,2,3]"),
        body.replace(b"[[1,2,3],[4,5]]", b"[4,5]"),
    ]
    assert all(r.is_read for r in upstream.requests)
    assert upstream.max_reads_overlap == 1
    lengths = [len(choice["logprobs"]["token_logprobs"]) for choice in answer.json()["choices"]]
    assert lengths == [4, 3]


async def test_k08_choices_of_one_prompt_stay_together(router: InProcess, upstream: Upstream) -> None:
    """K08: n and best_of are one request with n choices."""
    assert await is_read(router, V1, completion(n=3, best_of=3))
    answer = await router.ask(post(V1, json.dumps(completion(n=3)).encode()))
    assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1, 2]
    assert len(upstream.requests) == 3


@pytest.mark.parametrize(("probs", "predict", "read"), [(3, 1, True), (3, 0, True), (0, 1, False), (3, -1, False)])
@pytest.mark.parametrize("path", ["/completion", "/completions"])
async def test_k09_llama_cpps_own_dialect(router: InProcess, path: str, probs: int, predict: int, read: bool) -> None:
    """K09: n_probs and n_predict."""
    assert await is_read(router, path, {"prompt": "hi", "n_predict": predict, "n_probs": probs}) is read


async def test_k10_sglangs_own_dialect(router: InProcess) -> None:
    """K10: the cap is nested in sampling_params; a list of those is no error."""
    body: dict[str, Any] = {"input_ids": [[1, 2]], "return_logprob": True, "sampling_params": {"max_new_tokens": 1}}
    assert await is_read(router, "/generate", body)
    assert not await is_read(router, "/generate", {**body, "sampling_params": {"max_new_tokens": 8}})
    await is_read(router, "/generate", {**body, "sampling_params": [{"max_new_tokens": 1}]})


async def test_k11_ollamas_own_dialect_streams_by_default(router: InProcess, upstream: Upstream) -> None:
    """K11: num_predict in options; its lines of JSON arrive unchanged."""
    body = {"model": "m", "prompt": "x", "logprobs": True, "options": {"num_predict": 1}}
    assert await is_read(router, "/api/generate", body)
    lines = b'{"response":"a","done":false}\n{"response":"","done":true}\n'
    upstream.handler = play(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"%x\r\n%b\r\n0\r\n\r\n" % (len(lines), lines)
    )
    answer = await router.ask(post("/api/generate", json.dumps(body).encode()))
    assert (answer.body, answer.whole) == (lines, True)
    assert answer.get("x-read-isolation") == b"serial"


async def test_k12_pings_are_no_reads(router: InProcess) -> None:
    """K12: one token without log-probabilities."""
    assert not await is_read(router, V1, completion(logprobs=ABSENT))
    assert not await is_read(router, CHAT, chat())


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/models", "/tokenize", "/v1/files", "/v2/x"])
async def test_k13_other_paths_are_not_inspected(router: InProcess, path: str) -> None:
    """K13: the same body elsewhere passes."""
    assert not await is_read(router, path, completion())


async def test_k13_invocations_dispatch_by_payload(router: InProcess) -> None:
    """K13: what vLLM would hand on to completions or chat is read as those are."""
    assert await is_read(router, "/invocations", completion())
    assert await is_read(router, "/invocations", chat(logprobs=True))
    assert not await is_read(router, "/invocations", chat(logprobs=0))
    assert not await is_read(router, "/invocations", completion(max_tokens=2))


@pytest.mark.parametrize("path", ["/v1/completions/", "//v1/completions", "/v1/./completions", "/v1/completions/x"])
async def test_k13_paths_are_not_cleaned(router: InProcess, path: str) -> None:
    """K13: what the engine would not route to completions is not taken for it."""
    assert not await is_read(router, path, completion())


@pytest.mark.parametrize("path", ["/v1/completions?api-version=1", "/v1/%63ompletions", "/v1%2Fcompletions?x"])
async def test_k13_paths_are_decoded_once(router: InProcess, path: str) -> None:
    """K13: a query and percent-encoding do not hide a read; the target arrives as it was."""
    assert await is_read(router, path, completion())


async def test_k14_prompt_logprobs_are_scoring(router: InProcess) -> None:
    """K14, D10: prompt_logprobs without logprobs."""
    assert await is_read(router, V1, completion(logprobs=ABSENT, prompt_logprobs=1))
    assert await is_read(router, CHAT, chat(prompt_logprobs=0))
    assert not await is_read(router, V1, completion(logprobs=ABSENT, prompt_logprobs=None))


@pytest.mark.parametrize("path", ["/v1/systemone", "/v1/decisions", "/generative_scoring", "/v1/score"])
async def test_decision_endpoints_take_a_turn(router: InProcess, path: str) -> None:
    """Section 5 of the design: whatever they are asked, they run reads, and go whole."""
    assert await is_read(router, path, {"model": "m", "prompt": ["a", "b"]})


async def test_other_dialects(router: InProcess) -> None:
    """Section 5 of the design: the responses API, vLLM's generate and TGI's."""
    responses = {"input": "x", "max_output_tokens": 1, "include": ["message.output_text.logprobs"]}
    assert await is_read(router, "/v1/responses", responses)
    assert not await is_read(router, "/v1/responses", {**responses, "include": []})
    tokens = {"token_ids": [1], "sampling_params": {"max_tokens": 1, "logprobs": 0}}
    assert await is_read(router, "/inference/v1/generate", tokens)
    assert await is_read(router, "/generate", {"inputs": "x", "parameters": {"max_new_tokens": 1, "details": True}})
