"""The fair gate of exclusive isolation: an asyncio shell around `GateState`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from router.reads.gate_state import GateState

Waiter = asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """A snapshot: the phase, who is inside and who waits."""

    phase: str
    traffic: int
    reads: int
    held: int
    asking: int


class Gate:
    """Keeps reads and all other traffic apart at one engine.

    Args:
        max_hold: seconds for which one side may hold off the other.
    """

    def __init__(self, *, max_hold: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.state: GateState[Waiter] = GateState(max_hold)
        self._timer: asyncio.TimerHandle | None = None

    async def enter_traffic(self) -> None:
        """Wait until traffic may pass. Pair with `leave_traffic`."""
        waiter: Waiter = self.loop.create_future()
        if not self.state.traffic_enters(waiter):
            self._watch()
            await self._wait(waiter, self.leave_traffic)

    def leave_traffic(self) -> None:
        self._release(self.state.traffic_leaves(self.loop.time()))

    async def enter_reads(self) -> None:
        """Wait until a read may pass. Pair with `leave_reads`."""
        waiter: Waiter = self.loop.create_future()
        entered, others = self.state.read_enters(waiter, self.loop.time())
        self._release(others)
        if not entered:
            await self._wait(waiter, self.leave_reads)

    def leave_reads(self, *, more: bool = False) -> None:
        """`more`: another read of the burst enters at once; if it does not after all, `settle`."""
        self._release(self.state.read_leaves(self.loop.time(), more=more))

    def settle(self) -> None:
        """No read follows: give up a hold that was kept for it."""
        self._release(self.state.settle(self.loop.time()))

    @property
    def held(self) -> int:
        """Requests that wait at the gate, on either side."""
        return len(self.state.held) + len(self.state.asking)

    def statistics(self) -> GateStatistics:
        """What `/lane` shows."""
        s = self.state
        return GateStatistics(s.phase.name.lower(), s.traffic, s.reads, len(s.held), len(s.asking))

    async def _wait(self, waiter: Waiter, leave: Callable[[], None]) -> None:
        try:
            await waiter
        except BaseException:
            if self.state.waits(waiter):
                self._release(self.state.forget(waiter, self.loop.time()))
            else:
                leave()  # let in, and cancelled in the same turn of the loop
            raise

    def _release(self, waiters: list[Waiter]) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._watch()

    def _watch(self) -> None:
        deadline = self.state.deadline
        if self._timer is not None and (deadline is None or self._timer.when() != deadline):
            self._timer.cancel()
            self._timer = None
        if deadline is not None and self._timer is None:
            self._timer = self.loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._release(self.state.expire(self.loop.time()))
