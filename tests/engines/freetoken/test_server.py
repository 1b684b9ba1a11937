"""The whole of FreeToken in its own processes, only its engine replaced, straight and behind the router.

The stand-in's scores depend on the tokens, and slightly on the shape of the pass and on where it resumed, as on a GPU;
so what comes out equal here was alone in its pass and cold, and what was not comes out different.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tests.engines.freetoken.desk import tokenizer
from tests.engines.freetoken.servers import DOOR, STOCK, serving
from tests.engines.freetoken.standin.checkpoint import write
from tests.engines.freetoken.standin.model import scores
from tests.support.patched import ADMIN, routing

pytestmark = pytest.mark.engines

TEXT = "red blue green one two three option answer choose because river stone light north model score table"
WORDS = TEXT.split()
LENGTHS = (60, 300, 513, 820)
OFF = {"X-Cache-Bypass": "0"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("freetoken") / "model"
    folder.mkdir()
    write(folder)
    return folder


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[str]:
    with serving(model, environ={"FREETOKEN_STANDIN_STEP": "0.002"}) as url:
        yield url


@pytest.fixture(scope="module")
def router(engine: str) -> Iterator[str]:
    with routing(engine) as url:
        yield url


def text(tokens: int, seed: int) -> str:
    """A prompt of that many tokens (one a character); no two seeds share a prefix."""
    state, words = seed * 2654435761 % 2**32, [f"{seed}"]
    while sum(len(word) + 1 for word in words) < tokens:
        state = (state * 1664525 + 1013904223) % 2**32
        words.append(WORDS[(state >> 16) % len(WORDS)])
    return " ".join(words)[:tokens].ljust(tokens, ".")


def post(url: str, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    answer = httpx.post(url + path, json={"model": "m", "temperature": 0, **body}, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


def read(url: str, prompt: str | list[str], headers: dict[str, str] | None = None) -> httpx.Response:
    return post(url, "/v1/completions", {"prompt": prompt, "max_tokens": 1, "logprobs": 5}, **(headers or {}))


def signature(choice: dict[str, Any]) -> tuple[Any, ...]:
    found = choice["logprobs"]
    return (*zip(found["top_token_ids"][0], found["top_token_logprobs"][0], strict=True), *found["token_logprobs"])


def signatures(answer: httpx.Response) -> list[tuple[Any, ...]]:
    return [signature(choice) for choice in answer.json()["choices"]]


def chat(url: str, prompt: str, tokens: int) -> dict[str, Any]:
    body: dict[str, Any] = post(url, "/v1/completions", {"prompt": prompt, "max_tokens": tokens}).json()
    return body


def cached(body: dict[str, Any]) -> int:
    return int(body["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0))


def flush(engine: str) -> None:
    assert httpx.post(engine + "/v1/cache/flush?timeout=20", timeout=30).status_code == 200


def metric(engine: str, series: str) -> float:
    found = re.search(rf"^logprob_router_engine_{re.escape(series)} (\S+)$", metrics(engine), re.M)
    assert found is not None, series
    return float(found[1])


def metrics(engine: str) -> str:
    return httpx.get(engine + "/logprob-router/metrics").text


def table(url: str, engine: str, tokens: int) -> dict[str, list[bool]]:
    """Of each case in the proposal's table: which reads have the bits of the same read alone and cold."""
    prompts = [text(tokens, 100 * tokens + i) for i in range(8)]
    with Quiet(engine):
        alone = [signatures(read(engine, prompt, {"X-Cache-Bypass": "1"}))[0] for prompt in prompts]
    rows: dict[str, list[bool]] = {}

    def note(case: str, found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
        rows[case] = [a == b for a, b in zip(found, expected, strict=True)]

    read(url, prompts[0])
    note("repeat", [signatures(read(url, prompts[0]))[0] for _ in range(3)], [alone[0]] * 3)
    flush(engine)
    note("three in one", signatures(read(url, prompts[:3])), alone[:3])
    flush(engine)
    with ThreadPoolExecutor(8) as pool:
        note("eight in parallel", [signatures(a)[0] for a in pool.map(lambda p: read(url, p), prompts)], alone)
    flush(engine)
    chat(url, prompts[0][:-10], 4)
    note("after a chat turn", [signatures(read(url, prompts[0]))[0]], [alone[0]])
    flush(engine)
    with ThreadPoolExecutor(11) as pool:
        chats = [pool.submit(chat, url, text(50, 7 + i), 60) for i in range(3)]
        found = [signatures(a)[0] for a in pool.map(lambda p: read(url, p), prompts)]
        assert all(one.result()["usage"]["completion_tokens"] for one in chats)
    note("eight while chats decode", found, alone)
    return rows


class Quiet:
    """Nothing else runs at the engine: its cache is empty and it is idle."""

    def __init__(self, engine: str) -> None:
        self.engine = engine

    def __enter__(self) -> None:
        flush(self.engine)

    def __exit__(self, *error: object) -> None:
        flush(self.engine)


@pytest.mark.parametrize("tokens", LENGTHS)
def test_the_table_through_the_router(router: str, engine: str, tokens: int) -> None:
    rows = table(router, engine, tokens)
    assert all(all(row) for row in rows.values()), rows


def test_the_table_straight_without_the_header(engine: str) -> None:
    """The measure measures: without isolation the same cases differ."""
    rows = table(engine, engine, 300)
    for case in ("repeat", "three in one", "eight in parallel", "after a chat turn"):
        assert not all(rows[case]), rows


def test_a_read_through_the_router(router: str, engine: str) -> None:
    """Labelled, acknowledged, and right by our own arithmetic, ties by token id."""
    prompt = text(333, 1)
    answer = read(router, prompt)
    assert answer.headers["X-Read-Isolation"] == "engine"
    assert answer.headers["X-Cache-Bypass"] == "applied"
    ids = tokenizer().encode(prompt)
    logits = scores(ids, len(ids), 0).double()
    expected = logits - torch.logsumexp(logits, 0)
    found = answer.json()["choices"][0]["logprobs"]
    best = sorted(range(len(logits)), key=lambda token: (-logits[token].item(), token))[:5]
    assert found["top_token_ids"] == [best]
    assert torch.allclose(torch.tensor(found["top_token_logprobs"][0]).double(), expected[best], atol=1e-5)
    assert answer.json()["usage"]["prompt_tokens"] == 333
    listed = read(router, [prompt, text(60, 2)])
    assert listed.headers["X-Read-Isolation"] == "engine"
    assert signatures(listed)[0] == signatures(answer)[0]


def test_a_chat_read_through_the_router(router: str) -> None:
    body = {
        "messages": [{"role": "user", "content": "which?"}],
        "max_tokens": 1,
        "logprobs": True,
        "top_logprobs": 3,
    }
    first, second = (post(router, "/v1/chat/completions", body) for _ in range(2))
    assert first.headers["X-Read-Isolation"] == "engine"
    assert first.json()["choices"] == second.json()["choices"]
    assert len(first.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 3


def test_the_engine_is_known_and_scraped(router: str, engine: str) -> None:
    read(router, "scrape me")
    assert metric(engine, "read_passes_total") >= 1
    deadline = time.monotonic() + 30
    while "logprob_router_engine_evicted_tokens_total" not in httpx.get(ADMIN[router] + "/metrics").text:
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_chat_gets_its_decode_steps(router: str, engine: str) -> None:
    before = metric(engine, "decode_yields_total")
    with ThreadPoolExecutor(9) as pool:
        talking = pool.submit(chat, engine, text(40, 3), 400)
        list(pool.map(lambda i: read(engine, text(60, 900 + i), {"X-Cache-Bypass": "1"}), range(48)))
        talking.result()
    assert metric(engine, "decode_yields_total") > before


def stream(url: str, prompt: str) -> bytes:
    """A streamed chat's bytes, without what differs from request to request by design."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 40,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    raw = httpx.post(url + "/v1/chat/completions", json=body, timeout=60).content
    return re.sub(rb'"(id|created)": ?("[^"]*"|\d+)', rb'"\1"', raw)


def test_chat_bytes_are_those_of_plain_freetoken(model: Path, router: str, engine: str) -> None:
    prompts = [text(80, 40 + i) for i in range(4)]
    with serving(model, program=STOCK) as stock:
        expected = [stream(stock, prompt) for prompt in prompts]
        plain = post(stock, "/v1/completions", {"prompt": prompts[0], "max_tokens": 20}).json()["choices"]
    assert all(expected)
    assert all(answer.endswith(b"data: [DONE]\n\n") for answer in expected)
    flush(engine)
    done = threading.Event()

    def keep_reading(number: int) -> int:
        turn = 0
        while not done.is_set():
            read(router, text(60, 500 + 100 * number + turn % 100))
            turn += 1
        return turn

    with ThreadPoolExecutor(4) as pool:
        reading = [pool.submit(keep_reading, number) for number in range(4)]
        try:  # one chat after the other, as at the plain server: chats that share a pass move each other
            found = [stream(router, prompt) for prompt in prompts]
        finally:
            done.set()
        assert sum(one.result() for one in reading) > 4
    assert found == expected
    flush(engine)
    assert chat(router, prompts[0], 20)["choices"] == plain


def test_a_long_conversation_survives_96_reads(model: Path) -> None:
    """Hybrid model, few snapshots. The flag isolates every read; the header switches it off for one."""
    conversation = text(6000, 11)
    with serving(
        model, "--logprob-read-isolate", cache="hybrid", engine_flags=("--max-running-requests", "4")
    ) as engine:
        assert read(engine, "one").headers["X-Cache-Bypass"] == "applied"
        with routing(engine) as router:
            chat(router, conversation, 4)
            warm = cached(chat(router, conversation + " go on", 4))
            assert warm >= 5900
            burst(router, {})
            assert cached(chat(router, conversation + " go on, please", 4)) >= warm
            assert metric(engine, 'evicted_gdn_snapshots_total{cause="read"}') <= 8
        burst(engine, OFF)
        assert cached(chat(engine, conversation + " go on, and on", 4)) == 0
        assert metric(engine, 'evicted_gdn_snapshots_total{cause="chat"}') > 0


def burst(url: str, headers: dict[str, str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: read(url, text(60, 1000 + i), headers), range(96)))


def test_chunks_through_freetokens_own_command(model: Path) -> None:
    """`ft serve` with the door open; a prefill budget that cuts the reads."""
    with serving(
        model,
        program=DOOR,
        engine_flags=("--max-prefill-length", "256"),
        environ={"LOGPROB_ROUTER_ENGINE_FREETOKEN_DOOR": "1"},
    ) as engine:
        before = metric(engine, "read_passes_total")
        read(engine, text(600, 1), {"X-Cache-Bypass": "1"})
        assert metric(engine, "read_passes_total") == before + 3
        with routing(engine) as router:
            rows = table(router, engine, 600)
            assert all(all(row) for row in rows.values()), rows


def test_a_client_that_leaves(engine: str) -> None:
    """Its reads end in the scheduler too, and everything that they held is free."""
    before = metric(engine, "read_passes_total")
    body = {"model": "m", "prompt": [text(60, i) for i in range(2000)], "max_tokens": 1, "logprobs": 1}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(engine + "/v1/completions", json=body, headers={"X-Cache-Bypass": "1"}, timeout=2.0)
    deadline = time.monotonic() + 20
    while metric(engine, "active_requests"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert metric(engine, "read_passes_total") < before + 2000
    flush(engine)  # FreeToken checks that no page is missing
    read(engine, "still there?", {"X-Cache-Bypass": "1"})
