"""The log-probabilities of a read in the shapes that OpenAI's API gives them, with token ids beside the texts.

A read's scores are `{"ids": [...], "scores": [...], "tokens": [...], ...}`: first the sampled token, then the best
ones in order, which hold the sampled token again if it is among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

LEAST = -9999.0
"""JSON has no infinity; a token that cannot come gets this."""


def completion_logprobs(read: dict[str, Any], *, as_ids: bool) -> dict[str, Any]:
    """`logprobs` of a completion's choice.

    Two tokens may have the same text (parts of a character all print as U+FFFD). The better one keeps the text as its
    key and the other is named `token_id:N`, so no entry is lost; with `as_ids` all are named so, as vLLM does for
    `return_tokens_as_token_ids`.
    """
    ids, scores = read["ids"], [_finite(score) for score in read["scores"]]
    names = [f"token_id:{token}" for token in ids] if as_ids else read["tokens"]
    top: dict[str, float] = {}
    places = list(_distinct(ids))
    for place in sorted(places, key=lambda place: -scores[place]):
        name = names[place] if names[place] not in top else f"token_id:{ids[place]}"
        top[name] = scores[place]
    ranked = places[1:] if ids[0] in ids[1:] else places
    return {
        "tokens": [names[0]],
        "token_logprobs": [scores[0]],
        "top_logprobs": [top],
        "text_offset": [0],
        "token_ids": [ids[0]],
        "top_token_ids": [ids[1:] or [ids[place] for place in ranked]],
        "top_token_logprobs": [scores[1:] or [scores[place] for place in ranked]],
    }


def chat_logprobs(read: dict[str, Any]) -> dict[str, Any]:
    """`logprobs` of a chat choice."""
    entries = [
        {"token": text, "logprob": _finite(score), "bytes": _bytes(text), "token_id": token}
        for token, score, text in zip(read["ids"], read["scores"], read["tokens"], strict=True)
    ]
    return {"content": [{**entries[0], "top_logprobs": entries[1:]}]}


def usage(parts: Iterable[dict[str, Any]], reads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """FreeToken's usage of the parts summed up, with the cached tokens also where there are none."""
    total: dict[str, Any] = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 0)
    for part in parts:
        for name in total:
            total[name] += part[name]
    return {**total, "prompt_tokens_details": {"cached_tokens": sum(read["cached"] for read in reads)}}


def _distinct(ids: Sequence[int]) -> Iterator[int]:
    """Places of the ids, without the repetition of the sampled one."""
    yield 0
    for place in range(1, len(ids)):
        if ids[place] != ids[0]:
            yield place


def _finite(score: float) -> float:
    return LEAST if score == float("-inf") else score


def _bytes(text: str) -> list[int] | None:
    """UTF-8 of a token's text; unknown where the token is only part of a character."""
    return None if "\ufffd" in text else list(text.encode())
