"""What must hold of the scheduler; each is a function that raises if it does not.

The tests call them with every hook in place, and test_mutations.py with one hook left out.
"""

from __future__ import annotations

import os
from pathlib import Path

from router.engines.vllm.counters import read_totals
from tests.engines.vllm.rig import BLOCK, Rig, Step, tokens


def names(steps: list[Step]) -> list[list[str]]:
    return [list(step.scheduled) for step in steps]


def alone(steps: list[Step]) -> bool:
    return all(len(step.scheduled) == 1 for step in steps if step.reads)


def running_chats_stand_aside(asynchronous: bool = False) -> None:
    rig = Rig(asynchronous=asynchronous)
    for i in range(3):
        rig.add(f"c{i}", tokens(20, i), answer=12)
    rig.step()
    rig.add("r1", tokens(30, 10))
    rig.add("r2", tokens(30, 11))
    made = rig.run()
    assert alone(made), names(made)
    assert [step.reads for step in made if step.reads] == [["r1"], ["r2"]]
    assert sorted(rig.done) == ["c0", "c1", "c2", "r1", "r2"]


def waiting_requests_stay_where_they_are(asynchronous: bool = False) -> None:
    """Nobody joins a read's step from the queue, reads and chats alike, and each keeps its place in it."""
    rig = Rig(asynchronous=asynchronous)
    for i in range(1, 4):
        rig.add(f"c{i}", tokens(10, i))
        rig.add(f"r{i}", tokens(10, 10 + i))
    made = rig.run()
    assert alone(made), names(made)
    assert [name for step in made for name in step.reads] == ["r1", "r2", "r3"]
    assert [name for step in made for name in step.scheduled if name not in step.reads] == ["c1", "c2", "c3"]


def everybody_keeps_their_place() -> None:
    """A read's step, in which there is no room for the others, does not shuffle the queue that they wait in."""
    rig = Rig(blocks=20)
    rig.add("c0", tokens(250, 1), answer=3)
    for _ in range(5):
        rig.step()
    for i in range(1, 4):
        rig.add(f"r{i}", tokens(60, 10 + i))
        rig.add(f"c{i}", tokens(60, 20 + i), answer=2)
    order = [f"{kind}{i}" for i in range(1, 4) for kind in "rc"]
    while rig.scheduler.has_unfinished_requests():
        rig.step()
        waiting = [request.request_id for request in rig.scheduler.waiting]
        assert waiting == [name for name in order if name in waiting], waiting


def chunks_depend_on_nothing_but_the_read(asynchronous: bool = False) -> None:
    quiet = Rig(budget=64, threshold=24, asynchronous=asynchronous)
    quiet.add("r1", tokens(150, 1))
    busy = Rig(budget=64, threshold=24, asynchronous=asynchronous)
    for i in range(5):
        busy.add(f"c{i}", tokens(40, 20 + i), answer=9)
    busy.step()
    busy.add("r1", tokens(150, 1))
    busy.add("c9", tokens(90, 30), answer=2)
    cut = [[step.scheduled["r1"] for step in rig.run() if step.reads] for rig in (quiet, busy)]
    assert cut == [[64, 64, 22]] * 2, cut
    assert alone(busy.steps)


def reads_look_nothing_up() -> None:
    rig = Rig()
    prompt = tokens(100, 1)
    assert rig.cached("c1", prompt) == 0
    assert rig.cached("c2", prompt) == 96, "the cache was not warm, so nothing is shown"
    for i in range(3):
        rig.add(f"r{i}", prompt)
    rig.run()
    assert [rig.done[f"r{i}"] for i in range(3)] == [0, 0, 0]
    assert rig.count("reads_not_isolated") == 0


def reads_leave_nothing_behind() -> None:
    rig = Rig()
    for i in range(10):
        rig.add(f"r{i}", tokens(100, i))
    rig.run()
    assert rig.hashed_blocks == 0
    assert rig.free_blocks == rig.blocks - 1  # one is vLLM's null block
    assert rig.cached("c1", tokens(100, 3)) == 0


def a_conversation_survives_reads(count: int = 96) -> int:
    """Cached tokens of a chat's next turn after so many reads in a pool that holds both, but not all of theirs."""
    rig = Rig(blocks=60)
    turn = tokens(500, 1)
    rig.cached("c1", turn)
    for i in range(count):
        rig.add(f"r{i}", tokens(100, 50 + i))
    rig.run()
    assert rig.count("evicted_blocks.read") == 0
    return rig.cached("c2", [*turn, 5, 6])


def a_conversation_is_still_cached() -> None:
    assert a_conversation_survives_reads() == 496


def chats_get_their_steps(ratio: int = 1) -> None:
    rig = Rig()
    rig.scheduler.options = type(rig.scheduler.options)(read_step_ratio=ratio)
    rig.add("c1", tokens(20, 1), answer=100)
    rig.step()
    for i in range(6):
        rig.add(f"r{i}", tokens(20, 10 + i))
    order = "".join("r" if step.reads else "c" for step in (rig.step() for _ in range(5 * (ratio + 1) + 1)))
    assert order == ("r" + "c" * ratio) * 5 + "r", order
    assert rig.count("chat_steps_held") == 6


