"""List prompts, L01-L14: split into reads, and merged as if one engine call had answered."""

from __future__ import annotations

import asyncio
import json
from time import perf_counter
from typing import Any

import pytest

from tests.support.answers import (
    LAST_CHUNK,
    STREAM_HEAD,
    chunk,
    completion,
    engine,
    gzipping,
    in_turn,
    json_message,
    patched,
    play,
)
from tests.support.client import GEN_BODY, READ1_BODY, completions, post
from tests.support.routers import InProcess, assert_healthy, running, serving
from tests.support.upstream import Connection, Request, Upstream


def body_with(prompt: bytes, body: bytes = READ1_BODY) -> bytes:
    return body.replace(b'"prompt":"hi"', b'"prompt":' + prompt)


async def test_l01_order_and_index(router: InProcess, upstream: Upstream) -> None:
    """L01: three single-prompt requests one after another; choices in order, indices from 0."""
    answer = await router.ask(post("/v1/completions", body_with(b'["a","b","c"]')))
    assert [r.body for r in upstream.requests] == [body_with(b'"%b"' % text) for text in (b"a", b"b", b"c")]
    assert upstream.max_reads_overlap == 1
    choices = answer.json()["choices"]
    assert [(c["index"], c["text"]) for c in choices] == [(0, "a"), (1, "b"), (2, "c")]


@pytest.mark.parametrize("prompt", [b"[15496,995]", b"[[15496,995]]", b'["x"]', b"[ [ 1 , 2 ] ]"])
async def test_l02_one_prompt_is_one_read(router: InProcess, upstream: Upstream, prompt: bytes) -> None:
    """L02: a flat list of tokens, or a list of one, goes whole, and its answer is the engine's."""
    body = body_with(prompt)
    answer = await router.ask(post("/v1/completions", body))
    assert [r.body for r in upstream.requests] == [body]
    assert upstream.requests[0].is_read
    assert answer.body == json.dumps(completion(json.loads(body), 1)).encode()


@pytest.mark.parametrize(
    "prompt", [b"[]", b'[""]', b"[[]]", b'["a",[1]]', b'[1,"a"]', b"[true]", b"[1.0,2]", b"null", b"[[1],[2.5]]"]
)
async def test_l03_only_clean_lists_are_split(router: InProcess, upstream: Upstream, prompt: bytes) -> None:
    """L03: anything else goes whole, and the engine's refusal comes back unchanged."""
    upstream.handler = play(json_message({"error": {"message": "bad prompt"}}, 400))
    answer = await router.ask(post("/v1/completions", body_with(prompt)))
    assert (answer.status, answer.json()) == (400, {"error": {"message": "bad prompt"}})
    assert [r.body for r in upstream.requests] == [body_with(prompt)]


def replies(*members: dict[str, Any]) -> Any:
    return in_turn(*(play(json_message({**completion({"prompt": "x"}, n), **m})) for n, m in enumerate(members)))


async def test_l04_usage_is_summed(router: InProcess, upstream: Upstream) -> None:
    """L04, D8: tokens add up, cached ones too; details that nobody gave are not invented."""

    def usage(prompt: int, details: Any = None) -> dict[str, Any]:
        counts = {"prompt_tokens": prompt, "completion_tokens": 1, "total_tokens": prompt + 1}
        return {"usage": counts if details is None else {**counts, "prompt_tokens_details": details}}

    upstream.handler = replies(usage(3, {"cached_tokens": 0}), usage(5, {"cached_tokens": 16}))
    merged = (await router.ask(completions(prompt=["a", "b"]))).json()["usage"]
    assert merged == {
        "prompt_tokens": 8,
        "completion_tokens": 2,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    upstream.handler = replies(usage(3), usage(5))
    merged = (await router.ask(completions(prompt=["a", "b"]))).json()["usage"]
    assert merged.get("prompt_tokens_details") is None
    upstream.handler = replies(
        {"usage": {**usage(3)["usage"], "prompt_tokens_details": None}},
        {"usage": {**usage(5)["usage"], "prompt_tokens_details": None}},
    )
    merged = (await router.ask(completions(prompt=["a", "b"]))).json()["usage"]
    assert merged.get("prompt_tokens_details") is None


async def test_l05_several_choices_for_each_prompt(router: InProcess, upstream: Upstream) -> None:
    """L05: index = i * n + j; n and best_of are kept in each sub-read."""
    answer = await router.ask(completions(prompt=["a", "b"], n=2, best_of=4))
    assert [(c["index"], c["text"]) for c in answer.json()["choices"]] == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]
    assert [(r.json()["n"], r.json()["best_of"]) for r in upstream.requests] == [(2, 4), (2, 4)]


