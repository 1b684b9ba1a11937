"""The stand-in's arithmetic: next-token scores that depend on the tokens, and slightly on the shape of the pass and on
where the request resumed. Those two are what moves a score on a GPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

VOCABULARY = 320
PRINTABLE = range(4, 98)
"""Ids of the tokenizer's printable ASCII characters. Others are hardly ever the best: half a character, or no token."""
NOISE = 1e-2


def scores(ids: Sequence[int], pass_tokens: int, resumed: int) -> torch.Tensor:
    """Logits after a prompt.

    Args:
        ids: the whole prompt.
        pass_tokens: tokens in the pass that computed its end.
        resumed: where that pass began.
    Returns:
        float32, shape (VOCABULARY,); many even ids have exactly the same score.
    """
    seed = _seed(ids)
    base = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)).mul(4).round().div(4)
    _prefer_printable(base)
    shape = torch.Generator().manual_seed(seed ^ (pass_tokens * 7919 + resumed * 104729))
    noise = NOISE * torch.randn(VOCABULARY, generator=shape)
    noise[::2] = 0
    return base + noise


def decode_scores(token: int, position: int) -> torch.Tensor:
    """Logits of a decode step: independent of everything but the last token and its place."""
    base = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(_seed([token, position])))
    _prefer_printable(base)
    return base


def _prefer_printable(scores: torch.Tensor) -> None:
    scores[: PRINTABLE.start] -= 20
    scores[PRINTABLE.stop :] -= 6


def _seed(ids: Sequence[int]) -> int:
    text = ",".join(map(str, ids)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")
