"""Which bodies are reads: the dialects' values, as the engines coerce them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.reads.detect import Read, detect, model_of
from router.reads.dialects import ROUTES, find

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


def judged(route: str, **members: Any) -> Read | None:
    return detect(ROUTES[route], json.dumps({"model": "m", **members}).encode())


@pytest.mark.parametrize(
    ("route", "members", "is_read"),
    [
        # K01, K02: completions, an integer that 0 and false also set
        (COMPLETIONS, {"max_tokens": 1, "logprobs": 0}, True),
        (COMPLETIONS, {"max_tokens": 1, "logprobs": False}, True),
        (COMPLETIONS, {"max_tokens": 1, "logprobs": 5}, True),
        (COMPLETIONS, {"max_tokens": 1, "logprobs": 5.0}, True),
        (COMPLETIONS, {"max_tokens": 1, "logprobs": None}, False),
        (COMPLETIONS, {"max_tokens": 1}, False),
        # K04: the cap
        (COMPLETIONS, {"max_tokens": 1.0, "logprobs": 1}, True),
        (COMPLETIONS, {"max_tokens": "1", "logprobs": 1}, True),
        (COMPLETIONS, {"max_tokens": " 1 ", "logprobs": 1}, True),
        (COMPLETIONS, {"max_tokens": True, "logprobs": 1}, True),
        (COMPLETIONS, {"max_tokens": 1.5, "logprobs": 1}, False),
        (COMPLETIONS, {"max_tokens": 2, "logprobs": 1}, False),
        (COMPLETIONS, {"max_tokens": "x", "logprobs": 1}, False),
        (COMPLETIONS, {"max_tokens": None, "logprobs": 1}, False),
        (COMPLETIONS, {"max_tokens": [1], "logprobs": 1}, False),
        (COMPLETIONS, {"logprobs": 1}, False),
        (COMPLETIONS, {"logprobs": 1, "max_completion_tokens": 1}, False),
        # K06, K14
        (COMPLETIONS, {"max_tokens": 0, "logprobs": 10, "echo": True}, True),
        (COMPLETIONS, {"max_tokens": 0, "logprobs": 10}, False),
        (COMPLETIONS, {"max_tokens": 1, "prompt_logprobs": 1}, True),
        # K03, K05: chat, a boolean
        (CHAT, {"max_tokens": 1, "logprobs": True}, True),
        (CHAT, {"max_tokens": 1, "logprobs": 1}, True),
        (CHAT, {"max_tokens": 1, "logprobs": "true"}, True),
        (CHAT, {"max_tokens": 1, "logprobs": False}, False),
        (CHAT, {"max_tokens": 1, "logprobs": 0}, False),
        (CHAT, {"max_tokens": 1, "logprobs": None}, False),
        (CHAT, {"max_tokens": 1, "top_logprobs": 5}, False),
        (CHAT, {"max_completion_tokens": 1, "logprobs": True}, True),
        (CHAT, {"max_tokens": 50, "max_completion_tokens": 1, "logprobs": True}, True),
        (CHAT, {"max_tokens": 1, "max_completion_tokens": 50, "logprobs": True}, False),
        (CHAT, {"max_tokens": 1, "max_completion_tokens": None, "logprobs": True}, True),
        (CHAT, {"max_tokens": 1, "prompt_logprobs": 0}, True),
        # vLLM's dispatch by payload
        ("/invocations", {"messages": [], "max_completion_tokens": 1, "logprobs": True}, True),
        ("/invocations", {"prompt": "x", "max_tokens": 1, "logprobs": 0}, True),
        ("/invocations", {"prompt": "x", "max_completion_tokens": 1, "logprobs": 0}, False),
        # Responses
        ("/v1/responses", {"include": ["message.output_text.logprobs"], "max_output_tokens": 1}, True),
        ("/v1/responses", {"top_logprobs": 3, "max_output_tokens": 1}, True),
        ("/v1/responses", {"include": ["other"], "max_output_tokens": 1, "x": "logprobs"}, False),
        ("/v1/responses", {"include": ["message.output_text.logprobs"], "max_output_tokens": 2}, False),
        # vLLM's tokens-in path
        ("/inference/v1/generate", {"sampling_params": {"logprobs": 1, "max_tokens": 1}}, True),
        ("/inference/v1/generate", {"sampling_params": {"logprob_token_ids": [1], "max_tokens": 1}}, True),
        ("/inference/v1/generate", {"sampling_params": {"logprobs": None, "max_tokens": 1}}, False),
        ("/inference/v1/generate", {"sampling_params": {"logprobs": 1, "max_tokens": 2}}, False),
        ("/inference/v1/generate", {"sampling_params": ["logprobs", "max_tokens"]}, False),
        # K10: SGLang, and TGI on the same path
        ("/generate", {"return_logprob": True, "sampling_params": {"max_new_tokens": 1}}, True),
        ("/generate", {"return_logprob": True, "sampling_params": {"max_new_tokens": 0}}, True),
        (
            "/generate",
            {"return_logprob": True, "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 1}]},
            True,
        ),
        (
            "/generate",
            {"return_logprob": True, "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 9}]},
            False,
        ),
        ("/generate", {"return_logprob": [False, True], "sampling_params": {"max_new_tokens": 1}}, True),
        ("/generate", {"return_logprob": True, "sampling_params": []}, False),
        ("/generate", {"return_logprob": True, "max_new_tokens": 1}, False),
        ("/generate", {"return_logprob": False, "sampling_params": {"max_new_tokens": 1}}, False),
        ("/generate", {"inputs": "x", "parameters": {"details": True, "max_new_tokens": 1}}, True),
        ("/generate", {"inputs": "x", "parameters": {"decoder_input_details": True, "max_new_tokens": 1}}, True),
        ("/generate", {"inputs": "x", "parameters": {"top_n_tokens": 5, "max_new_tokens": 1}}, True),
        ("/generate", {"inputs": "x", "parameters": {"top_n_tokens": 0, "max_new_tokens": 1}}, False),
        ("/generate", {"inputs": "x", "parameters": {"details": True, "max_new_tokens": 20}}, False),
        # K09: llama.cpp
        ("/completion", {"n_probs": 3, "n_predict": 1}, True),
        ("/completions", {"n_probs": 3, "n_predict": 0}, True),
        ("/completion", {"n_probs": 0, "n_predict": 1}, False),
        ("/completion", {"n_probs": 3, "n_predict": -1}, False),
        # K11: Ollama
        ("/api/generate", {"logprobs": True, "options": {"num_predict": 1}}, True),
        ("/api/chat", {"logprobs": True, "options": {"num_predict": 2}}, False),
        ("/api/chat", {"logprobs": False, "options": {"num_predict": 1}}, False),
        # whole, and never
        ("/v1/score", {}, True),
        ("/generative_scoring", {"anything": 1}, True),
        ("/v1/messages", {"max_tokens": 1, "logprobs": 1}, False),
    ],
)
def test_what_is_a_read(route: str, members: dict[str, Any], is_read: bool) -> None:
    assert (judged(route, **members) is not None) is is_read


READ1 = b'{"max_tokens":1,"logprobs":1'


@pytest.mark.parametrize(
    ("body", "is_read"),
    [
        # B07: the last duplicate wins, escaped names count
        (b'{"logprobs":1,"max_tokens":50,"max_tokens":1}', True),
        (b'{"logprobs":1,"max_tokens":1,"max_tokens":50}', False),
        (b'{"logprobs":1,"max\\u005ftokens":1}', True),
        (b'{"\\u006cogprobs":1,"max\\u005ftokens":1}', True),
        # B06, wide encodings, B09, and what only Python's parser takes
        (b"\xef\xbb\xbf" + READ1 + b"}", True),
        ((READ1 + b"}").decode().encode("utf-16"), True),
        ((READ1 + b"}").decode().encode("utf-32-le"), True),
        (READ1 + b',"temperature":NaN,"x":-Infinity}', True),
        (READ1 + b',"x":"\\ud800"}', True),
        # B08: hostile
        (b"[" * 100_000 + b'"logprobs" "max_tokens"', False),
        (READ1 + b',"x":' + b"[" * 100_000 + b"}", False),
        (READ1 + b',"x":' + b"1" * 5000 + b"}", False),
        (READ1 + b',"x":"' + b"1" * 5000 + b'"}', True),
        (READ1 + b',"x":"\xff"}', False),
        (READ1 + b',"x":"\xc3\xa9"}', True),
        (READ1 + b"} trailing", False),
        (READ1, False),
        (b'["logprobs","max_tokens"]', False),
        (b'["logprobs","max_tokens",NaN]', False),
        (b"\xff\xfelogprobs max_tokens", False),
        (b"", False),
    ],
)
def test_bodies_that_are_no_plain_json(body: bytes, is_read: bool) -> None:
    assert (detect(ROUTES[COMPLETIONS], body) is not None) is is_read


def test_what_a_read_says_of_itself() -> None:
    read = judged(COMPLETIONS, max_tokens=1, logprobs=1, stream=True, n=3, prompt="x")
    assert read == Read(route=COMPLETIONS, model="m", stream=True, n=3)
    assert judged("/api/generate", logprobs=True, options={"num_predict": 1}).stream  # type: ignore[union-attr]
    assert detect(ROUTES[COMPLETIONS], b'{"model":5,"n":null,"max_tokens":1,"logprobs":1}') == Read(
        route=COMPLETIONS, model=None, stream=False
    )
    assert judged("/v1/decisions").whole  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("prompt", "count"),
    [
        (["a", "b"], 2),
        ([[1, 2], [3]], 2),
        ("a", None),
        (["x"], None),
        ([[1, 2]], None),
        ([15496, 995], None),
        ([], None),
        ([""], None),
        (["", ""], 2),
        ([[]], None),
        ([[], [1]], None),
        (["a", [1]], None),
        ([1, "a"], None),
        ([True], None),
        ([[True], [1]], None),
        ([1.0, 2], None),
        (None, None),
        ({"a": 1}, None),
    ],
)
def test_which_prompts_are_split(prompt: Any, count: int | None) -> None:
    """L02, L03"""
    read = judged(COMPLETIONS, max_tokens=1, logprobs=1, prompt=prompt)
    assert read is not None
    assert (read.prompts.count if read.prompts else None) == count


def test_a_list_in_a_body_that_msgspec_refuses_is_still_split() -> None:
    read = detect(ROUTES[COMPLETIONS], b'{"prompt":["a","b"],"max_tokens":1,"logprobs":1,"t":NaN}')
    assert read is not None
    assert read.prompts is not None
    assert read.prompts.items == (b'"a"', b'"b"')
    read = detect(
        ROUTES["/generate"],
        b'{"text":["a","b"],"sampling_params":[{"max_new_tokens":1},{"max_new_tokens":0}],"return_logprob":true,"t":NaN}',
    )
    assert read is not None
    assert read.prompts is not None
    assert read.prompts.per_prompt == {"sampling_params": (b'{"max_new_tokens":1}', b'{"max_new_tokens":0}')}


@pytest.mark.parametrize(
    ("method", "path", "content_type", "route"),
    [
        ("POST", b"/v1/completions", b"application/json", COMPLETIONS),
        ("POST", b"/v1/completions", b"Application/JSON; charset=utf-8", COMPLETIONS),
        ("POST", b"/v1/%63ompletions", b"application/json", COMPLETIONS),
        ("POST", b"/v1/%2563ompletions", b"application/json", None),
        ("POST", b"//v1/completions", b"application/json", None),
        ("POST", b"/v1/./completions", b"application/json", None),
        ("POST", b"/v1/completions/", b"application/json", None),
        ("POST", b"/v1/completions", b"text/plain", None),
        ("POST", b"/v1/completions", None, None),
        ("GET", b"/v1/completions", b"application/json", None),
        ("POST", b"/v1/embeddings", b"application/json", None),
    ],
)
def test_which_requests_are_inspected(method: str, path: bytes, content_type: bytes | None, route: str | None) -> None:
    found = find(method, path, content_type)
    assert (found.route if found else None) == route


def test_the_model_for_the_label() -> None:
    assert model_of(b'{"model":"m","x":[1]}') == "m"
    assert model_of(b'{"x":1}') is None
    assert model_of(b'{"model":7}') is None
    assert model_of(b"[" * 100_000) is None
    assert model_of(b"no json") is None
