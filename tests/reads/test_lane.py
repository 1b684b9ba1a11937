"""The lane: the state machine's invariants under any sequence of events, and the shell around it."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from router.reads.lane import Lane, LaneClosed, LaneFull, NoEndpoint, Ticket, TurnExpired
from router.reads.lane_state import Entry, LaneState, Stage


class LaneMachine(RuleBasedStateMachine):
    """Tickets that come, ask, finish, give up and leave, and endpoints that go up and down, in any order."""

    @initialize(endpoints=st.integers(1, 3), in_flight=st.integers(1, 2), max_queued=st.integers(0, 4))
    def begin(self, endpoints: int, in_flight: int, max_queued: int) -> None:
        self.state: LaneState[Entry] = LaneState(endpoints, in_flight=in_flight, max_queued=max_queued)
        self.live: list[Entry] = []
        self.asked: list[Entry] = []

    def pump(self) -> None:
        while (entry := self.state.assign()) is not None:
            assert entry is self.asked.pop(0), "turns come in the order of asking"

    @rule()
    def admit_and_ask(self) -> None:
        entry = Entry()
        waiting = self.state.waiting
        try:
            self.state.admit(entry)
        except LaneFull:
            assert waiting >= self.state.max_queued
            return
        assert waiting < self.state.max_queued or waiting == 0
        self.live.append(entry)
        self.ask(entry)

    def ask(self, entry: Entry) -> None:
        self.state.ask(entry)
        self.asked.append(entry)
        self.pump()

    @rule(at=st.integers(0, 9), again=st.booleans())
    def finish(self, at: int, again: bool) -> None:
        running = [entry for entry in self.live if entry.stage is Stage.RUNNING]
        if running:
            entry = running[at % len(running)]
            self.state.done(entry)
            self.pump()
            if again:
                self.ask(entry)
            else:
                self.drop(entry)

    @rule(at=st.integers(0, 9))
    def leave(self, at: int) -> None:
        if self.live:
            self.drop(self.live[at % len(self.live)])

    def drop(self, entry: Entry) -> None:
        if entry in self.asked:
            self.asked.remove(entry)
        self.state.leave(entry)
        self.state.leave(entry)
        self.live.remove(entry)
        self.pump()

    @rule(at=st.integers(0, 2), up=st.booleans())
    def flip(self, at: int, up: bool) -> None:
        self.state.set_up(at % len(self.state.up), up)
        self.pump()

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "state"):
            return
        state = self.state
        stages = [entry.stage for entry in self.live]
        assert all(0 <= running <= state.in_flight for running in state.running)
        assert sum(state.running) == stages.count(Stage.RUNNING)
        assert state.waiting == len(stages) - stages.count(Stage.RUNNING)
        assert list(state.queue) == self.asked
        assert state.is_idle == (not self.live)
        if state.queue:
            assert not any(
                up and running < state.in_flight for up, running in zip(state.up, state.running, strict=True)
            )


TestLaneMachine = LaneMachine.TestCase
TestLaneMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_ticket_asks_once_for_a_turn() -> None:
    state: LaneState[Entry] = LaneState(1)
    entry = Entry()
    state.admit(entry)
    state.ask(entry)
    with pytest.raises(RuntimeError, match="QUEUED"):
        state.ask(entry)


def test_the_least_recently_used_endpoint_is_next() -> None:
    state: LaneState[Entry] = LaneState(3)
    taken = []
    for _ in range(6):
        entry = Entry()
        state.admit(entry)
        state.ask(entry)
        assert state.assign() is entry
        taken.append(entry.endpoint)
        state.done(entry)
        state.leave(entry)
    assert taken == [0, 1, 2, 0, 1, 2]


async def run_one(lane: Lane, log: list[str], name: str, hold: asyncio.Event | None = None) -> None:
    ticket = lane.admit()
    try:
        await ticket.turn()
        log.append(name)
        if hold is not None:
            await hold.wait()
        ticket.done()
    finally:
        ticket.leave()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_turns_are_one_at_a_time_and_in_order() -> None:
    lane, log, hold = Lane(1), [], asyncio.Event()  # type: ignore[var-annotated]
    tasks = [asyncio.create_task(run_one(lane, log, "first", hold))]
    tasks += [asyncio.create_task(run_one(lane, log, str(n))) for n in range(5)]
    await settle()
    assert log == ["first"]
    statistics = lane.statistics()
    assert (statistics.queued, statistics.running, len(statistics.ages)) == (5, (1,), 5)
    assert lane.queued == 5
    assert lane.has_next
    hold.set()
    await asyncio.gather(*tasks)
    assert log == ["first", "0", "1", "2", "3", "4"]
    assert lane.is_idle
    await lane.idle()


async def test_a_single_read_waits_for_at_most_two_prompts_of_a_list() -> None:
    """Q05"""
    lane = Lane(1)
    log: list[str] = []

    async def list_read() -> None:
        ticket = lane.admit()
        try:
            for number in range(50):
                await ticket.turn()
                log.append(f"list {number}")
                await asyncio.sleep(0)
                ticket.done()
        finally:
            ticket.leave()

    running = asyncio.create_task(list_read())
    await settle()
    before = len(log)
    await run_one(lane, log, "single")
    assert log.index("single") - before <= 2
    await running
    assert [name for name in log if name != "single"] == [f"list {n}" for n in range(50)]


async def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    """Q02"""
    lane, log, hold = Lane(1, max_queued=2), [], asyncio.Event()  # type: ignore[var-annotated]
    tasks = [asyncio.create_task(run_one(lane, log, str(n), hold)) for n in range(3)]
    await settle()
    with pytest.raises(LaneFull):
        lane.admit()
    assert lane.statistics().full == 1
    assert lane.retry_after() == 1
    lane._service = 100.0
    assert lane.retry_after() == 60
    hold.set()
    await asyncio.gather(*tasks)
    assert lane.statistics().turns == 3


async def test_without_a_queue_only_a_free_slot_admits() -> None:
    lane = Lane(1, max_queued=0)
    ticket = lane.admit()
    assert await ticket.turn() == 0
    with pytest.raises(LaneFull):
        lane.admit()
    ticket.leave()
    lane.admit().leave()


async def test_an_expired_waiter_never_runs() -> None:
    """T04"""
    lane = Lane(1, queue_timeout=0.05)
    first = lane.admit()
    await first.turn()
    late = lane.admit()
    with pytest.raises(TurnExpired):
        await late.turn()
    late.leave()
    first.done()
    first.leave()
    assert late.stage is Stage.LEFT
    assert (lane.statistics().expired, lane.statistics().turns) == (1, 1)
    assert lane.is_idle


async def test_closing_turns_away_all_that_wait() -> None:
    """O04"""
    lane = Lane(1)
    running, waiting = lane.admit(), lane.admit()
    await running.turn()
    task = asyncio.create_task(waiting.turn())
    await settle()
    lane.close()
    with pytest.raises(LaneClosed):
        await task
    with pytest.raises(LaneClosed):
        lane.admit()
    waiting.leave()
    idle = asyncio.create_task(lane.idle())
    await settle()
    assert not idle.done()
    running.done()
    running.leave()
    await idle


async def test_with_all_of_several_endpoints_down_nobody_waits() -> None:
    lane = Lane(2)
    lane.set_up(0, False)
    ticket = lane.admit()
    assert await ticket.turn() == 1
    waiting = lane.admit()
    task = asyncio.create_task(waiting.turn())
    await settle()
    lane.set_up(1, False)
    with pytest.raises(NoEndpoint):
        await task
    with pytest.raises(NoEndpoint):
        lane.admit()
    lane.set_up(0, True)
    assert await waiting.turn() == 0
    assert lane.statistics().up == (True, False)
    for each in (ticket, waiting):
        each.leave()
    assert lane.is_idle


async def test_a_single_endpoint_is_never_taken_out() -> None:
    lane = Lane(1)
    lane.set_up(0, False)
    ticket = lane.admit()
    assert await ticket.turn() == 0
    ticket.leave()


async def test_cancelling_in_the_turn_of_the_hand_over_loses_nothing() -> None:
    lane = Lane(1)
    first, second, third = lane.admit(), lane.admit(), lane.admit()
    await first.turn()
    tasks = [asyncio.create_task(ticket.turn()) for ticket in (second, third)]
    await settle()
    first.done()  # the slot is the second's now, whose task has not run yet
    tasks[0].cancel()
    assert await tasks[1] == 0
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    for ticket in (first, second, third):
        ticket.leave()
    assert lane.is_idle


async def test_a_storm_of_cancellations_leaks_no_slot() -> None:
    """C04"""
    lane, chance = Lane(2, in_flight=1, queue_timeout=0.02), random.Random(7)
    running = 0

    async def read() -> None:
        nonlocal running
        ticket = lane.admit()
        try:
            for _ in range(chance.randrange(1, 4)):
                await ticket.turn()
                running += 1
                assert running <= 2
                try:
                    await asyncio.sleep(chance.random() * 0.003)
                finally:
                    running -= 1
                    ticket.done()
        except TurnExpired:
            pass
        finally:
            ticket.leave()

    async def disturbed() -> None:
        task = asyncio.create_task(read())
        await asyncio.sleep(chance.random() * 0.02)
        if chance.random() < 0.6:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(disturbed() for _ in range(200)))
    assert lane.is_idle
    assert lane.statistics().running == (0, 0)
    ticket: Ticket = lane.admit()
    assert await ticket.turn() in (0, 1)
    ticket.leave()
