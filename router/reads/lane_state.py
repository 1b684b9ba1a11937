"""The lane as a pure state machine: no clock, no socket, no task.

Theory of operation

1. A *ticket* is one client request. `admit` makes one, or refuses it: the lane holds at most `max_queued` tickets that
   wait. A ticket waits from its admission until it holds a slot, and again between the prompts of a list.
2. A *turn* is one read at one endpoint. `ask` puts a ticket at the back of the queue; `assign` gives the ticket at the
   front to an endpoint that is up and has a free slot, the least recently used one first. Nothing overtakes.
3. `done` frees the slot. A list asks again afterwards and stands at the back, so that a single read behind a list of
   any length waits for at most two of its prompts: the one that runs and, if the list asked first, one more.
   A ticket that was once admitted is never refused when it asks again.
4. `leave` ends a ticket in any state: a waiting one loses its place, a running one frees its slot. It may be called
   more than once. A ticket that left is never assigned.
5. Endpoints go down and come up. A slot in use at an endpoint that goes down is freed by its read, as always. With
   several endpoints, and all of them down, nothing waits: `stranded` says so and the shell turns every waiter away.
   A single endpoint is never taken out: its reads find out for themselves, and at once.
6. Invariants: no endpoint has more than `in_flight` tickets; a ticket is in the queue at most once; a ticket holds at
   most one slot; if a ticket waits, no endpoint that is up has a free slot (after `assign`).

The caller (the shell in lane.py) measures time; this module never asks for it.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Generic, TypeVar


class LaneRefusal(Exception):
    """A read gets no turn."""


class LaneFull(LaneRefusal):
    """As many requests wait as may."""


class Stage(Enum):
    """Where a ticket stands."""

    ADMITTED = auto()  # between turns
    QUEUED = auto()
    RUNNING = auto()
    LEFT = auto()


class Entry:
    """One ticket's place in the state machine."""

    __slots__ = ("endpoint", "stage")

    def __init__(self) -> None:
        self.stage = Stage.ADMITTED
        self.endpoint = -1


E = TypeVar("E", bound=Entry)


class LaneState(Generic[E]):
    """The queue and the slots. `E` is what the shell makes of an `Entry`."""

    def __init__(self, endpoints: int, *, in_flight: int = 1, max_queued: int = 1024) -> None:
        self.in_flight = in_flight
        self.max_queued = max_queued
        self.queue: deque[E] = deque()
        self.running = [0] * endpoints
        self.up = [True] * endpoints
        self.waiting = 0
        self._order = list(range(endpoints))  # least recently used first

    def admit(self, entry: E) -> None:
        """Take a new ticket.

        Raises:
            LaneFull: `max_queued` tickets wait, and no slot is free for this one.
        """
        if self.waiting >= self.max_queued and (self.waiting or self._free() < 0):
            raise LaneFull
        self.waiting += 1

    def ask(self, entry: E) -> None:
        """The ticket wants a turn: to the back of the queue."""
        if entry.stage is not Stage.ADMITTED:
            raise RuntimeError(f"a ticket asks for a turn while it is {entry.stage.name}")
        entry.stage = Stage.QUEUED
        self.queue.append(entry)

    def assign(self) -> E | None:
        """Give the next ticket its slot, or None if nobody waits or nothing is free."""
        if not self.queue:
            return None
        endpoint = self._free()
        if endpoint < 0:
            return None
        entry = self.queue.popleft()
        entry.stage = Stage.RUNNING
        entry.endpoint = endpoint
        self.running[endpoint] += 1
        self.waiting -= 1
        if len(self._order) > 1:
            self._order.remove(endpoint)
            self._order.append(endpoint)
        return entry

    def done(self, entry: E) -> None:
        """The ticket's read ended; the ticket may ask again."""
        if entry.stage is Stage.RUNNING:
            self.running[entry.endpoint] -= 1
            entry.endpoint = -1
            entry.stage = Stage.ADMITTED
            self.waiting += 1

    def give_up(self, entry: E) -> None:
        """The ticket waits no longer for this turn."""
        if entry.stage is Stage.QUEUED:
            self.queue.remove(entry)
            entry.stage = Stage.ADMITTED

    def leave(self, entry: E) -> None:
        """The ticket ends."""
        self.give_up(entry)
        if entry.stage is Stage.RUNNING:
            self.done(entry)
        if entry.stage is Stage.ADMITTED:
            entry.stage = Stage.LEFT
            self.waiting -= 1

    def set_up(self, endpoint: int, up: bool) -> None:
        """An endpoint went down or came up."""
        if len(self.up) > 1:
            self.up[endpoint] = up

    @property
    def stranded(self) -> bool:
        """No endpoint is up."""
        return not any(self.up)

    @property
    def is_idle(self) -> bool:
        """No ticket waits or runs."""
        return self.waiting == 0 and not any(self.running)

    def _free(self) -> int:
        """The endpoint that takes the next read, or -1."""
        if len(self.running) == 1:
            return 0 if self.running[0] < self.in_flight else -1
        candidates = [i for i in self._order if self.up[i] and self.running[i] < self.in_flight]
        return min(candidates, key=lambda i: self.running[i], default=-1)
