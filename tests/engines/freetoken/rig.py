"""FreeToken's own scheduler and cache classes without an engine: batches are scheduled, 'run' and drained in the order
of its overlapped loop (batch N+1 is scheduled and launched before batch N is drained).
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from freetoken.core import Context, SamplingParams, get_global_ctx, set_global_ctx
from freetoken.distributed import get_tp_info, set_tp_info
from freetoken.engine.sample import Sampler
from freetoken.kvcache.dsv4.v4_cost_model import dsv4_pool_sizes
from freetoken.kvcache.dsv4.v4_pool import DSV4PagedKVCache
from freetoken.kvcache.hybrid_swa_pool import HybridSWAKVCache
from freetoken.kvcache.linear_state_pool import LinearStatePool
from freetoken.models.config import KVCacheGroupSpec, LinearGatedDeltaGroupConfig
from freetoken.scheduler.cache import CacheManager
from freetoken.scheduler.decode import DecodeManager
from freetoken.scheduler.prefill import ChunkedReq, PrefillManager
from freetoken.scheduler.table import TableManager
from freetoken.scheduler.utils import PendingReq

from router.engines.freetoken.wire import ReadSamplingParams

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # FreeToken's linear-attention kernels say that there is no GPU
    import freetoken.kernel.fla  # noqa: F401

torch.cuda.nvtx.range = lambda *args, **kwargs: nullcontext()  # absent from torch's CPU build

CPU = torch.device("cpu")
CACHES = ("naive", "radix", "hybrid", "swa", "swa-naive", "dsv4")
TREES = ("radix", "hybrid", "swa", "dsv4")
"""Caches that keep prefixes."""
WINDOW = 8
PROMPT = list(range(10, 30))

try:
    get_tp_info()
except RuntimeError:
    set_tp_info(rank=0, size=1)
try:
    get_global_ctx()
except AssertionError:
    set_global_ctx(Context(page_size=1))


def gdn_pool(slots: int) -> LinearStatePool:
    group = LinearGatedDeltaGroupConfig(
        name="linear",
        layer_ids=(0,),
        num_key_heads=2,
        num_value_heads=4,
        key_head_dim=16,
        value_head_dim=16,
        conv_kernel_dim=4,
        output_gate="silu",
    )
    return LinearStatePool(group=group, num_slots=slots, dtype=torch.bfloat16, device=CPU, tp_size=1)


def _swa_pool(pages: int, tokens: int) -> HybridSWAKVCache:
    groups = [
        KVCacheGroupSpec(name="full", layer_ids=(0,), num_kv_heads=1, head_dim=4, sliding_window=None),
        KVCacheGroupSpec(name="swa", layer_ids=(1,), num_kv_heads=1, head_dim=4, sliding_window=WINDOW),
    ]
    return HybridSWAKVCache(groups, 2, pages, 1, torch.bfloat16, CPU, num_swa_tokens=tokens + 1)


def _dsv4_pool(pages: int, window_pages: int) -> DSV4PagedKVCache:
    shape = SimpleNamespace(n_layers=1, head_dim=4, index_head_dim=4, compress_ratios=(0,))
    sizes = dsv4_pool_sizes(pages + 1, shape, 1.0, P=WINDOW, n_win_pages=window_pages + 1)
    pool = DSV4PagedKVCache(sizes, shape, CPU, P=WINDOW)
    pool._init_paged_state(8, True)
    return pool


class Rig:
    """
    Args:
        cache: one of CACHES.
        pages, room: size of the KV pool in pages, and of the window pool in tokens.
        budget: prompt tokens in one prefill pass.
    """

    def __init__(
        self,
        cache: str,
        *,
        pages: int = 256,
        page: int = 1,
        budget: int = 64,
        slots: int = 32,
        room: int = 256,
        running: int = 8,
    ) -> None:
        width = 256
        table = torch.zeros((running + 1, width), dtype=torch.int32)
        kind, more = cache, {}
        if cache == "hybrid":
            kind, more = "hybrid_radix", {"linear_state_pool": gdn_pool(slots)}
        elif cache in ("swa", "swa-naive"):
            kind = "swa_radix" if cache == "swa" else "naive"
            more = {"swa_pool": _swa_pool(pages, room), "sliding_window_size": WINDOW}
        elif cache == "dsv4":
            page, pages = WINDOW, pages // WINDOW
            kind = "swa_radix"
            more = {"swa_pool": _dsv4_pool(pages, room // WINDOW), "sliding_window_size": WINDOW}
        self.cache_name, self.page, self.budget = cache, page, budget
        self.cache = CacheManager(pages, page, table, kind, **more)
        self.table = TableManager(running, table)
        self.decode = DecodeManager(page)
        self.prefill = PrefillManager(self.cache, self.table, self.decode)
        self.sampler = Sampler(CPU, 64)
        self.last: Any = None
        self.finished: set[Any] = set()
        self.done: list[int] = []
        self.passes: list[tuple[str, list[tuple[int, int, int]]]] = []
        """Of each pass: its phase, and of each request in it the id, where it resumed and where it ended."""

    # -- requests

    def chat(self, uid: int, ids: list[int], tokens: int = 3) -> None:
        self._add(uid, ids, SamplingParams(max_tokens=tokens))

    def read(self, uid: int, ids: list[int], **params: Any) -> ReadSamplingParams:
        marked = ReadSamplingParams(**{"max_tokens": 1, "read_isolate": True, **params})
        self._add(uid, ids, marked)
        return marked

    def _add(self, uid: int, ids: list[int], params: SamplingParams) -> None:
        self.prefill.pending_list.append(PendingReq(uid, torch.tensor(ids, dtype=torch.int32), params))

    # -- the loop

    def step(self) -> bool:
        """One turn of the loop; False if nothing was left to do."""
        batch = self.prefill.schedule_next_batch(self.budget) or self.decode.schedule_next_batch()
        if batch is not None:
            if batch.is_prefill:
                self.cache.free_swa_out_of_window_extend(batch.reqs)
            self.cache.allocate_paged(batch.reqs)
            self.sampler.prepare(batch)
            self.passes.append((batch.phase, [(r.uid, r.cached_len, r.device_len) for r in batch.reqs]))
            for req in batch.reqs:
                req.complete_one()
            self.decode.filter_reqs(batch.reqs)
        self.drain()
        busy = batch is not None or self.last is not None or self.prefill.runnable
        self.last = batch
        return busy

    def drain(self) -> None:
        if self.last is None:
            return
        finished = set()
        with self.cache.lazy_free_region():
            for req in self.last.reqs:
                if isinstance(req, ChunkedReq):
                    if req.aborted:
                        self.free(req)
                elif req.aborted:
                    self.decode.remove_req(req)
                    self.free(req)
                    finished.add(req)
                elif req not in self.finished:
                    req.append_host(torch.tensor([req.uid % 50 + 1000], dtype=torch.int32))
                    if req.input_ids.numel() >= req.max_device_len:
                        self.decode.remove_req(req)
                        self.free(req)
                        finished.add(req)
                        self.done.append(req.uid)
                    elif self.last.is_prefill and req.table_idx != -1:
                        self.cache.cache_req(req, finished=False)
        self.finished = finished
        self.last = None

    def free(self, req: Any) -> None:
        if req.table_idx == -1:
            return
        self.cache.cache_req(req, finished=True)
        self.table.free(req.table_idx)
        req.table_idx = -1

    def abort(self, uid: int) -> None:
        """As FreeToken does when an abort arrives: what is in flight is only marked."""
        req = self.prefill.abort_req(uid) or self.decode.abort_req(uid)
        if req is None:
            return
        if self.last is not None and req in self.last.reqs:
            req.aborted = True
        else:
            self.free(req)

    def run(self) -> list[list[tuple[int, int, int]]]:
        """Until all is done; returns the prefill passes of this run."""
        before = len(self.passes)
        for _ in range(1000):
            if not self.step():
                break
        else:
            raise AssertionError("it never came to rest")
        self.cache.check_integrity()
        return [requests for phase, requests in self.passes[before:] if phase == "prefill"]

    # -- what is left

    def tree(self) -> list[tuple[Any, ...]]:
        """The prefix cache: of each node its token path, pages, snapshot, tombstone and locks."""
        cache = self.cache.prefix_cache
        root = getattr(cache, "root_node", None) or getattr(cache, "root", None)
        if root is None:
            return []
        nodes, stack = [], [(root, ())]
        while stack:
            node, path = stack.pop()
            for child in node.children.values():
                here = path + tuple(child._key.tolist())
                nodes.append(
                    (here, tuple(child.value.tolist()), child.mamba_value, child.swa_tombstone, child.ref_count)
                )
                stack.append((child, here))
        return sorted(nodes, key=lambda node: node[0])

    def free_units(self) -> tuple[int, ...]:
        """Free KV pages, table rows, GDN slots and window slots."""
        cache = self.cache
        return (
            len(cache.free_slots),
            len(self.table._free_slots),
            cache.linear_state_pool.num_free_slots if cache.is_hybrid else 0,
            cache.swa_pool.swa_available_size() if cache.swa_paged else 0,
        )
