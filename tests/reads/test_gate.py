"""The gate of exclusive isolation: never both sides at once, nobody held longer than the bounds, nothing leaked."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.reads.gate import Gate
from router.reads.gate_state import GateState, Phase

HOLD = 10.0
LONGEST_READ = 3.0
LONGEST_CHAT = 4.0


class GateMachine(RuleBasedStateMachine):
    """Traffic and reads that come, stay a bounded time and leave, in simulated time."""

    def __init__(self) -> None:
        super().__init__()
        self.state: GateState[int] = GateState(HOLD)
        self.now = 0.0
        self.next = 0
        self.traffic: dict[int, float] = {}  # inside, and when it leaves
        self.reads: dict[int, float] = {}
        self.waits: dict[int, float] = {}  # waiting, and since when

    def token(self) -> int:
        self.next += 1
        return self.next

    def enter(self, tokens: list[int]) -> None:
        for token in tokens:
            began = self.waits.pop(token)
            if token % 2:
                self.reads[token] = self.now + LONGEST_READ
            else:
                self.traffic[token] = self.now + LONGEST_CHAT
                assert self.now - began <= 2 * HOLD + LONGEST_READ + 0.001

    @rule(stay=st.floats(0.1, LONGEST_CHAT))
    def chat(self, stay: float) -> None:
        token = self.next = self.next + 2 - self.next % 2
        if self.state.traffic_enters(token):
            self.traffic[token] = self.now + stay
        else:
            self.waits[token] = self.now

    @rule(stay=st.floats(0.1, LONGEST_READ))
    def read(self, stay: float) -> None:
        if self.reads:
            return  # the lane sends one at a time
        token = self.next = self.next + 1 + self.next % 2
        self.waits[token] = self.now
        entered, others = self.state.read_enters(token, self.now)
        if entered:
            del self.waits[token]
            self.reads[token] = self.now + stay
        self.enter(others)

    @rule(more=st.booleans())
    def read_ends(self, more: bool) -> None:
        if self.reads:
            token = next(iter(self.reads))
            self.now = max(self.now, min(self.reads[token], self.now + LONGEST_READ))
            self.pass_time()
            del self.reads[token]
            self.enter(self.state.read_leaves(self.now, more=more))
            if more and not self.reads:
                self.enter(self.state.settle(self.now))

    @rule(at=st.integers(0, 20))
    def gives_up(self, at: int) -> None:
        if self.waits:
            token = list(self.waits)[at % len(self.waits)]
            del self.waits[token]
            self.enter(self.state.forget(token, self.now))

    @rule(seconds=st.floats(0.1, 15.0))
    def time_passes(self, seconds: float) -> None:
        if not self.reads:
            self.now += seconds
            self.pass_time()

    def pass_time(self) -> None:
        for token in [token for token, end in self.traffic.items() if end <= self.now]:
            del self.traffic[token]
            self.enter(self.state.traffic_leaves(self.now))
        deadline = self.state.deadline
        if deadline is not None and deadline <= self.now:
            self.enter(self.state.expire(self.now))

    @invariant()
    def holds(self) -> None:
        state = self.state
        assert not (self.traffic and self.reads), "both sides are inside"
        assert (state.traffic, state.reads) == (len(self.traffic), len(self.reads))
        assert {*state.held, *state.asking} == set(self.waits)
        if state.phase is Phase.OPEN:
            assert not self.waits
            assert not self.reads
        if state.phase is Phase.CLOSING:
            assert state.asking
            assert state.traffic


TestGateMachine = GateMachine.TestCase
TestGateMachine.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_read_waits_for_running_traffic_and_new_traffic_for_the_burst() -> None:
    gate = Gate(max_hold=5)
    await gate.enter_traffic()
    read = asyncio.create_task(gate.enter_reads())
    await settle()
    assert not read.done()
    late = asyncio.create_task(gate.enter_traffic())
    await settle()
    assert gate.held == 2
    gate.leave_traffic()
    await read
    assert not late.done()
    assert gate.statistics().phase == "holding"
    gate.leave_reads(more=True)
    await gate.enter_reads()
    gate.leave_reads()
    await late
    gate.leave_traffic()
    assert gate.statistics() == type(gate.statistics())("open", 0, 0, 0, 0)


async def test_traffic_behind_a_read_that_cannot_start_is_let_through() -> None:
    gate = Gate(max_hold=0.05)
    await gate.enter_traffic()  # a chat without an end
    read = asyncio.create_task(gate.enter_reads())
    await settle()
    await asyncio.wait_for(gate.enter_traffic(), 1.0)
    assert not read.done()
    gate.leave_traffic()
    gate.leave_traffic()
    await read
    gate.leave_reads()


async def test_a_long_burst_yields() -> None:
    gate = Gate(max_hold=0.0)
    await gate.enter_reads()
    chat = asyncio.create_task(gate.enter_traffic())
    await settle()
    gate.leave_reads(more=True)
    await chat
    read = asyncio.create_task(gate.enter_reads())
    await settle()
    assert not read.done()
    gate.leave_traffic()
    await read
    gate.leave_reads()


async def test_a_read_after_an_expired_empty_hold_lets_traffic_in_first() -> None:
    gate = Gate(max_hold=0.02)
    await gate.enter_reads()
    gate.leave_reads(more=True)
    chat = asyncio.create_task(gate.enter_traffic())
    await asyncio.sleep(0.03)
    read = asyncio.create_task(gate.enter_reads())
    await chat
    assert not read.done()
    gate.leave_traffic()
    await read
    gate.leave_reads()


async def test_a_hold_kept_for_nobody_is_given_up() -> None:
    gate = Gate(max_hold=5)
    await gate.enter_reads()
    gate.leave_reads(more=True)
    chat = asyncio.create_task(gate.enter_traffic())
    await settle()
    assert not chat.done()
    gate.settle()
    await chat
    gate.settle()
    gate.leave_traffic()


@pytest.mark.parametrize("released", [False, True])
async def test_who_gives_up_waiting_is_forgotten(released: bool) -> None:
    gate = Gate(max_hold=5)
    await gate.enter_traffic()
    read = asyncio.create_task(gate.enter_reads())
    await settle()
    chat = asyncio.create_task(gate.enter_traffic())
    await settle()
    if released:
        gate.leave_traffic()  # lets the read in, in the turn in which it is cancelled
    read.cancel()
    with pytest.raises(asyncio.CancelledError):
        await read
    await chat
    gate.leave_traffic()
    if not released:
        gate.leave_traffic()
    assert gate.held == 0
    assert gate.statistics().phase == "open"


async def test_a_storm_leaks_nothing() -> None:
    gate, chance = Gate(max_hold=0.01), random.Random(3)
    inside = {"traffic": 0, "reads": 0}
    one_read = asyncio.Lock()

    async def traffic() -> None:
        await gate.enter_traffic()
        inside["traffic"] += 1
        try:
            assert not inside["reads"]
            await asyncio.sleep(chance.random() * 0.005)
        finally:
            inside["traffic"] -= 1
            gate.leave_traffic()

    async def read() -> None:
        async with one_read:
            await gate.enter_reads()
            inside["reads"] += 1
            try:
                assert not inside["traffic"]
                await asyncio.sleep(chance.random() * 0.002)
            finally:
                inside["reads"] -= 1
                gate.leave_reads()

    async def disturbed(number: int) -> None:
        task = asyncio.create_task(read() if number % 3 == 0 else traffic())
        await asyncio.sleep(chance.random() * 0.03)
        if chance.random() < 0.5:
            task.cancel()
        result = (await asyncio.gather(task, return_exceptions=True))[0]
        assert not isinstance(result, AssertionError)

    await asyncio.wait_for(asyncio.gather(*(disturbed(number) for number in range(200))), 20)
    assert gate.statistics() == type(gate.statistics())("open", 0, 0, 0, 0)
