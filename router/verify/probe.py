"""Talking to an engine, or to the router in front of it, the way its users do: reads, chats and token counts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import httpx

TOP = 5
Api = Literal["completions", "chat"]
APIS: tuple[Api, ...] = ("completions", "chat")


class CannotMeasure(Exception):
    """The measurement cannot be made; the message says what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class Scores:
    """One read's answer.

    Attributes:
        top: (token, log-probability in nats) as listed; the token is its id where the engine gives one.
        prompt_tokens, cached_tokens: from `usage`; None where the engine does not say.
        seconds: wall time of the request.
        isolation: the router's label, None straight at an engine.
        began, ended: `time.perf_counter`.
    """

    top: tuple[tuple[str, float], ...]
    prompt_tokens: int | None
    cached_tokens: int | None
    seconds: float
    isolation: str | None
    began: float
    ended: float


def deviation(a: Scores, b: Scores) -> float:
    """The largest difference in nats over the tokens that both list."""
    left, right = dict(a.top), dict(b.top)
    return max((abs(left[token] - right[token]) for token in left.keys() & right.keys()), default=0.0)


class Target:
    """A base URL that is measured."""

    def __init__(self, url: str, model: str | None = None, api: Api = "completions") -> None:
        self.url = url.rstrip("/")
        self.model = model
        self.api: Api = api
        self.client = httpx.AsyncClient(
            base_url=self.url,
            timeout=httpx.Timeout(600.0, connect=5.0),
            trust_env=False,
            # No kept-alive connection: a stale one would look like a failing engine.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def close(self) -> None:
        await self.client.aclose()

    async def prepare(self) -> None:
        """Find the model, and whether it answers log-probabilities on completions or on chat.

        Raises:
            CannotMeasure
        """
        if self.model is None:
            self.model = await self._only_model()
        for api in APIS:
            self.api = api
            try:
                await self.read("The capital of France is")
            except _NoSuchPath:
                continue
            return
        raise CannotMeasure(f"{self.url} serves neither /v1/completions nor /v1/chat/completions.")

    async def _only_model(self) -> str | None:
        answer = await self._request("GET", "/v1/models")
        if answer.status_code != 200:
            return None
        try:
            names = [str(model["id"]) for model in answer.json()["data"]]
        except (ValueError, KeyError, TypeError):
            return None
        if len(names) > 1:
            raise CannotMeasure(f"{self.url} serves several models; name one with --model: {', '.join(names[:10])}.")
        return names[0] if names else None

    # -- reads

    def body(self, prompt: str | Sequence[str]) -> dict[str, Any]:
        """A read's request body."""
        body: dict[str, Any] = {"max_tokens": 1, "temperature": 0}
        if self.model is not None:
            body["model"] = self.model
        if self.api == "completions":
            return {**body, "prompt": prompt, "logprobs": TOP}
        return {**body, "messages": [{"role": "user", "content": prompt}], "logprobs": True, "top_logprobs": TOP}

    @property
    def path(self) -> str:
        return "/v1/completions" if self.api == "completions" else "/v1/chat/completions"

    async def read(self, prompt: str) -> Scores:
        """One read."""
        return (await self._scores(prompt))[0]

    async def read_list(self, prompts: Sequence[str]) -> list[Scores]:
        """Several prompts in one request (completions only)."""
        return await self._scores(list(prompts))

    async def _scores(self, prompt: str | list[str]) -> list[Scores]:
        began = time.perf_counter()
        answer = await self._request("POST", self.path, self.body(prompt))
        ended = time.perf_counter()
        if answer.status_code in (404, 405):
            raise _NoSuchPath(self.path)
        found = _json(answer, self.url + self.path)
        usage = found.get("usage") or {}
        details = usage.get("prompt_tokens_details") or {}
        label = answer.headers.get("x-read-isolation")
        choices = sorted(found.get("choices") or [], key=lambda choice: choice.get("index", 0))
        scores = [
            Scores(
                top_of(choice, self.url),
                usage.get("prompt_tokens"),
                details.get("cached_tokens"),
                ended - began,
                label,
                began,
                ended,
            )
            for choice in choices
        ]
        if not scores:
            raise CannotMeasure(f"{self.url} answered a read without choices.")
        return scores

    # -- chats

    async def chat(self, messages: Sequence[dict[str, str]], max_tokens: int) -> tuple[str, int | None, float]:
        """A greedy chat: its text, the cached prompt tokens that the engine reports, and the seconds it took."""
        began = time.perf_counter()
        body: dict[str, Any] = {"messages": list(messages), "max_tokens": max_tokens, "temperature": 0}
        if self.model is not None:
            body["model"] = self.model
        found = _json(await self._request("POST", "/v1/chat/completions", body), self.url)
        message = (found.get("choices") or [{}])[0].get("message") or {}
        details = (found.get("usage") or {}).get("prompt_tokens_details") or {}
        return str(message.get("content")), details.get("cached_tokens"), time.perf_counter() - began

    async def complete(self, prompt: str, max_tokens: int) -> None:
        """A generation that is no read, on the reads' path, so that it shares their prefix."""
        body = {**self.body(prompt), "max_tokens": max_tokens}
        for name in ("logprobs", "top_logprobs"):
            body.pop(name, None)
        _json(await self._request("POST", self.path, body), self.url)

    # -- tokens

    async def count(self, text: str) -> int | None:
        """Tokens of a text by the engine's own tokenizer, or None if it has no such path."""
        for body in ({"content": text, "add_special": True}, {"prompt": text, "model": self.model}):
            answer = await self._request("POST", "/tokenize", body)
            if answer.status_code != 200:
                continue
            try:
                found = answer.json()
            except ValueError:
                return None
            tokens = found.get("count", found.get("tokens")) if isinstance(found, dict) else None
            if isinstance(tokens, list):
                return len(tokens)
            if isinstance(tokens, int):
                return tokens
        return None

    async def _request(self, method: str, path: str, body: object = None) -> httpx.Response:
        try:
            return await self.client.request(method, path, json=body)
        except httpx.ConnectError:
            raise CannotMeasure(f"Nothing answers at {self.url}. Start it, or give another URL.") from None
        except httpx.HTTPError as error:
            raise CannotMeasure(f"{self.url}{path} failed: {type(error).__name__} {error}.") from None


class _NoSuchPath(Exception):
    """The engine does not serve this path."""


def top_of(choice: dict[str, Any], url: str) -> tuple[tuple[str, float], ...]:
    """The listed log-probabilities of a choice's first token: OpenAI's completions shape, or the chat shape.

    Raises:
        CannotMeasure
    """
    logprobs = choice.get("logprobs") or {}
    if isinstance(logprobs.get("content"), list) and logprobs["content"]:
        first = logprobs["content"][0]
        listed = first.get("top_logprobs") or [first]
        return tuple((str(entry.get("id", entry.get("token"))), float(entry["logprob"])) for entry in listed)
    listed = logprobs.get("top_logprobs") or []
    if listed and isinstance(listed[0], dict):
        return tuple((str(token), float(value)) for token, value in listed[0].items())
    if logprobs.get("token_logprobs"):
        return ((str(logprobs["tokens"][0]), float(logprobs["token_logprobs"][0])),)
    raise CannotMeasure(f"{url} answered a read without log-probabilities; does this engine give them here?")


def _json(answer: httpx.Response, where: str) -> dict[str, Any]:
    if answer.status_code != 200:
        raise CannotMeasure(f"{where} answered {answer.status_code}: {answer.text[:300]}")
    try:
        found = json.loads(answer.content)
    except ValueError:
        raise CannotMeasure(f"{where} answered 200 with what is no JSON.") from None
    if not isinstance(found, dict):
        raise CannotMeasure(f"{where} answered 200 with JSON of another shape.")
    return found


class ChatLoad:
    """Chats that run, one after another in each lane of load, while the block is entered.

    `running_during` tells whether one was being answered through the whole of a span of time.
    """

    def __init__(self, target: Target, lanes: int, max_tokens: int = 48) -> None:
        self.target = target
        self.lanes = lanes
        self.max_tokens = max_tokens
        self.spans: list[tuple[float, float]] = []
        self.seconds: list[float] = []
        self._open: dict[int, float] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> ChatLoad:
        self._tasks = [asyncio.create_task(self._lane(number)) for number in range(self.lanes)]
        await asyncio.sleep(0.5 if self.lanes else 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _lane(self, number: int) -> None:
        turn = 0
        while True:
            began = self._open[number] = time.perf_counter()
            question = f"Tell me a long story, number {number}.{turn}, about a harbour and its lighthouse."
            try:
                _, _, seconds = await self.target.chat([{"role": "user", "content": question}], self.max_tokens)
                self.seconds.append(seconds)
            finally:
                self.spans.append((began, time.perf_counter()))
                self._open.pop(number, None)
            turn += 1

    def running_during(self, scores: Scores) -> bool:
        """Whether a chat was being answered when this read began, or began before it ended."""
        spans = [*self.spans, *((began, float("inf")) for began in self._open.values())]
        return any(began < scores.ended and ended > scores.began for began, ended in spans)
