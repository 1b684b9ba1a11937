"""What is a read, on requests of the shape that vLLM's have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from router.engines.vllm.marks import MARK, isolates, scores_one_token, set_mark


def request(**changes: Any) -> Any:
    params = {"max_tokens": 1, "logprobs": 5, "prompt_logprobs": None, "logprob_token_ids": None, "extra_args": None}
    outer = {"resumable": False, "mm_features": None}
    for name, value in changes.items():
        (outer if name in outer else params)[name] = value
    return SimpleNamespace(sampling_params=SimpleNamespace(**params), **outer)


@pytest.mark.parametrize(
    ("changes", "read"),
    [
        ({}, True),
        ({"logprobs": 0}, True),
        ({"logprobs": None}, False),
        ({"logprobs": None, "prompt_logprobs": 0}, True),
        ({"logprobs": None, "logprob_token_ids": [7]}, True),
        ({"logprobs": None, "logprob_token_ids": []}, False),
        ({"max_tokens": 2}, False),
        ({"resumable": True}, False),
        ({"mm_features": ["an image"]}, False),
        ({"mm_features": []}, True),
    ],
)
def test_the_shape_of_a_read(changes: dict[str, Any], read: bool) -> None:
    assert scores_one_token(request(**changes)) is read


def test_pooling_is_no_read() -> None:
    assert not scores_one_token(SimpleNamespace(sampling_params=None, resumable=False, mm_features=None))


@pytest.mark.parametrize(
    ("mark", "isolate_all", "isolated"),
    [
        (None, False, False),
        (None, True, True),
        (1, False, True),
        ("true", False, True),
        (0, True, False),
        ("0", True, False),
    ],
)
def test_the_mark_decides(mark: object, isolate_all: bool, isolated: bool) -> None:
    extra = None if mark is None else {MARK: mark}
    assert isolates(request(extra_args=extra), isolate_all) is isolated
    assert not isolates(request(extra_args=extra, max_tokens=2), isolate_all)


def test_a_mark_leaves_the_other_arguments() -> None:
    shared = {"mine": 1}
    marked = request(extra_args=shared)
    set_mark(marked, True)
    assert marked.sampling_params.extra_args == {"mine": 1, MARK: 1}
    assert shared == {"mine": 1}, "it may belong to other requests too"
    set_mark(marked, False)
    assert not isolates(marked, True)
