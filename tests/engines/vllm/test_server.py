"""vLLM's own server with our patch behind the router, and vLLM as it comes: the proposal's table, chats, a small pool.

float32: on the CPUs that tests run on, bfloat16 is slow and moves little. What is compared are the bits of the top 20
log-probabilities.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from router.engines.vllm.command import MIDDLEWARE
from tests.engines.vllm.asking import (
    ON,
    Bits,
    bits,
    cached,
    chats,
    counter,
    ids,
    post,
    prefills,
    read,
    read_all,
    say,
    stream,
)
from tests.engines.vllm.models import random_weights
from tests.engines.vllm.servers import BLOCK, BUDGET, serving
from tests.support.patched import ADMIN, routing

pytestmark = pytest.mark.engines

BLOCKS = 400
"""12,800 tokens: more than a conversation or the longest read, less than what the busy tests ask for together."""

AT_ONCE = {60: 8, 300: 8, 512: 4, 513: 4, 819: 4, 820: 4, 2048: 2, 4096: 2}
STOCK_LENGTHS = (300, 2048)
"""What moves depends on the CPU: on some only reads of several thousand tokens, whose attention is split."""
CONVERSATION = 4000

QUIET: dict[int, list[Bits]] = {}
"""The reads of each length, alone and cold, with our patch."""
SAID: list[tuple[list[int], str, str, dict[str, int]]] = []
"""Greedy chats with our patch while reads ran."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_weights(tmp_path_factory.mktemp("vllm") / "model")


@pytest.fixture(scope="class")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace") / "steps"


@pytest.fixture(scope="class")
def engine(model: Path, trace: Path) -> Iterator[str]:
    # As a user's own class over ours: their flag in place of the command's.
    flags = ("--scheduler-cls", "tests.engines.vllm.traced.TracedScheduler", "--middleware", MIDDLEWARE)
    flags += ("--enable-scale-out",)
    with serving(model, *flags, blocks=BLOCKS, ours=None, environ={"VLLM_STEP_TRACE": str(trace)}) as url:
        yield url


@pytest.fixture(scope="class")
def router(engine: str) -> Iterator[str]:
    with routing(engine) as url:
        yield url


@pytest.fixture(scope="class")
def stock(model: Path) -> Iterator[str]:
    with serving(model, blocks=BLOCKS, ours=None) as url:
        yield url


def prompts(length: int) -> list[list[int]]:
    return [ids(length, 10 * length + i) for i in range(AT_ONCE[length])]


def cold(url: str, length: int) -> list[Bits]:
    """A stock server's reads alone and cold: each with a salt that nobody shares."""
    return [bits(read(url, prompt, cache_salt=uuid4().hex))[0] for prompt in prompts(length)]


def table(url: str, engine: str, length: int, alone: list[Bits]) -> dict[str, list[bool]]:
    """Of each case in the proposal's table: which reads have the bits of the same read alone and cold."""
    asked = prompts(length)
    rows: dict[str, list[bool]] = {}

    def note(case: str, found: list[Bits], expected: list[Bits]) -> None:
        rows[case] = [a == b for a, b in zip(found, expected, strict=True)]

    say(engine, asked[0][: length - 20], 4)
    assert cached(say(engine, asked[0], 1)) > 0 or length <= BLOCK * 2, "the cache was not warm"
    note("after a chat turn, and again", [bits(read(url, asked[0]))[0] for _ in range(2)], [alone[0]] * 2)
    note("three in one", bits(read(url, asked[:3])), alone[:3])
    note("in parallel", read_all(url, asked), alone)
    with chats(engine) as seen:
        before = sum(seen)
        note("under three chats", read_all(url, asked[:4], at_once=2), alone[:4])
        with prefills(engine):
            note("under chats and their prefills", read_all(url, asked), alone)
        assert sum(seen) > before, "no chat ran meanwhile"
    return rows


