"""Talking to an engine, or to the router in front of it, the way its users do: reads, chats and token counts."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import httpx

TOP = 5
Api = Literal["completions", "chat"]
APIS: tuple[Api, ...] = ("completions", "chat")
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


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

    @property
    def mostly_cached(self) -> bool:
        """Whether more than half of the prompt came from the engine's cache: more than a template that all share."""
        return 2 * (self.cached_tokens or 0) > (self.prompt_tokens or 0)


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
        self.chats = True
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
        """Find the model, whether log-probabilities come on completions or on chat, and whether there is a chat path.

        Raises:
            CannotMeasure
        """
        listed = await self._models()
        if self.model is None and len(listed) > 1:
            raise CannotMeasure(f"{self.url} serves several models; name one with --model: {', '.join(listed[:10])}.")
        if self.model is None and listed:
            self.model = listed[0]
        refused = []
        for api in APIS:
            self.api = api
            try:
                await self.read("The capital of France is")
            except _NoSuchPath:
                continue
            except _Refused as error:  # the other path may still do it
                refused.append(error)
                continue
            await self._find_chat()
            return
        if listed and self.model not in listed:
            raise CannotMeasure(f"{self.url} does not serve {self.model!r}; it lists {', '.join(listed[:10])}.")
        if refused:
            raise refused[0]
        raise CannotMeasure(f"{self.url} serves neither /v1/completions nor /v1/chat/completions.")

    async def _models(self) -> list[str]:
        answer = await self._request("GET", "/v1/models")
        try:
            return [str(model["id"]) for model in answer.json()["data"]] if answer.status_code == 200 else []
        except (ValueError, KeyError, TypeError):
            return []

    async def _find_chat(self) -> None:
        """A model without a chat template is talked to on the completions path."""
        body = self.generation([{"role": "user", "content": "Hello."}], 1)
        self.chats = (await self._request("POST", CHAT, body)).status_code == 200

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
        return COMPLETIONS if self.api == "completions" else CHAT

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
            raise _Refused(f"{self.url} answered a read without choices.")
        return scores

    # -- chats

    def generation(self, messages: Sequence[dict[str, str]], max_tokens: int) -> dict[str, Any]:
        """A greedy chat's request body."""
        body: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0}
        if self.model is not None:
            body["model"] = self.model
        if self.chats:
            return {**body, "messages": list(messages)}
        return {**body, "prompt": "\n".join(f"{m['role']}: {m['content']}" for m in messages) + "\nassistant:"}

    @property
    def talk_path(self) -> str:
        return CHAT if self.chats else COMPLETIONS

    async def chat(self, messages: Sequence[dict[str, str]], max_tokens: int) -> tuple[str, int | None, float]:
        """A greedy chat: its text, the cached prompt tokens that the engine reports, and the seconds it took."""
        began = time.perf_counter()
        body = self.generation(messages, max_tokens)
        found = _json(await self._request("POST", self.talk_path, body), self.url + self.talk_path)
        choice = (found.get("choices") or [{}])[0]
        text = (choice.get("message") or {}).get("content") if self.chats else choice.get("text")
        details = (found.get("usage") or {}).get("prompt_tokens_details") or {}
        return str(text), details.get("cached_tokens"), time.perf_counter() - began

    async def stream(self, messages: Sequence[dict[str, str]], max_tokens: int) -> AsyncGenerator[None]:
        """A greedy chat as a stream: yields whenever a piece of text arrives.

        Raises:
            CannotMeasure
        """
        body = {**self.generation(messages, max_tokens), "stream": True}
        try:
            async with self.client.stream("POST", self.talk_path, json=body) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    _json(answer, self.url + self.talk_path)
                if "event-stream" not in answer.headers.get("content-type", ""):
                    await answer.aread()
                    yield
                    return
                async for line in answer.aiter_lines():
                    if line.startswith("data:") and not line.endswith("[DONE]"):
                        yield
        except httpx.HTTPError as error:
            raise CannotMeasure(f"A streamed chat at {self.url} failed: {type(error).__name__} {error}.") from None

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


class _Refused(CannotMeasure):
    """The engine answered a read, but not with scores."""


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
    raise _Refused(f"{url} answered a read without log-probabilities; does this engine give them here?")


def _json(answer: httpx.Response, where: str) -> dict[str, Any]:
    if answer.status_code != 200:
        raise _Refused(f"{where} answered {answer.status_code}: {answer.text[:300]}")
    try:
        found = json.loads(answer.content)
    except ValueError:
        raise _Refused(f"{where} answered 200 with what is no JSON.") from None
    if not isinstance(found, dict):
        raise _Refused(f"{where} answered 200 with JSON of another shape.")
    return found
