"""A stand-in for FreeToken's engine that needs no GPU: the real sampler over `model.scores`."""

from __future__ import annotations

import contextlib
import os
import time
import types
import warnings
from typing import Any

import torch

from tests.engines.freetoken.standin.model import decode_scores, scores


class _Stream:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_stream(self, other: Any) -> None: ...

    def synchronize(self) -> None: ...


class _Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record(self, *args: Any) -> None: ...

    def synchronize(self) -> None: ...


class _Unpinned(types.ModuleType):
    """torch for one module, without pinned memory."""

    def __init__(self) -> None:
        super().__init__("torch")

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        if name not in ("empty", "tensor", "zeros"):
            return found

        def make(*args: Any, **kwargs: Any) -> torch.Tensor:
            kwargs.pop("pin_memory", None)
            made: torch.Tensor = found(*args, **kwargs)
            return made

        return make


class _Barrier:
    def barrier(self) -> Any:
        return types.SimpleNamespace(wait=lambda: None)


class CpuEngine:
    cache = "radix"

    def __init__(self, config: Any) -> None:
        from freetoken.core import Context, set_global_ctx
        from freetoken.distributed import set_tp_info
        from freetoken.engine.sample import Sampler

        set_tp_info(rank=0, size=1)
        self.config, self.device, self.stream = config, torch.device("cpu"), _Stream()
        self.num_pages = config.num_page_override or (config.num_token_override or 4096) // config.page_size
        self.max_seq_len = min(config.max_seq_len, self.num_pages * config.page_size)
        self.ctx = Context(config.page_size)
        set_global_ctx(self.ctx)
        rows, width = config.max_running_req + 1, (self.max_seq_len + 31) // 32 * 32
        self.page_table = self.ctx.page_table = torch.zeros((rows, width), dtype=torch.int32)
        self.kv_cache = types.SimpleNamespace()
        self.linear_state_pool = self.encoder_cache = self.moe_offload_cache = None
        self.tp_cpu_group = _Barrier()
        if self.cache == "hybrid":
            from freetoken.kvcache.linear_state_pool import _linear_pool_num_slots

            from tests.engines.freetoken.rig import gdn_pool

            object.__setattr__(config, "cache_type", "hybrid_radix")
            self.linear_state_pool = self.ctx.linear_state_pool = gdn_pool(_linear_pool_num_slots(config))
        self.sampler = Sampler(self.device, config.model_config.vocab_size)
        self.attn_backend = types.SimpleNamespace(prepare_metadata=lambda batch: None)
        self.graph_runner = types.SimpleNamespace(pad_batch=_pad)
        self.step = float(os.environ.get("FREETOKEN_STANDIN_STEP", "0"))

    def forward_batch(self, batch: Any, args: Any) -> Any:
        from freetoken.engine.engine import ForwardOutput

        time.sleep(self.step)
        total, end, rows = sum(req.extend_len for req in batch.reqs), 0, []
        for req in batch.reqs:
            end += req.extend_len
            if batch.is_prefill:
                rows.append(scores(req.input_ids[: req.device_len].tolist(), total, req.cached_len))
            else:
                rows.append(decode_scores(int(batch.input_ids[end - 1]), req.device_len))
        for req in batch.reqs:
            req.complete_one()
        tokens = self.sampler.sample(torch.stack(rows), args).to(torch.int32)
        return ForwardOutput(tokens, tokens.clone(), _Event())

    def shutdown(self) -> None: ...


def _pad(batch: Any) -> None:
    batch.padded_reqs = list(batch.reqs)


def install(scheduler: Any, cache: str) -> None:
    """Put the stand-in into the module `freetoken.scheduler.scheduler` and what it imports."""
    import freetoken.attention.linear
    import freetoken.engine
    import freetoken.engine.sample

    current: dict[str, Any] = {}
    torch.cuda.Stream = _Stream
    torch.cuda.Event = _Event
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.cuda.set_stream = lambda stream: current.update(stream=stream)
    torch.cuda.current_stream = lambda *args: current.get("stream")
    torch.cuda.synchronize = lambda *args: None
    torch.cuda.nvtx.range = lambda *args, **kwargs: contextlib.nullcontext()
    warnings.filterwarnings("ignore", message="Triton is not supported")
    for module in (scheduler, freetoken.engine.sample, freetoken.attention.linear):
        module.torch = _Unpinned()
    CpuEngine.cache = cache
    freetoken.engine.Engine = CpuEngine
