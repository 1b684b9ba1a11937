"""The gate of exclusive isolation as a pure state machine. Time comes in as a value, in seconds.

Theory of operation

The gate stands before one engine. Two sides pass it: *traffic* (chat and all else) and *reads*. They are never inside
together. Reads come in bursts: the lane sends them one at a time, and says at each end whether more follow.

1. OPEN: no read is inside or asks. Traffic enters freely.
2. CLOSING: a read asks while traffic is inside. Traffic that is inside is not cut; traffic that comes is *held*. When
   the last one inside leaves, the reads enter: HOLDING. If traffic has been held for `max_hold` before that (a long
   chat is inside), all that is held enters, and the closing begins anew: the read goes on waiting, bounded by the
   lane's own timeout, and traffic never waits longer than `max_hold` for a read that cannot start.
3. HOLDING: reads are inside, or the next of their burst is about to enter. Traffic that comes is held. The hold ends
   when no read follows; and when it has lasted `max_hold` and traffic is held, it *yields* after the read that runs:
   all that is held enters, and the reads that follow ask again, behind it.

So traffic waits at most `max_hold` (closing) + `max_hold` + one read (holding), and a read waits for the traffic that
was inside, plus what entered at each yield. Who gives up waiting is forgotten; a closing without a read that asks, and
a hold without one that follows, end at once.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Generic, TypeVar

T = TypeVar("T")


class Phase(Enum):
    OPEN = auto()
    CLOSING = auto()
    HOLDING = auto()


class GateState(Generic[T]):
    """Who is inside and who waits. `T` is the shell's token for one that waits."""

    def __init__(self, max_hold: float) -> None:
        self.max_hold = max_hold
        self.phase = Phase.OPEN
        self.since = 0.0
        self.traffic = 0
        self.reads = 0
        self.held: deque[T] = deque()
        self.asking: deque[T] = deque()

    def traffic_enters(self, token: T) -> bool:
        """Whether traffic may enter now; otherwise it is held."""
        if self.phase is Phase.OPEN:
            self.traffic += 1
            return True
        self.held.append(token)
        return False

    def read_enters(self, token: T, now: float) -> tuple[bool, list[T]]:
        """Whether a read may enter now (otherwise it asks), and the tokens of traffic that enters instead."""
        if self.phase is Phase.HOLDING and not self._must_yield(now):
            self.reads += 1
            return True, []
        if self.phase is Phase.OPEN and not self.traffic:
            self._begin(Phase.HOLDING, now)
            self.reads += 1
            return True, []
        self.asking.append(token)
        if self.phase is Phase.OPEN:
            self._begin(Phase.CLOSING, now)
        elif self.phase is Phase.HOLDING and not self.reads:
            return False, self._yield(now)
        return False, []

    def traffic_leaves(self, now: float) -> list[T]:
        """The reads that enter because traffic left."""
        self.traffic -= 1
        if self.phase is Phase.CLOSING and not self.traffic:
            return self._let_reads_in(now)
        return []

    def read_leaves(self, now: float, *, more: bool) -> list[T]:
        """Who enters because a read left; `more`: another read of the burst comes at once."""
        self.reads -= 1
        if self.reads:
            return []
        if self._must_yield(now):
            return self._yield(now)
        if self.asking:
            return self._let_reads_in(now)
        return [] if more else self._yield(now)

    def settle(self, now: float) -> list[T]:
        """No read follows after all: an empty hold ends."""
        if self.phase is Phase.HOLDING and not self.reads:
            return self._yield(now)
        return []

    def waits(self, token: T) -> bool:
        """Whether it is held or asks."""
        return token in self.held or token in self.asking

    def forget(self, token: T, now: float) -> list[T]:
        """One that waited gives up; who enters because of that."""
        if token in self.held:
            self.held.remove(token)
        elif token in self.asking:
            self.asking.remove(token)
            if self.phase is Phase.CLOSING and not self.asking:
                return self._yield(now)
        return []

    def expire(self, now: float) -> list[T]:
        """The traffic that enters because a closing lasted too long."""
        if self.phase is Phase.CLOSING and self.held and now >= self.since + self.max_hold:
            return self._yield(now)
        return []

    @property
    def deadline(self) -> float | None:
        """When `expire` is due."""
        return self.since + self.max_hold if self.phase is Phase.CLOSING and self.held else None

    def _must_yield(self, now: float) -> bool:
        return bool(self.held) and now >= self.since + self.max_hold

    def _begin(self, phase: Phase, now: float) -> None:
        self.phase = phase
        self.since = now

    def _let_reads_in(self, now: float) -> list[T]:
        entering = list(self.asking)
        self.asking.clear()
        self.reads += len(entering)
        self._begin(Phase.HOLDING, now)
        return entering

    def _yield(self, now: float) -> list[T]:
        """All that is held enters. Reads that ask wait for it; if nothing is inside, they enter themselves."""
        entering = list(self.held)
        self.held.clear()
        self.traffic += len(entering)
        if not self.asking:
            self._begin(Phase.OPEN, now)
        elif self.traffic:
            self._begin(Phase.CLOSING, now)
        else:
            return self._let_reads_in(now)
        return entering
