"""The lane: reads wait here and go one at a time. A thin asyncio shell around `LaneState`.

The shell adds futures, deadlines and a clock. A slot is handed on in the very call that frees it: `done` resolves the
next waiter's future, and no task or timer stands between.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import ceil

from router.reads.lane_state import Entry, LaneFull, LaneRefusal, LaneState, Stage

__all__ = ["Lane", "LaneClosed", "LaneFull", "LaneRefusal", "LaneStatistics", "NoEndpoint", "Ticket", "TurnExpired"]

LONGEST_RETRY = 60
SMOOTHING = 0.2


class TurnExpired(LaneRefusal):
    """No turn within the queue timeout; the read was not sent and never will be."""


class LaneClosed(LaneRefusal):
    """The router is stopping."""


class NoEndpoint(LaneRefusal):
    """None of several endpoints is up."""


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """A snapshot.

    Attributes:
        queued: client requests that wait for a turn.
        ages: seconds that those in the queue have waited for this turn, in their order (the first 100).
        running: reads in flight, by endpoint.
        up: whether each endpoint takes reads.
        admitted, turns, expired, full: totals since the start.
        service_seconds: smoothed time of one read.
    """

    queued: int
    ages: tuple[float, ...]
    running: tuple[int, ...]
    up: tuple[bool, ...]
    admitted: int
    turns: int
    expired: int
    full: int
    service_seconds: float


class Ticket(Entry):
    """One client request in the lane. Call `leave` in a `finally`."""

    __slots__ = ("_asked_at", "_future", "_lane", "_started_at", "_timer")

    def __init__(self, lane: Lane) -> None:
        super().__init__()
        self._lane = lane
        self._future: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asked_at = self._started_at = 0.0

    async def turn(self) -> int:
        """Wait for a turn, at the back of the queue; the index of the endpoint to use.

        Raises:
            TurnExpired, LaneClosed, NoEndpoint: the ticket holds nothing then.
        """
        lane = self._lane
        lane._refuse_if_shut()
        self._asked_at = lane.loop.time()
        lane.state.ask(self)
        lane._hand_on()
        if self.stage is not Stage.RUNNING:
            self._future = lane.loop.create_future()
            self._timer = lane.loop.call_later(lane.queue_timeout, lane._expire, self)
            try:
                await self._future
            except BaseException:
                self.done()  # it may have been handed over in the very turn of the loop that cancelled us
                lane.state.give_up(self)
                raise
            finally:
                self._future = None
                self._timer.cancel()
        lane.turns += 1
        self._started_at = lane.loop.time()
        return self.endpoint

    def done(self) -> None:
        """Give the slot back; whoever is next gets it in this call."""
        if self.stage is Stage.RUNNING:
            lane = self._lane
            if self._started_at:
                lane._served(lane.loop.time() - self._started_at)
                self._started_at = 0.0
            lane.state.done(self)
            lane._hand_on()

    def leave(self) -> None:
        """End the ticket, whatever it holds. May be called again."""
        lane = self._lane
        lane.state.leave(self)
        lane._hand_on()


class Lane:
    """The queue of reads in front of one or several endpoints.

    Args:
        endpoints: how many there are.
        in_flight: reads at one endpoint at a time.
        max_queued: client requests that may wait.
        queue_timeout: seconds that a ticket waits for one turn.
    """

    def __init__(
        self, endpoints: int, *, in_flight: int = 1, max_queued: int = 1024, queue_timeout: float = 60.0
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue_timeout = queue_timeout
        self.state: LaneState[Ticket] = LaneState(endpoints, in_flight=in_flight, max_queued=max_queued)
        self.admitted = self.turns = self.expired = self.full = 0
        self._service = 0.0
        self._closed = False
        self._idle_waiters: list[asyncio.Future[None]] = []

    def admit(self) -> Ticket:
        """A ticket for one client request.

        Raises:
            LaneFull, LaneClosed, NoEndpoint
        """
        self._refuse_if_shut()
        ticket = Ticket(self)
        try:
            self.state.admit(ticket)
        except LaneFull:
            self.full += 1
            raise
        self.admitted += 1
        return ticket

    @property
    def queued(self) -> int:
        """Client requests that wait for a turn."""
        return self.state.waiting

    @property
    def has_next(self) -> bool:
        """A read stands in the queue or has just been given its turn beside the one that asks."""
        return bool(self.state.queue)

    @property
    def is_idle(self) -> bool:
        """Nothing waits or runs."""
        return self.state.is_idle

    def set_up(self, endpoint: int, up: bool) -> None:
        """An endpoint went down or came up; with several of them the others take its reads."""
        self.state.set_up(endpoint, up)
        if self.state.stranded:
            self._turn_away(NoEndpoint())
        else:
            self._hand_on()

    def close(self) -> None:
        """Turn away all that wait and all that come; running reads go on."""
        self._closed = True
        self._turn_away(LaneClosed())

    async def idle(self) -> None:
        """Wait until nothing waits or runs."""
        while not self.state.is_idle:
            waiter = self.loop.create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def retry_after(self) -> int:
        """Whole seconds after which a place is likely: the queue's length at the pace of late, 1 to 60."""
        serving = sum(self.state.up) * self.state.in_flight or 1
        return min(LONGEST_RETRY, max(1, ceil(self._service * self.state.waiting / serving)))

    def statistics(self) -> LaneStatistics:
        """What `/lane` and the gauges show."""
        now = self.loop.time()
        state = self.state
        return LaneStatistics(
            queued=state.waiting,
            ages=tuple(round(now - ticket._asked_at, 3) for ticket, _ in zip(state.queue, range(100), strict=False)),
            running=tuple(state.running),
            up=tuple(state.up),
            admitted=self.admitted,
            turns=self.turns,
            expired=self.expired,
            full=self.full,
            service_seconds=round(self._service, 6),
        )

    # -- for tickets

    def _refuse_if_shut(self) -> None:
        if self._closed:
            raise LaneClosed
        if self.state.stranded:
            raise NoEndpoint

    def _hand_on(self) -> None:
        state = self.state
        while (ticket := state.assign()) is not None:
            future = ticket._future
            if future is not None and not future.done():
                future.set_result(None)
        if self._idle_waiters and state.is_idle:
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _expire(self, ticket: Ticket) -> None:
        self.expired += ticket.stage is Stage.QUEUED
        self._turn_one_away(ticket, TurnExpired())

    def _turn_away(self, error: Exception) -> None:
        for ticket in list(self.state.queue):
            self._turn_one_away(ticket, error)

    def _turn_one_away(self, ticket: Ticket, error: Exception) -> None:
        self.state.give_up(ticket)
        future = ticket._future
        if future is not None and not future.done():
            future.set_exception(error)

    def _served(self, seconds: float) -> None:
        self._service += (seconds - self._service) * (SMOOTHING if self._service else 1.0)
