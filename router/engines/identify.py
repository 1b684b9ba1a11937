"""Ask an engine what it is, through its own endpoints."""

from __future__ import annotations

import re
from typing import Any

import anyio
import httpx

from router.engines.adapters import ADAPTERS, GENERIC, Adapter, EngineFacts
from router.engines.announce import read_announcement
from router.settings import EngineKind

TIMEOUT = 2.0
"""Seconds for the whole of `identify`."""

_OWNERS = {"vllm": "vllm", "llamacpp": "llamacpp", "sglang": "sglang", "freetoken": "freetoken"}


async def identify(client: httpx.AsyncClient, base_url: str, kind: EngineKind = "auto") -> EngineFacts:
    """What the engine at `base_url` is and says. Never raises; an engine that does not answer is not `reached`.

    Args:
        kind: what the user says it is; `auto` asks.
    """
    given = None if kind == "auto" else ADAPTERS[kind]
    with anyio.move_on_after(TIMEOUT):
        models_answer, models = await _get(client, base_url + "/v1/models")
        adapter = given or _by_models(models_answer, models) or await _by_own_paths(client, base_url)
        # What the user says it is does not make it answer: not reached, so it is asked again.
        if models_answer is None and (given is not None or adapter is None):
            return EngineFacts(adapter=adapter or GENERIC)
        return await _facts(client, base_url, adapter or GENERIC, models)
    return EngineFacts(adapter=given or GENERIC)


async def _get(client: httpx.AsyncClient, url: str) -> tuple[httpx.Response | None, Any]:
    """The answer and its JSON; None for what did not come."""
    try:
        answer = await client.get(url)
    except httpx.HTTPError:
        return None, None
    try:
        return answer, answer.json() if answer.status_code == 200 else None
    except ValueError:
        return answer, None


def _by_models(answer: httpx.Response | None, models: Any) -> Adapter | None:
    if answer is not None and answer.headers.get("server", "").startswith("llama.cpp"):
        return ADAPTERS["llamacpp"]
    for model in _list(models):
        owner = str(model.get("owned_by", "")).lower()
        if owner in _OWNERS:
            return ADAPTERS[_OWNERS[owner]]
    return None


async def _by_own_paths(client: httpx.AsyncClient, base_url: str) -> Adapter | None:
    """By a path that only one of them has."""
    for path, kind, member in (
        ("/props", "llamacpp", "build_info"),
        ("/get_server_info", "sglang", "tp_size"),
        ("/v1/stats", "freetoken", ""),
        ("/version", "vllm", "version"),
    ):
        _, found = await _get(client, base_url + path)
        if isinstance(found, dict) and (not member or member in found):
            return ADAPTERS[kind]
    return None


async def _facts(client: httpx.AsyncClient, base_url: str, adapter: Adapter, models: Any) -> EngineFacts:
    names = tuple(str(model["id"]) for model in _list(models) if "id" in model)
    version: str | None = None
    block_size: int | None = None
    vouched, reason = False, ""
    if adapter.kind == "llamacpp":
        answer, props = await _get(client, base_url + "/props")
        if answer is None:  # half of what it says could not vouch; ask again
            return EngineFacts(adapter)
        if isinstance(props, dict):
            version = str(props.get("build_info") or "") or None
            announcement = read_announcement(_list(models), props)
            vouched, reason = announcement is not None, announcement or ""
    elif adapter.kind in ("vllm", "freetoken"):
        _, found = await _get(client, base_url + "/version")
        version = found.get("version") if isinstance(found, dict) else None
        block_size = await _block_size(client, base_url) if adapter.kind == "vllm" else None
    elif adapter.kind == "sglang":
        _, found = await _get(client, base_url + "/get_server_info")
        if isinstance(found, dict):
            version = found.get("version")
            block_size = found.get("page_size") if isinstance(found.get("page_size"), int) else None
    return EngineFacts(adapter, True, version, vouched, reason, block_size, names)


async def _block_size(client: httpx.AsyncClient, base_url: str) -> int | None:
    """vLLM states its cache's settings as labels of one series."""
    answer, _ = await _get(client, base_url + "/metrics")
    if answer is None:
        return None
    found = re.search(r'vllm:cache_config_info\{[^}]*\bblock_size="(\d+)"', answer.text)
    return int(found[1]) if found else None


def _list(models: Any) -> list[dict[str, Any]]:
    data = models.get("data") if isinstance(models, dict) else None
    return [model for model in data if isinstance(model, dict)] if isinstance(data, list) else []
