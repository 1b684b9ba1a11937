"""Whether the installed vLLM, and the way it is configured, are ones that the patch was written for.

vLLM calls its scheduler interface not public. So everything that we override, wrap or call is named here with its
parameters, and what is missing or has moved is a refusal that names it. A version outside VERSIONS whose names all
fit runs with a warning: every step is checked as it is made, and a read that was not isolated is not acknowledged.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

from router.engines.targets import HookError, Target

logger = logging.getLogger("router.engines.vllm")

VERSIONS = ("0.32.0",)
"""vLLM versions that the patch ran on, end to end."""

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler."
_MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager."
_POOL = "vllm.v1.core.block_pool:BlockPool."

SCHEDULER_TARGETS = (
    Target(_SCHEDULER + "schedule", ("self", "throttle_prefills")),
    Target(_SCHEDULER + "add_request", ("self", "request")),
    Target(_SCHEDULER + "shutdown", ("self",)),
    Target(_SCHEDULER + "_free_request", ("self", "request", "delay_free_blocks")),
    Target(_SCHEDULER + "_preempt_request", ("self", "request", "timestamp"), leading=True),
    Target("vllm.v1.core.sched.async_scheduler:AsyncScheduler.__init__", ("self", "args", "kwargs")),
    Target("vllm.v1.core.sched.request_queue:create_request_queue", ("policy",)),
    Target("vllm.v1.request:Request.get_skip_reading_prefix_cache", ("self",)),
    Target(_MANAGER + "allocate_slots", ("self", "request"), leading=True),
    Target(
        "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator.cache_blocks", ("self", "request", "num_computed_tokens")
    ),
    Target(_POOL + "get_num_free_blocks", ("self",)),
    Target(_POOL + "_maybe_evict_cached_block", ("self", "block")),
)
"""What the scheduler overrides, wraps or relies on."""

ENTRY_TARGETS = (
    Target(
        "vllm.v1.engine.output_processor:OutputProcessor.add_request",
        ("self", "request", "prompt", "parent_req", "request_index", "queue"),
    ),
)
"""What the middleware wraps."""

ATTRIBUTES = (
    "running",
    "waiting",
    "requests",
    "policy",
    "block_size",
    "max_num_running_reqs",
    "num_waiting_for_streaming_input",
    "kv_cache_manager.coordinator",
    "kv_cache_manager.block_pool",
)
"""What the scheduler reads of a scheduler that has been made."""


def version() -> str:
    """The installed vLLM's version, without its build.

    Raises:
        HookError: there is none.
    """
    try:
        found: str = importlib.import_module("vllm.version").__version__
    except ImportError as error:
        raise HookError(
            f"vLLM is not installed beside logprob-router ({error}). Install logprob-router in vLLM's own "
            "environment: pip install --no-deps logprob-router, then click, if it is missing."
        ) from None
    return found.partition("+")[0]


def problems() -> list[str]:
    """What the patch misses in the installed vLLM, one line each."""
    return [text for target in (*SCHEDULER_TARGETS, *ENTRY_TARGETS) if (text := target.problem())]


def check_version() -> str:
    """The installed vLLM's version, once everything that the patch touches is where it was.

    Raises:
        HookError: something moved; the message names it.
    """
    found = version()
    if moved := problems():
        tried = ", ".join(VERSIONS)
        raise HookError(f"vLLM {found} does not fit the read hooks (they fit {tried}): " + "; ".join(moved))
    if found not in VERSIONS:
        logger.warning(
            "vLLM %s was not tried with the read hooks (tried: %s). Every name fits; verify before you rely on it.",
            found,
            ", ".join(VERSIONS),
        )
    return found


def unsupported(config: Any) -> list[str]:
    """What a `VllmConfig` asks for that read isolation does not cover, one line each."""
    model, parallel = config.model_config, config.parallel_config
    refusals = (
        (config.kv_transfer_config, "KV connectors: they fetch and keep prefixes outside of the scheduler"),
        (config.ec_transfer_config, "encoder-cache connectors"),
        (config.speculative_config, "speculative decoding: not tried"),
        (parallel.pipeline_parallel_size > 1, "pipeline parallelism: not tried"),
        (
            parallel.data_parallel_size > 1 and model.is_moe,
            "data parallelism with a mixture-of-experts model: the ranks share their experts' passes",
        ),
        (model.is_encoder_decoder, "encoder-decoder models"),
        (model.is_diffusion, "diffusion models"),
    )
    return [text for asked, text in refusals if asked]


def refuse_unsupported(config: Any) -> None:
    """Raises: HookError: the configuration asks for something that read isolation does not cover."""
    if found := unsupported(config):
        raise HookError("read isolation does not cover: " + "; ".join(found) + ". Leave it out, or the patch.")


def check_attributes(scheduler: Any) -> None:
    """Raises: HookError: a scheduler lacks what the patch reads of it."""
    missing = []
    for path in ATTRIBUTES:
        found = scheduler
        try:
            for part in path.split("."):
                found = getattr(found, part)
        except AttributeError:
            missing.append(path)
    if missing:
        raise HookError("vLLM's Scheduler does not fit the read hooks: it lacks " + ", ".join(missing))
