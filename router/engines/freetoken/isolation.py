"""The scheduler's two rules for reads, and what keeps chat from starving.

1. A read is admitted only as the first request of a prefill pass and closes that pass. FreeToken puts a read's next
   chunk back at the head of its queue, so a chunk is alone by the same rule.
2. A read matches the prefix cache with length 0, and whatever way it ends it gives back all that it holds and leaves
   nothing in the cache.

Beside them: after a read pass the running chats get their decode step, because prefill has strict priority in
FreeToken and a queue of reads would stop them; and on models with a sliding-window pool a read waits rather than be
cut where other requests' use of the pool happens to cut it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any

from router.engines.freetoken.checks import Hook
from router.engines.freetoken.counters import Counters
from router.engines.targets import Target

SCHEDULE = Target("freetoken.scheduler.prefill:PrefillManager.schedule_next_batch", ("self", "prefill_budget"))
ADD_ONE = Target(
    "freetoken.scheduler.prefill:PrefillAdder._add_one_req",
    (
        "self",
        "pending_req",
        "cache_handle",
        "table_idx",
        "cached_len",
        "linear_slot_idx",
        "ping_pong",
        "next_track_idx",
        "restore_src",
        "swa_evicted_seqlen",
    ),
)
_CACHE = "freetoken.scheduler.cache:CacheManager."
MATCH = Target(_CACHE + "match_req", ("self", "req", "max_len"))
CACHE_REQ = Target(_CACHE + "cache_req", ("self", "req", "finished"))
RELEASES = (
    Target(_CACHE + "unlock", ("self", "handle")),
    Target(_CACHE + "_padded_tail", ("self", "req", "start")),
    Target(_CACHE + "_free", ("self", "indices")),
    Target(_CACHE + "_free_swa", ("self", "indices")),
    Target(_CACHE + "_free_req_slots", ("self", "req", "keep_live")),
)

IDLE_REFUSALS = 2
"""Passes that a read waits for a pool which nobody seems to use: the pass before it is still being drained."""


def is_read(request: Any) -> bool:
    """Whether a pending or running request of the scheduler is an isolated read."""
    return bool(getattr(request.sampling_params, "read_isolate", False))


def _alone(original: Callable[..., Any]) -> Callable[..., Any]:
    def schedule_next_batch(self: Any, prefill_budget: int) -> Any:
        queue = self.pending_list
        if not queue:
            return original(self, prefill_budget)
        shown = queue[:1] if is_read(queue[0]) else list(takewhile(lambda pending: not is_read(pending), queue))
        hidden = queue[len(shown) :]
        self.pending_list = shown
        try:
            return original(self, prefill_budget)
        finally:
            self.pending_list = [*self.pending_list, *hidden]

    return schedule_next_batch


def _yielding(steps: int, counters: Counters) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Owe the running chats `steps` decode steps after a read pass, to be paid before the next read pass.

    FreeToken decodes whenever no prefill pass comes of this call.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def schedule_next_batch(self: Any, prefill_budget: int) -> Any:
            owed = getattr(self, "decode_steps_owed", 0) if self.decode_manager.runnable else 0
            if owed and self.pending_list and is_read(self.pending_list[0]):
                self.decode_steps_owed = owed - 1
                counters.add("decode_yields")
                return None
            batch = original(self, prefill_budget)
            if batch is None:
                self.decode_steps_owed = max(owed - 1, 0)
            elif is_read(batch.reqs[0]):
                self.decode_steps_owed = steps
            else:
                self.decode_steps_owed = owed
            return batch

        return schedule_next_batch

    return make


def _no_match(original: Callable[..., Any]) -> Callable[..., Any]:
    def match_req(self: Any, req: Any, max_len: int | None = None) -> Any:
        return original(self, req, max_len=0 if is_read(req) else max_len)

    return match_req


def _no_donation(original: Callable[..., Any]) -> Callable[..., Any]:
    def cache_req(self: Any, req: Any, *, finished: bool) -> None:
        if not is_read(req):
            original(self, req, finished=finished)
        elif finished:
            _release(self, req)

    return cache_req


def _release(manager: Any, req: Any) -> None:
    """Give back every page, window slot and linear-attention slot of a request."""
    handle = req.cache_handle
    manager.unlock(handle)
    own = manager._padded_tail(req, handle.cached_len)
    if manager.swa_paged:
        manager._free_swa(own)
    manager._free(own)
    if manager.is_hybrid:
        manager._free_req_slots(req)


class _Idle:
    """A cache manager as it looks to a request that has the sliding-window pool to itself."""

    def __init__(self, manager: Any, room: int) -> None:
        self._manager = manager
        self.swa_available_size = room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


def _whole_chunks(original: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse a read's chunk that is shorter than the one it would get alone: the caller tries again next pass."""

    def _add_one_req(
        self: Any, pending_req: Any, cache_handle: Any, table_idx: int, cached_len: int, *more: Any, **named: Any
    ) -> Any:
        manager = self.cache_manager
        arguments = (pending_req, cache_handle, table_idx, cached_len, *more)
        if not (manager.swa_paged and is_read(pending_req)):
            return original(self, *arguments, **named)
        page = manager.page_size
        held = -(-cached_len // page) * page - named.get("swa_evicted_seqlen", 0)
        before = self.token_budget, self.reserved_size, self.reserved_swa
        self.cache_manager = _Idle(manager, manager.swa_pool.swa_num_tokens - 1 - held)
        try:
            wanted = original(self, *arguments, **named)
        finally:
            self.cache_manager = manager
            self.token_budget, self.reserved_size, self.reserved_swa = before
        got = original(self, *arguments, **named)
        if got is None or wanted is None or got.extend_len == wanted.extend_len:
            return got
        busy = bool(before[1])  # room reserved for the output of requests that are decoding
        refusals = getattr(pending_req, "idle_refusals", 0)
        if busy or refusals < IDLE_REFUSALS:
            pending_req.idle_refusals = 0 if busy else refusals + 1
            return None
        pending_req.sampling_params.read_mixed = True  # goes on, but nobody may call it isolated
        return got

    return _add_one_req


def hooks(decode_yield: int, counters: Counters) -> list[Hook]:
    """In the order in which they are laid around FreeToken's functions: the last is the outermost."""
    return [
        Hook("no-match", MATCH, _no_match),
        Hook("no-donation", CACHE_REQ, _no_donation, uses=RELEASES),
        Hook("whole-chunks", ADD_ONE, _whole_chunks),
        Hook("alone", SCHEDULE, _alone),
        Hook("decode-yield", SCHEDULE, _yielding(decode_yield, counters)),
    ]