class TestIsolated:
    """With our patch."""

    @pytest.mark.parametrize("length", AT_ONCE)
    def test_the_table(self, router: str, engine: str, length: int) -> None:
        QUIET[length] = [bits(read(router, prompt))[0] for prompt in prompts(length)]
        assert len(set(QUIET[length])) == AT_ONCE[length], "the prompts do not tell reads apart"
        rows = table(router, engine, length, QUIET[length])
        assert all(all(row) for row in rows.values()), rows
        assert counter(engine, "reads_not_isolated_total") == 0

    def test_a_read_says_that_it_was_isolated(self, router: str, engine: str) -> None:
        answer = read(router, ids(40, 1))
        assert answer.headers["X-Read-Isolation"] == "engine"
        assert answer.headers["X-Cache-Bypass"] == "applied"
        assert "X-Cache-Bypass" not in read(engine, ids(40, 1)).headers
        assert "X-Cache-Bypass" not in read(engine, ids(40, 1), {"X-Cache-Bypass": "0"}).headers

    @pytest.mark.parametrize(
        ("path", "body", "reads"),
        [
            ("/v1/completions", {"prompt": "hello", "max_tokens": 1, "logprobs": 2, "stream": True}, 1),
            ("/v1/completions", {"prompt": ["one", "two", "three"], "max_tokens": 1, "logprobs": 0}, 3),
            ("/v1/completions", {"prompt": "hello", "max_tokens": 1, "logprobs": 2, "n": 3}, 3),
            ("/v1/completions", {"prompt": "hello", "max_tokens": 1, "logprobs": 2, "echo": True}, 1),
            (
                "/v1/chat/completions",
                {"messages": [{"role": "user", "content": "yes?"}], "max_tokens": 1, "logprobs": True},
                1,
            ),
            (
                "/v1/chat/completions",
                {"messages": [{"role": "user", "content": "yes?"}], "max_tokens": 1, "logprobs": True, "stream": True},
                1,
            ),
            (
                "/inference/v1/generate",
                {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 1, "logprobs": 3}},
                1,
            ),
            (
                "/generative_scoring",
                {"query": "is it", "items": ["wet", "dry"], "label_token_ids": [70, 71]},
                2,
            ),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_every_endpoint_that_reads(self, engine: str, path: str, body: dict[str, Any], reads: int) -> None:
        before, steps = counter(engine, "reads_total"), counter(engine, "read_steps_total")
        answer = post(engine, path, body, ON)
        assert answer.headers["X-Cache-Bypass"] == "applied", answer.text
        assert counter(engine, "reads_total") - before == reads
        assert counter(engine, "read_steps_total") - steps >= reads

    @pytest.mark.parametrize(
        "body",
        [
            {"prompt": "hello", "max_tokens": 5},
            {"prompt": "hello", "max_tokens": 1},
            {"prompt": "hello", "max_tokens": 2, "logprobs": 3},
            {"prompt": "hello", "max_tokens": 5, "stream": True},
        ],
        ids=["chat", "one token", "two tokens", "stream"],
    )
    def test_the_header_on_no_read_changes_nothing(self, engine: str, body: dict[str, Any]) -> None:
        before = counter(engine, "reads_total")
        asked = {"temperature": 0, "ignore_eos": True, **body}
        plain, marked = (post(engine, "/v1/completions", asked, headers) for headers in (None, ON))
        assert "X-Cache-Bypass" not in marked.headers
        assert counter(engine, "reads_total") == before
        hide = {"id", "created"}
        if not body.get("stream"):
            assert {k: v for k, v in marked.json().items() if k not in hide} == {
                k: v for k, v in plain.json().items() if k not in hide
            }

    def test_an_error_is_not_acknowledged(self, engine: str) -> None:
        answer = httpx.post(
            engine + "/v1/completions", json={"model": "m", "prompt": "x", "max_tokens": 1, "logprobs": 99}, headers=ON
        )
        assert answer.status_code == 400
        assert "X-Cache-Bypass" not in answer.headers

    def test_the_router_scrapes_the_counters(self, router: str) -> None:
        read(router, ids(40, 3))
        deadline = time.monotonic() + 30
        while "logprob_router_engine_evicted_tokens_total" not in httpx.get(ADMIN[router] + "/metrics").text:
            assert time.monotonic() < deadline
            time.sleep(0.5)

    @pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text; version=1.0.0"])
    def test_metrics_in_whatever_form_they_are_asked_for(self, engine: str, accept: str) -> None:
        text = httpx.get(engine + "/metrics", headers={"Accept": accept, "Accept-Encoding": "gzip"}).text
        assert "vllm:num_requests_running" in text
        assert 'logprob_router_engine_info{engine="vllm",isolates="marked",version="' in text
        assert "# EOF" not in text

    def test_greedy_chat_while_reads_run(self, router: str) -> None:
        """One chat after the other: chats that share a step move each other, with any scheduler."""
        done = threading.Event()

        def keep_reading(number: int) -> int:
            turn = 0
            while not done.is_set():
                read(router, ids(60, 7000 + 100 * number + turn % 100))
                turn += 1
            return turn

        with ThreadPoolExecutor(4) as pool:
            reading = [pool.submit(keep_reading, number) for number in range(4)]
            try:
                SAID[:] = [stream(router, f"chat {number} " + "x" * 100 * number) for number in range(4)]
            finally:
                done.set()
            assert sum(one.result() for one in reading) > 20

    def test_a_conversation_survives_96_reads(self, router: str, engine: str) -> None:
        turn = ids(CONVERSATION, 8)
        say(engine, turn, 4)
        warm = cached(say(engine, turn, 4))
        assert warm >= CONVERSATION - 2 * BLOCK
        before = counter(engine, 'evicted_blocks_total{cause="read"}')
        read_all(router, [ids(300, 8000 + i) for i in range(96)])
        assert cached(say(engine, [*turn, 5, 6], 4)) >= warm
        # Other conversations fill the rest of the pool: the first read needs room, and those after it have its blocks.
        assert counter(engine, 'evicted_blocks_total{cause="read"}') - before <= -(-300 // BLOCK)

    def test_any_traffic(self, router: str, engine: str, trace: Path) -> None:
        """Aborts, chats and a pool too small for all: every read has the bits of its quiet self, in steps of its own."""
        rnd = random.Random(5)
        bases = [ids(1400, 9000 + i) for i in range(3)]
        cuts = [31, 60, 200, 255, 256, 257, 300, 500, 511, 512, 513, 700, 768, 1000, 1300]
        asked = [[*rnd.choice(bases)[: rnd.choice(cuts)], *ids(rnd.choice([1, 5, 30]), 9100 + i)] for i in range(24)]
        expected = [bits(read(router, prompt))[0] for prompt in asked]
        until = time.monotonic() + 45
        wrong: list[int] = []
        tally = {"reads": 0, "cut": 0, "chats": 0}

        def reader(seed: int) -> None:
            mine = random.Random(seed)
            while time.monotonic() < until:
                which = mine.randrange(len(asked))
                if bits(read(engine, asked[which], ON))[0] != expected[which]:
                    wrong.append(which)
                tally["reads"] += 1

        def leaver() -> None:
            mine = random.Random(99)
            while time.monotonic() < until:
                body = {"model": "m", "prompt": mine.choice(asked), "max_tokens": 1, "logprobs": 20}
                try:
                    httpx.post(engine + "/v1/completions", json=body, headers=ON, timeout=0.02 + mine.random() * 0.2)
                except httpx.TimeoutException:
                    tally["cut"] += 1

        def chatter(number: int) -> None:
            while time.monotonic() < until:
                say(engine, ids(800, 9500 + number), 200)
                tally["chats"] += 1

        before = metric_sum(engine, "vllm:num_preemptions_total")
        with ThreadPoolExecutor(24) as pool:
            running = [pool.submit(reader, seed) for seed in range(5)]
            running += [pool.submit(leaver)]
            running += [pool.submit(chatter, number) for number in range(16)]
        for one in running:
            one.result()
        assert wrong == []
        assert tally["reads"] > 30, tally
        assert tally["cut"] > 5, tally
        assert tally["chats"] >= 8, tally
        assert metric_sum(engine, "vllm:num_preemptions_total") > before, "the pool was large enough for all"
        steps = [json.loads(line) for line in trace.read_text().splitlines()]
        assert all(len(step["reads"]) == 1 and not step["chats"] for step in steps if step["reads"])
        assert any(len(step["chats"]) > 1 for step in steps)
        assert max(step["reads"][0] for step in steps if step["reads"]) == BUDGET
        assert counter(engine, "reads_not_isolated_total") == 0


class TestStock:
    """vLLM as it comes: the measure measures, and what is not a read is the same with our patch."""

    def test_reads_move(self, stock: str) -> None:
        moved, total = 0, 0
        for length in STOCK_LENGTHS:
            rows = table(stock, stock, length, cold(stock, length))
            moved += sum(not same for row in rows.values() for same in row)
            total += sum(len(row) for row in rows.values())
        assert moved > total // 10, f"{moved} of {total}"

    @pytest.mark.parametrize("length", AT_ONCE)
    def test_a_quiet_read_is_the_same(self, stock: str, length: int) -> None:
        """The patch changes no value, only who shares the step."""
        assert QUIET, "run with the tests before it"
        assert cold(stock, length) == QUIET[length]

    def test_greedy_chat_is_the_same(self, stock: str) -> None:
        assert SAID, "run with the tests before it"
        assert [stream(stock, f"chat {number} " + "x" * 100 * number) for number in range(4)] == SAID

    def test_a_conversation_does_not_survive_96_reads(self, stock: str) -> None:
        turn = ids(CONVERSATION, 8)
        say(stock, turn, 4)
        assert cached(say(stock, turn, 4)) >= CONVERSATION - 2 * BLOCK
        read_all(stock, [ids(300, 8000 + i) for i in range(96)])
        assert cached(say(stock, [*turn, 5, 6], 4)) == 0


def test_the_middleware_without_the_scheduler_is_refused(model: Path) -> None:
    """It would acknowledge what nobody does."""
    refused = pytest.raises(RuntimeError, match="the middleware works with our scheduler only")
    with refused, serving(model, "--middleware", MIDDLEWARE, ours=None):
        pass


def metric_sum(engine: str, name: str) -> float:
    lines = httpx.get(engine + "/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))
