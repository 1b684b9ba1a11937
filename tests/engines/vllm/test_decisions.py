"""Decisions, whose reads vLLM asks of its own engine; behind two API servers, neither of which is the engine's process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.vllm.asking import ON, chats, counter, post
from tests.engines.vllm.models import random_weights
from tests.engines.vllm.servers import serving
from tests.support.patched import routing

pytestmark = pytest.mark.engines

QUESTIONS = {
    f"q{i}": {
        "type": "choice",
        "instructions": f"which is it, by {word}?",
        "criteria": {"wet": "a", "dry": "b", "both": "c"},
    }
    for i, word in enumerate(["sight", "touch", "hearsay"])
}
BODY = {"state": "the sea, at noon", "questions": QUESTIONS}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model = random_weights(tmp_path_factory.mktemp("vllm") / "model", "Qwen3")
    with serving(model, "--api-server-count", "2") as url:
        yield url


@pytest.fixture(scope="module")
def router(engine: str) -> Iterator[str]:
    with routing(engine) as url:
        yield url


def answers(url: str, headers: dict[str, str] | None = None) -> Any:
    answer = post(url, "/v1/systemone", BODY, headers)
    assert answer.headers["X-Cache-Bypass"] == "applied"
    return answer.json()["answers"]


def test_every_question_is_a_read_of_its_own(engine: str) -> None:
    before, steps = counter(engine, "reads_total"), counter(engine, "read_steps_total")
    answers(engine, ON)
    assert counter(engine, "reads_total") - before == len(QUESTIONS)
    assert counter(engine, "read_steps_total") - steps == len(QUESTIONS)


def test_the_same_numbers_under_chats_through_the_router(router: str, engine: str) -> None:
    quiet = answers(router)
    with chats(engine):
        assert [answers(router) for _ in range(3)] == [quiet] * 3
    answer = post(router, "/v1/systemone", BODY)
    assert answer.headers["X-Read-Isolation"] == "engine"


def test_both_api_servers_see_the_counters(engine: str) -> None:
    """Each request goes to whichever accepts it first."""
    seen = {counter(engine, "read_steps_total") for _ in range(20)}
    assert len(seen) == 1
    assert seen.pop() > 0
