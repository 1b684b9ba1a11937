"""What the tests ask a vLLM server for, and what of its answers is compared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import httpx

from tests.engines.vllm.servers import NAME

Bits = tuple[tuple[str, float], ...]
"""The log-probabilities of a read by token, in the order in which they came. JSON carries a float's bits."""

ON = {"X-Cache-Bypass": "1"}


def ids(count: int, seed: int) -> list[int]:
    """A prompt of so many token ids; no two seeds share a prefix."""
    state = seed * 2654435761 % 2**32
    found = []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        found.append(4 + (state >> 16) % 250)
    return found


def post(url: str, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
    answer = httpx.post(url + path, json={"model": NAME, **body}, headers=headers, timeout=300)
    assert answer.status_code == 200, answer.text
    return answer


def read(url: str, prompt: list[int] | list[list[int]], headers: dict[str, str] | None = None, **more: Any) -> Any:
    body = {"prompt": prompt, "max_tokens": 1, "logprobs": 20, "temperature": 0, "return_tokens_as_token_ids": True}
    return post(url, "/v1/completions", {**body, **more}, headers)


def bits(answer: httpx.Response) -> list[Bits]:
    choices = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
    return [tuple(choice["logprobs"]["top_logprobs"][0].items()) for choice in choices]


def read_all(url: str, prompts: list[list[int]], headers: dict[str, str] | None = None, at_once: int = 8) -> list[Bits]:
    with ThreadPoolExecutor(at_once) as pool:
        return [bits(answer)[0] for answer in pool.map(lambda prompt: read(url, prompt, headers), prompts)]


def say(url: str, prompt: list[int], tokens: int, **more: Any) -> dict[str, Any]:
    """A greedy chat of so many tokens."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}
    answer: dict[str, Any] = post(url, "/v1/completions", body).json()
    return answer


def cached(answer: dict[str, Any]) -> int:
    """Prompt tokens that came from the cache; vLLM leaves the member out where none did."""
    return int((answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def stream(url: str, prompt: str, tokens: int = 40) -> tuple[list[int], str, str, dict[str, int]]:
    """What a streamed greedy chat says: its token ids, its text, why it ended, and the tokens of its usage.

    Not how many events carry them: vLLM joins what its client has not taken yet.
    """
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    lines = post(url, "/v1/chat/completions", body).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    *events, last = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    choices = [choice for event in events for choice in event["choices"]]
    said = [token for choice in choices for token in choice.get("token_ids") or ()]
    assert len(said) == tokens
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    usage = {name: last["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    return said, text, choices[-1]["finish_reason"], usage


@contextmanager
def chats(url: str, count: int = 3, *, prompt: int = 100, tokens: int = 4000) -> Iterator[list[int]]:
    """Streams that decode while the block runs; yields a list with the pieces that each has sent so far.

    The block begins once all of them have sent one.
    """
    done, seen = Event(), [0] * count

    def talk(number: int) -> None:
        body = {"model": NAME, "prompt": ids(prompt, 900 + number), "max_tokens": tokens, "temperature": 0}
        body |= {"ignore_eos": True, "stream": True}
        with httpx.stream("POST", url + "/v1/completions", json=body, timeout=300) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    seen[number] += len(json.loads(line[6:])["choices"]) > 0
                if done.is_set():
                    return

    with ThreadPoolExecutor(count) as pool:
        talking = [pool.submit(talk, number) for number in range(count)]
        try:
            while not all(seen):
                _raise_failures(talking)
                done.wait(0.02)
            yield seen
        finally:
            done.set()
    _raise_failures(talking)


@contextmanager
def prefills(url: str, *, prompt: int = 700) -> Iterator[None]:
    """Short chats with long prompts, one after the other, while the block runs."""
    done = Event()

    def churn() -> int:
        number = 0
        while not done.is_set():
            say(url, ids(prompt, 5000 + number), 4)
            number += 1
        return number

    with ThreadPoolExecutor(1) as pool:
        churning = pool.submit(churn)
        try:
            yield
        finally:
            done.set()
        assert churning.result() > 0


def _raise_failures(running: list[Future[None]]) -> None:
    for one in running:
        if one.done():
            one.result()


def metric(engine: str, series: str) -> float:
    found = re.search(rf"^{re.escape(series)} (\S+)$", httpx.get(engine + "/metrics").text, re.M)
    assert found is not None, series
    return float(found[1])


def counter(engine: str, name: str) -> float:
    return metric(engine, f"logprob_router_engine_{name}")
