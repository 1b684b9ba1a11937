"""The scheduler over vLLM's real scheduler and KV cache classes, without a model."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from router.engines.targets import HookError
from router.engines.vllm.options import PREFIX
from router.engines.vllm.scheduler import AsyncReadIsolationScheduler, ReadIsolationScheduler
from tests.engines.vllm import properties
from tests.engines.vllm.rig import Rig, config, tokens

pytestmark = pytest.mark.engines

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@BOTH
def test_running_chats_stand_aside(asynchronous: bool) -> None:
    properties.running_chats_stand_aside(asynchronous)


@BOTH
def test_waiting_requests_stay_where_they_are(asynchronous: bool) -> None:
    properties.waiting_requests_stay_where_they_are(asynchronous)


@BOTH
def test_chunks_depend_on_nothing_but_the_read(asynchronous: bool) -> None:
    properties.chunks_depend_on_nothing_but_the_read(asynchronous)


@pytest.mark.parametrize("ratio", [0, 1, 2, 4])
def test_chats_get_their_steps(ratio: int) -> None:
    properties.chats_get_their_steps(ratio)


@pytest.mark.parametrize(
    "check",
    [
        properties.reads_look_nothing_up,
        properties.reads_leave_nothing_behind,
        properties.a_conversation_is_still_cached,
        properties.a_started_read_takes_blocks_from_the_youngest_chat,
        properties.nobody_overtakes_a_read_that_waits_for_room,
        properties.everybody_keeps_their_place,
        properties.slots_are_bounded,
        properties.finished_reads_are_forgotten,
        properties.unmarked_requests_are_chats,
        properties.evictions_have_a_cause,
        properties.steps_are_counted,
        properties.a_mixed_step_is_noticed,
        properties.a_warm_read_is_noticed,
        properties.counters_end_with_the_scheduler,
    ],
    ids=lambda check: check.__name__,
)
def test_property(check: object) -> None:
    check()  # type: ignore[operator]


def test_stock_loses_the_conversation() -> None:
    """The measure measures."""
    rig = Rig(blocks=60, scheduler_class=Scheduler)
    turn = tokens(500, 1)
    rig.cached("c1", turn)
    for i in range(96):
        rig.add(f"r{i}", tokens(100, 50 + i))
    rig.run()
    assert rig.cached("c2", [*turn, 5, 6]) == 0


def test_priorities_decide_among_reads_and_among_chats() -> None:
    rig = Rig(policy="priority")
    for i, priority in enumerate([5, 0, 3]):
        rig.add(f"r{i}", tokens(20, i), priority=priority)
        rig.add(f"c{i}", tokens(60, 20 + i), priority=priority)
    made = rig.run()
    assert [name for step in made for name in step.reads] == ["r1", "r2", "r0"]
    assert properties.alone(made)
    chats = [name for step in made for name in step.scheduled if name not in step.reads]
    assert list(dict.fromkeys(chats)) == ["c1", "c2", "c0"]


def test_under_priorities_the_least_gives_its_blocks() -> None:
    rig = Rig(policy="priority", blocks=16, budget=64)
    rig.scheduler.scheduler_reserve_full_isl = False
    rig.add("c1", tokens(30, 1), answer=40, priority=9)
    rig.add("c2", tokens(34, 2), answer=40, priority=1)
    rig.step()
    rig.add("c3", tokens(150, 4), answer=3, priority=1)
    rig.add("r1", tokens(100, 3))
    victim = rig.scheduler.requests["c1"]
    made = rig.run()
    assert victim.num_preemptions >= 1
    assert rig.count("chats_preempted") >= 1
    assert properties.alone(made)
    assert sorted(rig.done) == ["c1", "c2", "c3", "r1"]


def test_async_scheduling_gets_the_async_class() -> None:
    assert isinstance(Rig(asynchronous=True).scheduler, AsyncReadIsolationScheduler)
    assert isinstance(Rig(asynchronous=True).scheduler, AsyncScheduler)
    assert not isinstance(Rig().scheduler, AsyncScheduler)
    assert type(Rig(scheduler_class=AsyncReadIsolationScheduler).scheduler) is AsyncReadIsolationScheduler


def test_every_read_is_isolated_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "LOGPROB_READ_ISOLATE", "1")
    rig = Rig()
    rig.add("c1", tokens(20, 1), answer=1, logprobs=5)
    rig.add("c2", tokens(20, 2), answer=1, prompt_logprobs=0)
    rig.add("c3", tokens(20, 3), answer=1, logprob_token_ids=[1, 2])
    rig.add("c4", tokens(20, 4), answer=1)
    rig.add("c5", tokens(20, 5), answer=2, logprobs=5)
    rig.add("c6", tokens(20, 6), answer=1, logprobs=5, extra_args={"logprob_router_read": 0})
    made = [list(step.scheduled) for step in rig.run()]
    assert ["c1"] in made
    assert ["c2"] in made
    assert ["c3"] in made
    assert ["c4", "c5", "c6"] in made


def test_a_paused_engine_is_left_alone() -> None:
    from vllm.v1.core.sched.interface import PauseState

    rig = Rig()
    rig.add("r1", tokens(20, 1))
    rig.add("c1", tokens(20, 2))
    rig.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    assert [rig.step().scheduled for _ in range(4)] == [{}] * 4
    rig.scheduler.set_pause_state(PauseState.UNPAUSED)
    rig.run()
    assert sorted(rig.done) == ["c1", "r1"]


def test_a_reset_of_the_cache_that_preempts_running_reads() -> None:
    """They begin again, cold and alone."""
    rig = Rig(budget=64)
    rig.add("r1", tokens(150, 1))
    rig.add("c1", tokens(20, 2), answer=5)
    rig.step()
    rig.step()
    rig.scheduler.reset_prefix_cache(reset_running_requests=True)
    made = rig.run()
    assert [step.scheduled["r1"] for step in made if step.reads] == [64, 64, 22]
    assert properties.alone(made)
    assert sorted(rig.done) == ["c1", "r1"]


@pytest.mark.parametrize("name", ["kv_transfer_config", "ec_transfer_config", "speculative_config"])
def test_what_is_not_covered_is_refused(name: str) -> None:
    asked = config(blocks=20, budget=64, slots=4, policy="fcfs", threshold=0, asynchronous=False)
    object.__setattr__(asked, name, object())
    with pytest.raises(HookError, match=r"read isolation does not cover: .*Leave it out"):
        ReadIsolationScheduler(vllm_config=asked)


def test_pipelines_are_refused() -> None:
    asked = config(blocks=20, budget=64, slots=4, policy="fcfs", threshold=0, asynchronous=False)
    asked.parallel_config.pipeline_parallel_size = 2
    with pytest.raises(HookError, match="pipeline parallelism"):
        ReadIsolationScheduler(vllm_config=asked)


def test_experts_that_ranks_share_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config(blocks=20, budget=64, slots=4, policy="fcfs", threshold=0, asynchronous=False)
    asked.parallel_config.data_parallel_size = 2
    monkeypatch.setattr(type(asked.model_config), "is_moe", True)
    with pytest.raises(HookError, match="mixture-of-experts"):
        ReadIsolationScheduler(vllm_config=asked)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from("rrccas" + "s" * 6),
        st.integers(0, 99),
        st.sampled_from([1, 15, 16, 17, 31, 63, 64, 65, 100, 127, 128, 129, 200, 255, 260]),
    ),
    min_size=5,
    max_size=60,
)


@BOTH
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(operations=OPERATIONS, blocks=st.integers(24, 60), reserve=st.booleans())
def test_any_traffic(
    asynchronous: bool, policy: str, operations: list[tuple[str, int, int]], blocks: int, reserve: bool
) -> None:
    """Reads, chats, aborts and too small a pool: every read is alone, cold and cut alike; everybody finishes."""
    rig = Rig(blocks=blocks, budget=64, slots=5, policy=policy, asynchronous=asynchronous)
    rig.scheduler.scheduler_reserve_full_isl = reserve
    rnd = random.Random(blocks)
    shared = tokens(300, 1)
    alive: list[str] = []
    lengths: dict[str, int] = {}
    for number, (kind, choice, size) in enumerate(operations):
        if kind == "r" or kind == "c":
            name = f"{kind}{number}"
            prompt = [*shared[:size], number % 900 + 1]
            answer = 1 if kind == "r" else choice % 30 + 1
            rig.add(name, prompt, answer=answer, priority=choice % 3)
            lengths[name] = len(prompt)
            alive.append(name)
        elif kind == "a" and alive:
            rig.abort(alive.pop(rnd.randrange(len(alive))))
        else:
            rig.step()
    rig.run(8000)
    assert properties.alone(rig.steps)
    assert rig.count("reads_not_isolated") == 0
    assert set(alive) <= set(rig.done) | {"already done when aborted"}
    assert rig.free_blocks == blocks - 1
    assert rig.scheduler._reads == {}
    for name, length in lengths.items():
        if name.startswith("r") and name in rig.done:
            assert rig.done[name] == 0
            cut = [step.scheduled[name] for step in rig.steps if name in step.scheduled]
            whole = [64] * (length // 64) + ([length % 64] if length % 64 else [])
            assert cut[-len(whole) :] == whole, (cut, whole)