async def test_l06_request_ids_do_not_collide(router: InProcess, upstream: Upstream) -> None:
    """L06: sub-reads have ids of their own; the client gets its own id back; a whole read keeps its id."""
    answer = await router.ask(completions("X-Request-Id: r1", prompt=["a", "b", "c"]))
    assert [r.get("x-request-id") for r in upstream.requests] == [b"r1-0", b"r1-1", b"r1-2"]
    assert answer.get("x-request-id") == b"r1"
    assert isinstance(answer.json()["id"], str)
    answer = await router.ask(completions("X-Request-Id: r2", prompt=["a"]))
    assert upstream.requests[-1].get("x-request-id") == b"r2"
    assert answer.get("x-request-id") == b"r2"
    await router.ask(completions(prompt=["a", "b"]))
    assert all(r.get("x-request-id") is None for r in upstream.requests[-2:])


async def test_l07_the_envelope_is_the_first_answers(router: InProcess, upstream: Upstream) -> None:
    """L07: id, model, created, fingerprint and unknown members from the first; one request's timings are dropped."""
    timings = {"metrics": {"ttft": 1}, "timings": {"prompt_ms": 2.5}}
    upstream.handler = replies(
        {"system_fingerprint": "fp0", "vendor": {"a": 1}, **timings},
        {"system_fingerprint": "fp1", "vendor": {"a": 2}, "late": 1, **timings},
    )
    merged = (await router.ask(completions(prompt=["a", "b"]))).json()
    assert (merged["id"], merged["created"], merged["object"]) == ("cmpl-0", 1700000000, "text_completion")
    assert (merged["system_fingerprint"], merged["vendor"]) == ("fp0", {"a": 1})
    assert "late" not in merged
    assert "metrics" not in merged


async def test_l08_compressed_sub_answers_are_merged(router: InProcess, upstream: Upstream) -> None:
    """L08: an engine that compresses unasked: the merge is right, the client gets identity with its length."""
    upstream.handler = gzipping
    answer = await router.ask(completions("Accept-Encoding: gzip", prompt=["a", "b"]))
    assert [c["text"] for c in answer.json()["choices"]] == ["a", "b"]
    assert answer.get("content-encoding") is None
    assert answer.get("content-length") == str(len(answer.body)).encode()


async def test_l09_choices_keep_their_text(router: InProcess, upstream: Upstream) -> None:
    """L09: numbers, offsets and leading nulls of each choice are the engine's own characters."""
    choice = (
        b'{"text":"\\u00e9" , "index":0,"logprobs":{"token_logprobs":[null,-0.10,-1e-05,-0.30000000000000004],'
        b'"text_offset":[0,3],"top_logprobs":[null]},"finish_reason":"length","zz":12345678901234567890}'
    )
    reply = b'{"id":"c","object":"text_completion","created":1,"model":"m","choices":[' + choice + b"]}"
    upstream.handler = play(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(reply) + reply
    )
    answer = await router.ask(completions(prompt=["a", "b"], echo=True))
    assert choice in answer.body
    assert choice.replace(b'"index":0', b'"index":1') in answer.body


