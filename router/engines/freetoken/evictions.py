"""What the scheduler pushes out of the prefix cache, and for whom; and its passes.

Counted as differences of the cache's own sizes around the two calls that make room, because FreeToken evicts in
several places that differ from version to version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from router.engines.freetoken.checks import Hook
from router.engines.freetoken.counters import Counters
from router.engines.freetoken.isolation import SCHEDULE, is_read
from router.engines.targets import Target

ALLOCATE = Target("freetoken.scheduler.cache:CacheManager.allocate_paged", ("self", "reqs"))
ENSURE_GDN = Target("freetoken.scheduler.cache:CacheManager.ensure_mamba_slots", ("self", "n"))


def _sizes(manager: Any) -> tuple[int, int, int]:
    """What the cache holds and could give up: KV tokens, GDN snapshots, sliding-window tokens."""
    cache = manager.prefix_cache
    tiered = manager.is_hybrid or manager.is_swa
    return (
        cache.full_evictable_size if tiered else cache.size_info.evictable_size,
        cache.mamba_evictable_size if manager.is_hybrid else 0,
        cache.swa_evictable_size if manager.is_swa else 0,
    )


def _count(counters: Counters, before: tuple[int, int, int], after: tuple[int, int, int]) -> None:
    for name, had, has in zip(
        ("evicted_kv_tokens", "evicted_gdn_snapshots", "evicted_swa_tokens"), before, after, strict=True
    ):
        counters.blame(name, max(had - has, 0))


def _allocating(counters: Counters) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def allocate_paged(self: Any, reqs: list[Any]) -> None:
            before = _sizes(self)
            original(self, reqs)
            with counters.serving("read" if any(map(is_read, reqs)) else "chat"):
                _count(counters, before, _sizes(self))

        return allocate_paged

    return make


def _making_room(counters: Counters) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def ensure_mamba_slots(self: Any, n: int) -> None:
            before = _sizes(self)
            original(self, n)
            _count(counters, before, _sizes(self))

        return ensure_mamba_slots

    return make


def _passes(counters: Counters) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def schedule_next_batch(self: Any, prefill_budget: int) -> Any:
            queue = self.pending_list
            with counters.serving("read" if queue and is_read(queue[0]) else "chat"):
                batch = original(self, prefill_budget)
            if batch is None:
                return None
            if is_read(batch.reqs[0]):
                counters.add("read_passes")
                counters.add("read_tokens", sum(req.extend_len for req in batch.reqs))
            else:
                counters.add("chat_passes")
            reads = {req.uid for req in batch.reqs if is_read(req)}
            for uid, prompt_tokens, cached_tokens in batch.prompt_admissions:
                if uid not in reads:
                    counters.add("chat_prompt_tokens", prompt_tokens)
                    counters.add("chat_cached_tokens", cached_tokens)
            return batch

        return schedule_next_batch

    return make


def hooks(counters: Counters) -> list[Hook]:
    return [
        Hook("count-evicted", ALLOCATE, _allocating(counters)),
        Hook("count-evicted-gdn", ENSURE_GDN, _making_room(counters)),
        Hook("count-passes", SCHEDULE, _passes(counters)),
    ]
