"""vLLM's real scheduler and KV cache, with our class over it and no model: what a step computes is what it schedules."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from router.engines.vllm.counters import read_totals
from router.engines.vllm.marks import MARK
from router.engines.vllm.scheduler import ReadIsolationScheduler

BLOCK = 16
LONGEST = 2048
_numbers = itertools.count()
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": LONGEST,
    "vocab_size": 1000,
    "torch_dtype": "float32",
}


@cache
def model_folder() -> str:
    folder = Path(tempfile.mkdtemp(prefix="vllm-rig-"))
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    return str(folder)


def config(*, blocks: int, budget: int, slots: int, policy: str, threshold: int, asynchronous: bool) -> VllmConfig:
    made = VllmConfig(
        model_config=ModelConfig(model=model_folder(), skip_tokenizer_init=True, max_model_len=LONGEST),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_model_len=LONGEST,
            is_encoder_decoder=False,
            max_num_seqs=slots,
            max_num_batched_tokens=budget,
            enable_chunked_prefill=True,
            long_prefill_token_threshold=threshold,
            policy=policy,
        ),
        instance_id=f"rig{next(_numbers)}",
    )
    made.cache_config.num_gpu_blocks = blocks
    made.scheduler_config.async_scheduling = asynchronous  # the CPU platform turns it off
    return made


def tokens(count: int, seed: int) -> list[int]:
    """No two seeds share a prefix."""
    return [(seed * 7919 + i * (seed + 1)) % 900 + 1 for i in range(count)]


@dataclass
class Step:
    """Tokens of each request in a step, in order."""

    scheduled: dict[str, int]

    @property
    def reads(self) -> list[str]:
        return [name for name in self.scheduled if name.startswith("r")]


@dataclass
class Rig:
    """A scheduler, and an engine that answers every step; with `asynchronous`, one step later.

    Requests whose names begin with r are marked reads; all others are chats.
    """

    blocks: int = 200
    budget: int = 64
    slots: int = 8
    policy: str = "fcfs"
    threshold: int = 0
    asynchronous: bool = False
    scheduler_class: type = ReadIsolationScheduler
    done: dict[str, int] = field(default_factory=dict)
    """Cached prompt tokens of finished requests."""
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = config(
            blocks=self.blocks,
            budget=self.budget,
            slots=self.slots,
            policy=self.policy,
            threshold=self.threshold,
            asynchronous=self.asynchronous,
        )
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        self.scheduler: Any = self.scheduler_class(
            vllm_config=self.config,
            kv_cache_config=KVCacheConfig(
                num_blocks=self.blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
            ),
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=BLOCK,
            log_stats=True,
        )
        self._in_flight: deque[tuple[Any, Any]] = deque()

    def add(self, name: str, prompt: list[int], *, answer: int = 1, priority: int = 0, **params: Any) -> Any:
        """A request; `answer` tokens are its longest answer."""
        if name.startswith("r"):
            params = {"logprobs": 5, "extra_args": {MARK: 1}, **params}
        sampling = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True, **params)
        sampling.update_from_generation_config({}, 999)
        request = Request(
            request_id=name,
            prompt_token_ids=prompt,
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=float(next(_numbers)),
            priority=priority,
            block_hasher=self.hasher,
        )
        self.scheduler.add_request(request)
        return request

    def step(self) -> Step:
        """Make a step, and answer it or the one before it."""
        scheduled = self.scheduler.schedule()
        self._in_flight.append((scheduled, self._answer(scheduled)))
        if not self.asynchronous or len(self._in_flight) == 2:
            self.settle()
        made = Step(dict(scheduled.num_scheduled_tokens))
        self.steps.append(made)
        return made

    def _answer(self, scheduled: Any) -> ModelRunnerOutput:
        names = list(scheduled.num_scheduled_tokens)
        requests = [self.scheduler.requests[name] for name in names]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[] if request.is_prefill_chunk else [7] for request in requests],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def settle(self) -> None:
        """Give the scheduler what the oldest step in flight computed."""
        scheduled, answer = self._in_flight.popleft()
        for output in self.scheduler.update_from_output(scheduled, answer).values():
            for one in output.outputs:
                if one.finish_reason is not None:
                    self.done[one.request_id] = one.prefill_stats.num_cached_tokens if one.prefill_stats else 0

    def run(self, limit: int = 2000) -> list[Step]:
        """Step until nothing is left; returns the steps that computed something."""
        made = []
        for _ in range(limit):
            if not self.scheduler.has_unfinished_requests():
                while self._in_flight:
                    self.settle()
                return made
            one = self.step()
            if one.scheduled:
                made.append(one)
        raise AssertionError(f"not done after {limit} steps: {list(self.scheduler.requests)}")

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def cached(self, name: str, prompt: list[int]) -> int:
        """How many tokens of a prompt a chat would take from the prefix cache, by sending it."""
        self.add(name, prompt)
        self.run()
        return self.done[name]

    @property
    def free_blocks(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()  # type: ignore[no-any-return]

    @property
    def hashed_blocks(self) -> int:
        return sum(block.block_hash is not None for block in self.scheduler.kv_cache_manager.block_pool.blocks)

    def count(self, cell: str) -> int:
        totals = read_totals(self.config.instance_id)
        assert totals is not None
        return totals[cell]