def a_started_read_takes_blocks_from_the_youngest_chat() -> None:
    """Its chunks go on although a chat filled the pool meanwhile; that chat comes back and finishes."""
    rig = Rig(blocks=16, budget=64)
    rig.scheduler.scheduler_reserve_full_isl = False  # else vLLM admits nobody whose whole prompt does not fit
    rig.add("c1", tokens(30, 1), answer=40)
    rig.add("c2", tokens(34, 2), answer=40)
    rig.step()
    rig.add("c3", tokens(150, 4), answer=3)
    rig.add("r1", tokens(100, 3))
    victim = rig.scheduler.requests["c3"]
    made = rig.run()
    assert alone(made)
    assert [step.scheduled["r1"] for step in made if step.reads] == [64, 36], "it was thrown back"
    assert rig.count("chats_preempted") == 1
    assert victim.num_preemptions >= 1  # once for the read; a full pool may throw it back again
    assert sorted(rig.done) == ["c1", "c2", "c3", "r1"]
    assert rig.free_blocks == rig.blocks - 1


def nobody_overtakes_a_read_that_waits_for_room() -> None:
    """A chat that came later is not admitted before it, however small; running chats go on."""
    rig = Rig(blocks=20)
    rig.add("c1", tokens(200, 1), answer=20)
    for _ in range(5):
        rig.step()
    rig.add("r1", tokens(200, 2))
    rig.add("c2", tokens(10, 3), answer=2)
    made = rig.run()
    first = {name: next(i for i, step in enumerate(made) if name in step.scheduled) for name in ("r1", "c2")}
    assert first["r1"] < first["c2"], names(made)
    assert rig.count("reads_refused") >= 1
    assert [step.scheduled["c1"] for step in made if "c1" in step.scheduled].count(1) >= 10


def slots_are_bounded() -> None:
    rig = Rig(slots=3)
    for i in range(3):
        rig.add(f"c{i}", tokens(10, i), answer=5)
    rig.step()
    rig.add("r1", tokens(10, 9))
    rig.add("c9", tokens(10, 8))
    while rig.scheduler.has_unfinished_requests():
        rig.step()
        assert len(rig.scheduler.running) <= 3, [request.request_id for request in rig.scheduler.running]
    assert sorted(rig.done) == ["c0", "c1", "c2", "c9", "r1"]
    assert alone(rig.steps)
    assert rig.count("reads_refused") == 1


def finished_reads_are_forgotten() -> None:
    rig = Rig()
    rig.add("r1", tokens(100, 1))
    rig.add("r2", tokens(100, 2))
    rig.step()
    rig.abort("r1")
    rig.abort("r2")
    assert rig.scheduler._reads == {}
    assert rig.free_blocks == rig.blocks - 1
    rig.add("c1", tokens(100, 1))
    rig.run()
    assert rig.hashed_blocks == 100 // BLOCK


def unmarked_requests_are_chats() -> None:
    rig = Rig()
    rig.add("c1", tokens(20, 1), answer=1, logprobs=5)
    rig.add("c2", tokens(20, 2), answer=1, logprobs=5)
    assert names(rig.run()) == [["c1", "c2"]]


def evictions_have_a_cause() -> None:
    rig = Rig(blocks=20)
    rig.cached("c1", tokens(160, 1))
    assert rig.hashed_blocks == 10
    rig.add("r1", tokens(240, 2))  # 9 blocks are free and were never used
    rig.run()
    assert rig.count("evicted_blocks.read") == 6
    assert rig.count("evicted_tokens.read") == 6 * BLOCK
    rig.cached("c2", tokens(300, 3))
    assert rig.count("evicted_blocks.chat") == 4
    assert rig.count("evicted_blocks.read") == 6


def steps_are_counted() -> None:
    rig = Rig(budget=64)
    rig.add("r1", tokens(100, 1))
    rig.add("r2", tokens(20, 2))
    rig.add("c1", tokens(10, 3), answer=4)
    rig.run()
    found = {cell: rig.count(cell) for cell in ("reads", "read_steps", "read_tokens", "chat_steps")}
    assert found == {"reads": 2, "read_steps": 3, "read_tokens": 120, "chat_steps": 4}


def a_mixed_step_is_noticed() -> None:
    """Whatever lets it happen: the counter is what the middleware looks at before it acknowledges anything."""
    rig = Rig()
    rig.add("c1", tokens(10, 1), answer=5)
    rig.add("r1", tokens(10, 2))
    rig.scheduler._belongs = lambda request: True
    rig.scheduler._admissible = lambda queue: queue
    rig.run()
    assert not alone(rig.steps), "the step was not mixed, so nothing is shown"
    assert rig.count("reads_not_isolated") >= 1


def a_warm_read_is_noticed() -> None:
    rig = Rig()
    rig.cached("c1", tokens(100, 1))
    rig.scheduler._look_nothing_up = lambda request: None
    rig.add("r1", tokens(100, 1))
    rig.run()
    assert rig.done["r1"] == 96
    assert rig.count("reads_not_isolated") == 1


def counters_end_with_the_scheduler() -> None:
    rig = Rig()
    instance = rig.config.instance_id
    path = next(
        path for path in Path(rig.scheduler.counters._path.parent).iterdir() if path.name.startswith(f"{instance}.")
    )
    assert path.name == f"{instance}.{os.getpid()}.counters"
    rig.scheduler.shutdown()
    assert not path.exists()
    assert read_totals(instance) is None
