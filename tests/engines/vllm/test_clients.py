"""Clients that people use, unmodified, against a real vLLM with our patch: through the router and straight.

SmolLM2-135M, dequantised. Every read is isolated by the server-wide setting too, so straight answers to clients that
send no header are as equal; what moves without the patch is test_server.py's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.clients.test_lm_eval import ITEMS, Item, loglikelihoods
from tests.engines.vllm.asking import chats, counter, post
from tests.engines.vllm.models import smollm2
from tests.engines.vllm.servers import NAME, serving
from tests.support.patched import routing

pytestmark = [
    pytest.mark.engines,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

STATES = [
    f"Review {number}: the boat was {word} and the crew {other}."
    for number, (word, other) in enumerate(
        [("late", "sang"), ("early", "slept"), ("clean", "smiled"), ("wet", "shouted")] * 2
    )
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smollm2(tmp_path_factory.mktemp("vllm") / "model")


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[str]:
    # AnyJev asks for the labels alone, and takes vLLM's scores after its own mask: processed_logprobs.
    ours = ("--logprob-read-isolate", "--read-step-ratio", "2")
    with serving(model, "--logprobs-mode", "processed_logprobs", "--enable-tokenizer-info-endpoint", ours=ours) as url:
        yield url


@pytest.fixture(scope="module")
def router(engine: str) -> Iterator[str]:
    with routing(engine) as url:
        yield url


def test_anyjev_s_vllm_backend(router: str, engine: str, model: Path) -> None:
    from anyjev.backends.vllm import VLLMBackend

    backend = VLLMBackend(router, NAME, tokenizer_name=str(model), workers=8)
    labels = [backend.tokenizer.encode(label, add_special_tokens=False)[0] for label in (" A", " B", " C")]
    prompts = [f"{state}\nA. good\nB. bad\nC. neither\nAnswer:" for state in STATES]
    alone = [backend.next_token_logprobs([prompt], [labels])[0] for prompt in prompts]
    assert all(np.isfinite(scores).all() and (scores > -30).all() for scores in alone)
    assert len({tuple(scores) for scores in alone}) == len(prompts)
    before = counter(engine, "read_steps_total")
    again = backend.next_token_logprobs(prompts, [labels] * len(prompts))
    assert [tuple(scores) for scores in again] == [tuple(scores) for scores in alone]
    assert counter(engine, "read_steps_total") - before >= len(prompts)
    with chats(engine, 2):
        loaded = backend.next_token_logprobs(prompts[::-1], [labels] * len(prompts))
    assert [tuple(scores) for scores in loaded] == [tuple(scores) for scores in alone[::-1]]


def test_tacit_s_server_engine(router: str, engine: str, model: Path) -> None:
    from anyjev.tacit import ServerEngine
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    reader = ServerEngine(router, NAME, tokenizer)
    labels = [tokenizer.encode(label, add_special_tokens=False)[0] for label in (" A", " B")]
    prompts = [f"{state}\nA. good\nB. bad\nAnswer:" for state in STATES]
    alone = [reader.read([prompt], [labels])[0] for prompt in prompts]
    with chats(engine, 2):
        together = reader.read(prompts, [labels] * len(prompts))
    assert [tuple(scores) for scores in together] == [tuple(scores) for scores in alone]


def test_lm_eval(router: str, engine: str) -> None:
    """A task of 20 log-likelihoods: the same numbers at any batch size and in any order."""
    shuffled: list[Item] = random.Random(3).sample(ITEMS, len(ITEMS))
    alone = loglikelihoods(router, 1, ITEMS, model=NAME)
    assert len(alone) == 20
    assert len({score for score, _ in alone.values()}) == 20
    for batch, items, concurrent in ((8, ITEMS, 1), (1, shuffled, 4), (8, shuffled, 2)):
        with chats(engine, 1):
            assert loglikelihoods(router, batch, items, concurrent, model=NAME) == alone


def test_every_read_is_isolated_without_the_header(engine: str) -> None:
    body = {"prompt": "The capital of France is", "max_tokens": 1, "logprobs": 5, "temperature": 0}
    answer = post(engine, "/v1/completions", body)
    assert answer.headers["X-Cache-Bypass"] == "applied"
    assert (
        max(answer.json()["choices"][0]["logprobs"]["top_logprobs"][0].items(), key=lambda pair: pair[1])[0] == " Paris"
    )
    assert "X-Cache-Bypass" not in post(engine, "/v1/completions", body, {"X-Cache-Bypass": "0"}).headers
    assert 'isolates="reads"' in httpx.get(engine + "/metrics").text


def test_verify(router: str, engine: str) -> None:
    """verify, as a user runs it."""
    from click.testing import CliRunner

    from router.cli import main

    result = CliRunner().invoke(main, ["verify", "--engine", engine, "--router", router, "--quick", "--model", NAME])
    assert result.exit_code == 0, result.output
    assert "Through the router every read came back bit for bit" in " ".join(result.output.split())