def sub_stream(number: int, *, usage: bool) -> Any:
    """One sub-read's stream: its events cut across segments, its own id."""
    shared = f'{{"id":"cmpl-{number}","object":"text_completion","created":{number},"model":"m",'
    events = [f'data: {shared}"choices":[{{"index":0,"text":"{"ab"[number]}{n}","logprobs":null}}]}}' for n in (0, 1)]
    if usage:
        counts = f'{{"prompt_tokens":{3 + number},"completion_tokens":1,"total_tokens":{4 + number}}}'
        events.append(f'data: {shared}"choices":[],"usage":{counts}}}')
    data = "\n\n".join([*events, "data: [DONE]", ""]).encode()
    return play(STREAM_HEAD, chunk(data[:40]), 0.02, chunk(data[40:90]), 0.02, chunk(data[90:]), LAST_CHUNK)


@pytest.mark.parametrize("usage", [False, True])
async def test_l10_streams_are_joined(router: InProcess, upstream: Upstream, usage: bool) -> None:
    """L10, D5: one after another, indices rewritten, one id, one summed usage event, one `[DONE]` at the end."""
    upstream.handler = in_turn(sub_stream(0, usage=usage), sub_stream(1, usage=usage))
    options = {"stream_options": {"include_usage": True}} if usage else {}
    answer = await router.ask(completions(prompt=["a", "b"], stream=True, **options))
    assert answer.whole
    assert answer.get("content-type") == b"text/event-stream"
    events = [event.removeprefix("data: ") for event in answer.body.decode().split("\n\n") if event]
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    parsed = [json.loads(event) for event in events[:-1]]
    assert {event["id"] for event in parsed} == {"cmpl-0"}
    pieces = [(c["index"], c["text"]) for event in parsed for c in event["choices"]]
    assert pieces == [(0, "a0"), (0, "a1"), (1, "b0"), (1, "b1")]
    totals = [event["usage"] for event in parsed if event.get("usage")]
    assert totals == ([{"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}] if usage else [])
    assert upstream.max_reads_overlap == 1
    assert all(r.json()["stream"] is True for r in upstream.requests)


async def test_l10_a_broken_sub_stream_breaks_the_whole(router: InProcess, upstream: Upstream) -> None:
    """L10, S03: an abnormal end of one is the abnormal end of all; no `[DONE]` is made up."""
    upstream.handler = in_turn(sub_stream(0, usage=False), play(STREAM_HEAD, chunk(b'data: {"cho'), 0.02, "close"))
    answer = await router.ask(completions(prompt=["a", "b", "c"], stream=True))
    assert answer.status == 200
    assert not answer.whole
    assert b"[DONE]" not in answer.body
    assert len(upstream.requests) == 2
    await router.settled()


async def test_l11_one_error_is_the_whole_answer(router: InProcess, upstream: Upstream) -> None:
    """L11, D4: a failing sub-read's status, fields and body; the rest is not sent; the next read starts at once."""
    failure = b'HTTP/1.1 500 Oh No\r\nContent-Type: text/odd\r\nX-Why: y\r\nContent-Length: 13\r\n\r\n{"error":"x"}'
    upstream.handler = in_turn(engine, play(failure), engine)
    for stream in (False, True):
        upstream.requests.clear()
        upstream.handler = in_turn(play(failure), engine) if stream else in_turn(engine, play(failure), engine)
        members = {"stream": True} if stream else {}
        answer = await router.ask(completions(prompt=["a", "b", "c"], **members))
        assert (answer.status, answer.reason, answer.body) == (500, b"Oh No", b'{"error":"x"}')
        assert (answer.get("content-type"), answer.get("x-why")) == (b"text/odd", b"y")
        assert len(upstream.requests) == (1 if stream else 2)
        await assert_healthy(router)


async def test_l12_two_thousand_prompts() -> None:
    """L12: a list of 2000 is served in bounded memory, and the health check answers throughout."""
    async with Upstream() as upstream, serving(upstream) as router:
        await router.ask(completions())
        before = router.rss
        listing = asyncio.create_task(router.ask(completions(prompt=[f"prompt {n}" for n in range(2000)]), 60))
        slowest = 0.0
        while not listing.done():
            began = perf_counter()
            assert (await router.admin("/livez")).status == 200
            slowest = max(slowest, perf_counter() - began)
            assert router.rss - before < 100
            await asyncio.sleep(0.05)
        choices = (await listing).json()["choices"]
        assert [c["index"] for c in choices] == list(range(2000))
        assert slowest < 0.25
        assert len(upstream.requests) == 2001


async def test_l12_lists_over_the_cap_are_refused(upstream: Upstream) -> None:
    """L12: above --max-list-prompts the answer is 413, and nothing is sent."""
    async with running(upstream, max_list_prompts=3) as router:
        assert (await router.ask(completions(prompt=["a", "b", "c"]))).status == 200
        answer = await router.ask(completions(prompt=["a", "b", "c", "d"]))
        assert answer.status == 413
        assert answer.json()["error"]["type"] == "router_error"
        assert len(upstream.requests) == 3
        await assert_healthy(router)


async def test_l13_a_generation_with_a_list_passes(router: InProcess, upstream: Upstream) -> None:
    """L13: a list that is no read is the engine's own to split."""
    body = body_with(b'["a","b"]', GEN_BODY)
    assert (await router.ask(post("/v1/completions", body))).status == 200
    assert [r.body for r in upstream.requests] == [body]
    assert not upstream.requests[0].is_read


async def test_l14_every_member_is_kept_as_it_was_written(router: InProcess, upstream: Upstream) -> None:
    """L14: user, seed, cache_salt, priority and unknown members have the same text in every sub-read."""
    body = (
        b'{ "user" : "u\\u00e9","seed":12345678901234567890, "cache_salt":"s","priority":-0, "prompt" : ["a" ,\n"b"]'
        b' ,"max_tokens":1e0,"logprobs":1,"vendor":{"prompt":["x"],"z":1.0}}'
    )
    assert (await router.ask(post("/v1/completions", body))).status == 200
    assert [r.body for r in upstream.requests] == [body.replace(b'["a" ,\n"b"]', text) for text in (b'"a"', b'"b"')]


async def test_a_list_has_the_label_of_its_weakest(router: InProcess, upstream: Upstream) -> None:
    """Section 6 of the design: one sub-read without an acknowledgement makes the whole serial."""
    upstream.handler = patched
    answer = await router.ask(completions(prompt=["a", "b"]))
    assert answer.get("x-read-isolation") == b"engine"
    upstream.handler = in_turn(patched, engine, patched)
    answer = await router.ask(completions(prompt=["a", "b", "c"]))
    assert answer.get("x-read-isolation") == b"serial"
    timing = answer.get("server-timing") or b""
    assert timing.startswith(b"queue;dur=")
    assert b", engine;dur=" in timing


async def test_lists_of_other_dialects(router: InProcess, upstream: Upstream) -> None:
    """Section 5 of the design: llama.cpp's and SGLang's lists are split and answered as their engines would."""

    async def native(connection: Connection, request: Request) -> None:
        prompt = request.json().get("prompt") or request.json().get("text")
        await connection.send(json_message({"content": prompt, "index": 0}))

    upstream.handler = native
    answer = await router.ask(post("/completion", b'{"prompt":["a","b"],"n_predict":1,"n_probs":3}'))
    assert [r.json()["prompt"] for r in upstream.requests] == ["a", "b"]
    assert [item["content"] for item in answer.json()] == ["a", "b"]
    upstream.requests.clear()
    body = b'{"text":["a","b"],"return_logprob":true,"sampling_params":{"max_new_tokens":1}}'
    answer = await router.ask(post("/generate", body))
    assert [r.json()["text"] for r in upstream.requests] == ["a", "b"]
    assert [item["content"] for item in answer.json()] == ["a", "b"]
