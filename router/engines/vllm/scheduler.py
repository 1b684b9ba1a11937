"""The scheduler's two rules for reads, and what keeps chat from starving.

1. A read owns its engine step. vLLM mixes prefills and decodes of many requests in one step; in a read's step every
   other request stands aside and loses nothing. A long read's next chunk owns its step too, and is as long as the
   token budget allows, whoever else is there.
2. A read neither looks up nor fills the prefix cache: its blocks never get a hash, so vLLM puts them at the front of
   the free list when it ends and hands them out again before any cached block.

Beside them: after a read's step, chats that have work get `read_step_ratio` steps. A read that finds no room waits
for it, and chats that came after it wait behind it, as they would in vLLM. A read whose chunks have begun takes the
blocks of the youngest running chat if the pool is full, as any running request in vLLM does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from router.engines.vllm import checks, marks
from router.engines.vllm.counters import Cause, Counters
from router.engines.vllm.options import Options

logger = logging.getLogger("vllm.logprob_router")
"""Below vLLM's own logger, so that its handlers print it."""

QUEUES = ("waiting", "skipped_waiting", "kv_holding_waiting")
"""Where requests wait in vLLM's scheduler; which of them it has depends on its version."""


class ReadIsolationScheduler(Scheduler):  # type: ignore[misc]
    """vLLM's scheduler with read isolation. With async scheduling on, it makes an `AsyncReadIsolationScheduler`."""

    running: list[Any]

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> ReadIsolationScheduler:
        asked = AsyncReadIsolationScheduler if vllm_config.scheduler_config.async_scheduling else cls
        made: ReadIsolationScheduler = super().__new__(asked if cls is ReadIsolationScheduler else cls)
        return made

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        """Takes what vLLM's `Scheduler` takes.

        Raises:
            HookError: this vLLM, or the way it is configured, is not one that the patch covers.
            ValueError: an option in the environment that cannot be used.
        """
        self.options = Options.from_environ()
        version = checks.check_version()
        checks.refuse_unsupported(vllm_config)
        super().__init__(vllm_config, *args, **kwargs)
        checks.check_attributes(self)
        self.counters = _counters(vllm_config.instance_id)
        self._reads: dict[str, Any] = {}
        """Isolated reads by request id, in the order in which they came."""
        self._owner: Any = None
        """The read that owns the step being made."""
        self._aside: list[Any] = []
        """Running requests that the step being made does not see."""
        self._blocked: Any = None
        """The read that found no room at its last try."""
        self._free_blocks_then = 0
        """Free blocks when it did."""
        self._chat_steps_owed = 0
        self._chats_stuck = False
        """The last step of everybody else computed nothing."""
        manager = self.kv_cache_manager
        manager.allocate_slots = self._making_room(manager.allocate_slots)
        manager.coordinator.cache_blocks = self._keeping_reads_out(manager.coordinator.cache_blocks)
        pool = manager.block_pool
        pool._maybe_evict_cached_block = self._counting_evictions(pool._maybe_evict_cached_block)
        logger.info(
            "vLLM %s with read isolation: %s isolated, %d chat step(s) after each read step",
            version,
            "every read is" if self.options.isolate_all else "marked reads are",
            self.options.read_step_ratio,
        )

    # -- which requests are reads

    def add_request(self, request: Any) -> None:
        if request.request_id not in self.requests and marks.isolates(request, self.options.isolate_all):
            self._reads[request.request_id] = request
            self._look_nothing_up(request)
            self.counters.add("reads")
        super().add_request(request)

    def _look_nothing_up(self, request: Any) -> None:
        request.skip_reading_prefix_cache = True

    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> Any:
        freed = super()._free_request(request, delay_free_blocks)
        self._reads.pop(request.request_id, None)
        if request is self._blocked:
            self._blocked = None
        return freed

    # -- the step

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """One engine step: a read's alone, or one of everybody else's."""
        chats = len(self.requests) > len(self._reads)
        owner = self._next_owner(chats)
        output = self._schedule_apart(owner, throttle_prefills) if self._reads else super().schedule(throttle_prefills)
        self._settle(owner, chats, output)
        return output

    def _schedule_apart(self, owner: Any, throttle_prefills: bool) -> Any:
        """vLLM's step over the requests that belong into it; all others are put aside, and back in their places.

        vLLM sees a read alone, so it does not cut it at `long_prefill_token_threshold` for others' sake either.
        """
        self._owner = owner
        running = self.running
        self.running = [request for request in running if self._belongs(request)]
        self._aside = [request for request in running if not self._belongs(request)]
        queues = {name: list(getattr(self, name)) for name in QUEUES if hasattr(self, name)}
        shown = {name: self._admissible(queue) for name, queue in queues.items()}
        for name, requests in shown.items():
            setattr(self, name, self._queue(requests))
        try:
            return super().schedule(throttle_prefills)
        finally:
            self.running = [*self._aside, *self.running]
            for name, queue in queues.items():
                setattr(self, name, self._merged(queue, shown[name], list(getattr(self, name))))
            self._aside, self._owner = [], None

    def _belongs(self, request: Any) -> bool:
        """Whether a request may be in the step being made."""
        if self._owner is not None:
            return request is self._owner
        return request.request_id not in self._reads

    def _admissible(self, queue: list[Any]) -> list[Any]:
        """The waiting requests that the step being made may see: none behind a read that waits for room."""
        if self._owner is None and self._blocked in queue:
            queue = queue[: queue.index(self._blocked)]
        return [request for request in queue if self._belongs(request)]

    def _queue(self, requests: list[Any]) -> Any:
        queue = create_request_queue(self.policy)
        for request in requests:
            queue.add_request(request)
        return queue

    def _merged(self, before: list[Any], shown: list[Any], left: list[Any]) -> Any:
        """A queue after a step, of which it saw only a part.

        Everybody who still waits keeps their place; who is new to it was preempted, and goes to the front.
        """
        known = set(before)
        still = (known - set(shown)) | set(left)
        new = [request for request in left if request not in known]
        return self._queue([*new, *(request for request in before if request in still)])

    def _next_owner(self, chats: bool) -> Any:
        """The read to make the coming step for; None for a step of everybody else's."""
        read = self._first_read()
        if read is None:
            self._chat_steps_owed = max(self._chat_steps_owed - 1, 0)
            return None
        if chats and self._chat_steps_owed > 0:
            self._chat_steps_owed -= 1
            return None
        if read.status != RequestStatus.RUNNING and not self._may_have_room(read):
            return None
        return read

    def _first_read(self) -> Any:
        """The read whose chunks have begun, else the first that waits; None if there is none to compute."""
        waiting = []
        for read in self._reads.values():
            if read.status == RequestStatus.RUNNING:
                if read.num_computed_tokens < read.num_tokens:
                    return read
            elif read.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED) or _grammar_is_ready(read):
                waiting.append(read)
        if not waiting:
            return None
        return min(waiting) if self.policy == SchedulingPolicy.PRIORITY else waiting[0]

    def _may_have_room(self, read: Any) -> bool:
        """Whether it is worth a try to admit a read. The try itself is vLLM's, which alone knows what fits."""
        slots: Any = getattr(self, "max_num_active_reqs", self.max_num_running_reqs)
        if self._slots_taken() >= slots:
            if self._blocked is not read:
                self._refuse(read)
            return False
        if read is not self._blocked or self._chats_stuck:
            return True
        free: int = self.kv_cache_manager.block_pool.get_num_free_blocks()
        return free != self._free_blocks_then

    def _slots_taken(self) -> int:
        taken: int = len(self.running) + self.num_waiting_for_streaming_input
        return taken

    def _refuse(self, read: Any) -> None:
        self._blocked = read
        self._free_blocks_then = self.kv_cache_manager.block_pool.get_num_free_blocks()
        self.counters.add("reads_refused")

    def _settle(self, owner: Any, chats: bool, output: Any) -> None:
        """Count a step that was made, and check it."""
        scheduled = output.num_scheduled_tokens
        self._chats_stuck = owner is None and not scheduled
        if owner is None:
            if scheduled:
                self.counters.add("chat_steps")
        elif owner.request_id in scheduled:
            self._blocked = None
            self._chat_steps_owed = self.options.read_step_ratio
            self.counters.add("read_steps")
            self.counters.add("read_tokens", scheduled[owner.request_id])
            if chats:
                self.counters.add("chat_steps_held")
        else:
            self._refuse(owner)
        self._check(scheduled, output)

    def _check(self, scheduled: dict[str, int], output: Any) -> None:
        """The middleware acknowledges no read once one was not isolated."""
        reads = [request_id for request_id in scheduled if request_id in self._reads]
        warm = [
            new.req_id for new in output.scheduled_new_reqs if new.req_id in self._reads and new.num_computed_tokens
        ]
        if (reads and len(scheduled) > 1) or warm:
            self.counters.add("reads_not_isolated", len(reads))
            logger.error("a read was not alone in its step (%s) or not cold (%s): a bug", list(scheduled), warm)

    # -- what vLLM's own step calls on its way

    def _making_room(self, allocate: Callable[..., Any]) -> Callable[..., Any]:
        """In a read's step vLLM sees no other running request to preempt, and would preempt the read itself."""

        def allocate_slots(request: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = allocate(request, *args, **kwargs)
            while blocks is None and request is self._owner and request.status == RequestStatus.RUNNING:
                if (chat := self._youngest_aside()) is None:
                    break
                self._aside.remove(chat)
                self._preempt_request(chat, time.monotonic())
                self.counters.add("chats_preempted")
                blocks = allocate(request, *args, **kwargs)
            return blocks

        return allocate_slots

    def _youngest_aside(self) -> Any:
        """The running chat that vLLM would preempt first."""
        chats = [request for request in self._aside if request.request_id not in self._reads]
        if not chats:
            return None
        return max(chats) if self.policy == SchedulingPolicy.PRIORITY else chats[-1]

    def _keeping_reads_out(self, cache: Callable[..., Any]) -> Callable[..., Any]:
        """The one place in vLLM where a request's blocks get a hash, by which others find them."""

        def cache_blocks(request: Any, num_computed_tokens: int) -> None:
            if request.request_id not in self._reads:
                cache(request, num_computed_tokens)

        return cache_blocks

    def _counting_evictions(self, evict: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def maybe_evict_cached_block(block: Any) -> bool:
            evicted = evict(block)
            if evicted:
                cause: Cause = "chat" if self._owner is None else "read"
                self.counters.add(f"evicted_blocks.{cause}")
                self.counters.add(f"evicted_tokens.{cause}", self.block_size)
            return evicted

        return maybe_evict_cached_block

    def shutdown(self) -> None:
        self.counters.remove()
        super().shutdown()


class AsyncReadIsolationScheduler(ReadIsolationScheduler, AsyncScheduler):  # type: ignore[misc]
    """The same over vLLM's `AsyncScheduler`, which makes a step while the one before it is computed."""


def _grammar_is_ready(request: Any) -> bool:
    """vLLM lets a request with structured output into a step once its grammar has been compiled."""
    if request.status != RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
        return False
    asked = request.structured_output_request
    return asked is not None and asked.grammar is not None


def _counters(instance: str) -> Counters:
    try:
        return Counters.create(instance)
    except OSError as error:
        logger.warning("nobody sees what is counted, so no read is acknowledged: %s", error)
        return Counters.private()
