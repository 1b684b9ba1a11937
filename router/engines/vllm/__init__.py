"""vLLM with read isolation: a scheduler class and a middleware for the vLLM that the user has installed.

    vllm serve MODEL --scheduler-cls router.engines.vllm.ReadIsolationScheduler \
        --middleware router.engines.vllm.ReadIsolationMiddleware

A read (scores wanted, one token) owns its engine step, its chunks too, and neither reads nor fills the prefix cache.
Everything else keeps its path. docs/engines-vllm.md.

vLLM looks the two classes up by name in the processes that need them; nothing here imports vLLM before that.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "ReadIsolationScheduler": "router.engines.vllm.scheduler",
    "AsyncReadIsolationScheduler": "router.engines.vllm.scheduler",
    "ReadIsolationMiddleware": "router.engines.vllm.middleware",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
