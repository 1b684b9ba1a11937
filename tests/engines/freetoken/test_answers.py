from __future__ import annotations

import json
from typing import Any

from router.engines.freetoken.answers import LEAST, chat_logprobs, completion_logprobs, usage


def read(ids: list[int], scores: list[float], tokens: list[str]) -> dict[str, Any]:
    return {"ids": ids, "scores": scores, "tokens": tokens, "cached": 2, "isolated": True}


def test_a_completion() -> None:
    found = completion_logprobs(read([7, 7, 9], [-0.5, -0.5, -2.0], ["a", "a", "b"]), as_ids=False)
    assert found == {
        "tokens": ["a"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"a": -0.5, "b": -2.0}],
        "text_offset": [0],
        "token_ids": [7],
        "top_token_ids": [[7, 9]],
        "top_token_logprobs": [[-0.5, -2.0]],
    }


def test_the_sampled_token_is_listed_although_it_is_not_among_the_best() -> None:
    found = completion_logprobs(read([3, 7, 9], [-4.0, -0.5, -2.0], ["z", "a", "b"]), as_ids=False)
    assert list(found["top_logprobs"][0].items()) == [("a", -0.5), ("b", -2.0), ("z", -4.0)]
    assert found["top_token_ids"] == [[7, 9]]


def test_no_alternatives() -> None:
    found = completion_logprobs(read([3], [-4.0], ["z"]), as_ids=False)
    assert found["top_logprobs"] == [{"z": -4.0}]
    assert found["top_token_ids"] == [[3]]
    assert found["top_token_logprobs"] == [[-4.0]]


def test_tokens_with_the_same_text_are_all_kept() -> None:
    half = "\ufffd"
    found = completion_logprobs(read([7, 7, 8, 9], [-0.5, -0.5, -1.0, -2.0], [half, half, half, "b"]), as_ids=False)
    assert found["top_logprobs"] == [{half: -0.5, "token_id:8": -1.0, "b": -2.0}]


def test_names_by_id() -> None:
    found = completion_logprobs(read([7, 7, 9], [-0.5, -0.5, -2.0], ["a", "a", "b"]), as_ids=True)
    assert found["tokens"] == ["token_id:7"]
    assert found["top_logprobs"] == [{"token_id:7": -0.5, "token_id:9": -2.0}]


def test_a_chat() -> None:
    found = chat_logprobs(read([7, 7, 8], [-0.5, -0.5, float("-inf")], ["é", "é", "\ufffd"]))
    first = {"token": "é", "logprob": -0.5, "bytes": [195, 169], "token_id": 7}
    other = {"token": "\ufffd", "logprob": LEAST, "bytes": None, "token_id": 8}
    assert found == {"content": [{**first, "top_logprobs": [first, other]}]}
    json.dumps(found, allow_nan=False)


def test_usage_is_summed() -> None:
    part = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    scores = read([1], [0.0], ["a"])
    assert usage([part, part], [scores, scores]) == {
        "prompt_tokens": 6,
        "completion_tokens": 2,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
