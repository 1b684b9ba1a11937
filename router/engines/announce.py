"""How the embedded engine says under which settings it runs, and how the adapter reads it back.

llama.cpp shows neither whether its KV cache is split nor its micro-batch. It does list a model's tags, so the embedded
engine states both there; the context of a slot is in `/props`. With split KV, and a micro-batch as long as a slot's
context, a prompt is always computed whole and no other slot's tokens reach its attention: a read that is alone among
reads and bypasses the cache is isolated (docs/engines.md has the measurements).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

SPLIT_KV = "logprob-router:split-kv"
MICRO_BATCH = "logprob-router:micro-batch="
_MICRO_BATCH = re.compile(re.escape(MICRO_BATCH) + "([0-9]{1,9})")


def announcement(*, split_kv: bool, micro_batch: int) -> set[str]:
    """The tags that state these settings."""
    return {f"{MICRO_BATCH}{micro_batch}", *((SPLIT_KV,) if split_kv else ())}


def read_announcement(models: Iterable[Mapping[str, Any]], props: Mapping[str, Any]) -> str | None:
    """What vouches for this engine, in words, or None.

    Args:
        models: the entries of `/v1/models`.
        props: `/props`.
    """
    lists = [model.get("tags") for model in models]
    tags = {tag for found in lists if isinstance(found, list) for tag in found if isinstance(tag, str)}
    # Another program may use these words: what is no plain number states nothing, and must not end the watch.
    batches = [int(found[1]) for tag in tags if (found := _MICRO_BATCH.fullmatch(tag))]
    settings = props.get("default_generation_settings")
    context = settings.get("n_ctx") if isinstance(settings, Mapping) else None
    if SPLIT_KV not in tags or not batches or not isinstance(context, int) or context > min(batches):
        return None
    return f"split KV, micro-batch {min(batches)} for a context of {context}"
