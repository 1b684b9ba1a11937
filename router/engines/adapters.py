"""What the router knows of each engine kind. One row a kind; what an engine says of itself is in `EngineFacts`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["generic", "vllm", "freetoken", "sglang", "llamacpp"]

_OPENAI = ("/v1/completions", "/v1/chat/completions")


@dataclass(frozen=True, slots=True)
class Adapter:
    """One engine kind.

    Attributes:
        health_path: answers below 500 once the engine serves.
        metrics_path: Prometheus text.
        body_knobs: for each route, the JSON members that make a stock engine bypass its prefix cache. `{random}`
            becomes a fresh random value. vLLM's `cache_salt` avoids a hit, but the read still fills the cache.
        title: its name in prose.
    """

    kind: Kind
    title: str
    health_path: str = "/health"
    metrics_path: str = "/metrics"
    body_knobs: Mapping[str, str] = field(default_factory=dict)

    def knobs(self, route: str) -> bytes:
        """The members to splice into a read's body on this route; b"" for none."""
        template = self.body_knobs.get(route)
        if template is None:
            return b""
        return template.replace("{random}", secrets.token_hex(16)).encode("ascii")


GENERIC = Adapter("generic", "an engine of unknown kind")

ADAPTERS: Mapping[str, Adapter] = {
    adapter.kind: adapter
    for adapter in (
        GENERIC,
        Adapter(
            "vllm",
            "vLLM",
            body_knobs=dict.fromkeys((*_OPENAI, "/invocations", "/v1/responses"), '"cache_salt":"{random}"'),
        ),
        Adapter("freetoken", "FreeToken", metrics_path="/logprob-router/metrics"),
        Adapter("sglang", "SGLang", body_knobs={"/generate": '"logprob_start_len":0'}),
        Adapter(
            "llamacpp",
            "llama.cpp",
            body_knobs=dict.fromkeys((*_OPENAI, "/completion", "/completions"), '"cache_prompt":false'),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine said of itself.

    Attributes:
        reached: it answered; otherwise the rest is unknown.
        vouched: the engine reports settings under which a read that is alone among reads, with the adapter's body
            knobs, is isolated in its forward pass and from the cache; `reason` says which.
        block_size: tokens in a block of its prefix cache, where it says so.
        models: the names it lists.
    """

    adapter: Adapter = GENERIC
    reached: bool = False
    version: str | None = None
    vouched: bool = False
    reason: str = ""
    block_size: int | None = None
    models: tuple[str, ...] = ()

    @classmethod
    def unknown(cls) -> EngineFacts:
        return cls()

    @property
    def kind(self) -> Kind:
        return self.adapter.kind

    def summary(self) -> str:
        """One line for people."""
        name = self.adapter.title + (f" {self.version}" if self.version else "")
        models = f", serving {', '.join(self.models[:3])}" if self.models else ""
        return name + models + (f" ({self.reason})" if self.reason else "")
