"""What must hold of the hooked scheduler; each is a function that raises if it does not.

The tests call them with every hook in place, and test_mutations.py with one hook left out.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.engines.freetoken.hooked import COUNTERS
from tests.engines.freetoken.rig import PROMPT, TREES, Rig

LONG = list(range(300, 350))


def uids(passes: list[list[tuple[int, int, int]]]) -> list[list[int]]:
    return [[uid for uid, _, _ in requests] for requests in passes]


def reads_are_alone(cache: str) -> None:
    rig = Rig(cache)
    rig.chat(1, PROMPT)
    rig.chat(2, [*PROMPT[:10], 90, 91])
    rig.read(3, PROMPT)
    rig.read(4, PROMPT)
    rig.chat(5, [*PROMPT, 7, 8, 9])
    rig.chat(6, [*PROMPT[:5], 3])
    rig.read(7, [*PROMPT, 5])
    assert uids(rig.run()) == [[1, 2], [3], [4], [5, 6], [7]]
    assert sorted(rig.done) == [1, 2, 3, 4, 5, 6, 7]


def reads_resume_from_nothing(cache: str) -> None:
    rig = Rig(cache)
    rig.chat(1, PROMPT)
    rig.run()
    follow_up = [*PROMPT, 1001, 1001, 5, 6, 7]  # what the rig answered, and the next turn
    for uid in range(3, 6):
        rig.read(uid, follow_up)
        assert rig.run() == [[(uid, 0, 25)]]
    rig.chat(2, follow_up)
    ((_, resumed, _),) = rig.run()[0]
    assert resumed > 0 or cache not in TREES, "the cache was not warm, so nothing is shown"


def reads_leave_no_trace(cache: str) -> None:
    rig = Rig(cache)
    rig.chat(1, PROMPT)
    rig.run()
    tree, free = rig.tree(), rig.free_units()
    for i in range(40):
        rig.read(100 + i, PROMPT[: 5 + i % 15] + [200 + i] * (i % 7))
    rig.run()
    assert rig.tree() == tree
    assert rig.free_units() == free
    assert len(rig.done) == 41


def chunks_are_alone(cache: str) -> None:
    rig = Rig(cache, budget=16)
    rig.chat(1, PROMPT)  # 20 tokens: 16 and 4
    rig.read(2, LONG)  # 50 tokens: 16, 16, 16 and 2
    rig.chat(3, [77, 78, 79, 80])
    assert rig.run() == [
        [(1, 0, 16)],
        [(1, 16, 20)],
        [(2, 0, 16)],
        [(2, 16, 32)],
        [(2, 32, 48)],
        [(2, 48, 50)],
        [(3, 0, 4)],
    ]
    assert not any(path[0] == LONG[0] for path, *_ in rig.tree())


def aborted_reads_leave_no_trace(cache: str, steps: int, drained: bool) -> None:
    rig = Rig(cache, budget=16)
    rig.chat(1, PROMPT)
    rig.run()
    tree, free = rig.tree(), rig.free_units()
    rig.read(2, LONG)
    for _ in range(steps):
        rig.step()
    if drained:
        rig.drain()
    rig.abort(2)
    rig.run()
    assert rig.tree() == tree
    assert rig.free_units() == free


def chat_finds_what_chat_left(cache: str) -> None:
    """The same cached prefixes with reads in between as without them."""
    alone, mixed = Rig(cache), Rig(cache)
    for rig in (alone, mixed):
        for turn in range(4):
            rig.chat(turn, PROMPT[: 8 + 4 * turn])
            if rig is mixed:
                rig.read(50 + turn, [*PROMPT, turn])
                rig.read(60 + turn, PROMPT[:3])
            rig.run()

    def held(rig: Rig) -> set[tuple[int, ...]]:
        return {path[:n] for path, *_ in rig.tree() for n in range(1, len(path) + 1)}

    assert held(alone) == held(mixed)


def decodes_run_between_reads(steps: int = 1) -> None:
    rig = Rig("radix")
    rig.chat(1, PROMPT, tokens=40)
    rig.step()
    yields = COUNTERS.snapshot()["decode_yields"]
    for uid in range(2, 8):
        rig.read(uid, [*PROMPT, uid])
    rig.run()
    phases = "".join("r" if phase == "prefill" else "d" for phase, _ in rig.passes)
    assert phases.startswith("r" + ("r" + "d" * steps) * 5 + "r"), phases
    assert COUNTERS.snapshot()["decode_yields"] == yields + 5 * steps


def short_chunks_wait_for_the_pool(cache: str) -> None:
    """While a chat holds part of the window pool, a long read is not cut shorter than it would be alone."""
    alone = Rig(cache, room=64)
    alone.read(9, list(range(500, 600)))
    chunks = alone.run()
    assert len(chunks) > 1, "the pool does not bind, so nothing is shown"

    rig = Rig(cache, room=64)
    rig.chat(1, PROMPT, tokens=12)
    rig.step()
    params = rig.read(9, list(range(500, 600)))
    assert rig.run()[-len(chunks) :] == chunks
    assert not params.read_mixed
    assert sorted(rig.done) == [1, 9]


def snapshots_survive_reads() -> None:
    """A pool full of snapshots loses at most what the reads in flight need (two under the overlapped loop)."""
    rig = Rig("hybrid", slots=14)
    for turn in range(20):
        rig.chat(turn, [400 + turn] * 6 + list(range(turn * 7, turn * 7 + 6)))
        rig.run()
    held = sum(node[2] is not None for node in rig.tree())
    before = COUNTERS.snapshot()
    for i in range(96):
        rig.read(100 + i, [*PROMPT, i])
    rig.run()
    lost = held - sum(node[2] is not None for node in rig.tree())
    after = COUNTERS.snapshot()
    assert 0 < lost <= 6
    assert after["evicted_gdn_snapshots.read"] - before["evicted_gdn_snapshots.read"] == lost
    assert after["evicted_gdn_snapshots.chat"] == before["evicted_gdn_snapshots.chat"]


def evictions_have_a_cause(cache: str) -> None:
    """A pool full of chat prefixes: what a read or a chat pushes out is counted against it, and nothing else is."""
    rig = Rig(cache, pages=64, room=64 if cache != "swa" else 60, budget=16)
    for turn in range(8):
        rig.chat(turn, [400 + turn] * 12 + [turn], tokens=2)
        rig.run()
    series = "evicted_swa_tokens" if cache in ("swa", "dsv4") else "evicted_kv_tokens"
    for cause in ("chat", "read"):
        before, held = COUNTERS.snapshot(), _held(rig)
        prompt = [*range(600, 640)] if cause == "read" else [*range(700, 740)]
        if cause == "read":
            rig.read(90, prompt)
        else:
            rig.chat(91, prompt, tokens=2)
        rig.run()
        grown = {name: value - before[name] for name, value in COUNTERS.snapshot().items() if value != before[name]}
        other = "chat" if cause == "read" else "read"
        assert grown.get(f"{series}.{cause}", 0) > 0, grown
        assert not any(name.endswith("." + other) for name in grown), grown
        if cause == "read":
            assert grown["evicted_kv_tokens.read"] == held - _held(rig) or cache in ("swa", "dsv4")


def _held(rig: Rig) -> int:
    """Tokens in the prefix cache."""
    return sum(len(value) for _, value, *_ in rig.tree())


def passes_are_counted() -> None:
    before = COUNTERS.snapshot()
    rig = Rig("radix", budget=16)
    rig.chat(1, PROMPT)
    rig.read(2, LONG)
    rig.run()
    rig.chat(3, [*PROMPT, 4])
    rig.run()
    after = COUNTERS.snapshot()
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    grown.pop("decode_yields", None)
    assert grown == {
        "read_passes": 4,
        "read_tokens": 50,
        "chat_passes": 3,
        "chat_prompt_tokens": 41,
        "chat_cached_tokens": 20,
    }


def evidence_is_kept(cache: str = "radix") -> None:
    """The scheduler knows of each read whether it really was alone and cold; only then it is acknowledged."""
    rig = Rig(cache)
    rig.chat(1, PROMPT)
    rig.run()
    params = rig.read(2, PROMPT)
    rig.read(3, PROMPT)
    batch = rig.prefill.schedule_next_batch(64)
    rows = rig.sampler.prepare(batch).read_rows
    assert rows == [(0, 2, 0, 0, True)]
    assert not params.read_mixed


def scores_are_right() -> None:
    """Row by row, stable among ties, before penalties; the batch's other rows and the sampled tokens stay as they are."""
    rig = Rig("radix")
    rig.chat(1, PROMPT)
    rig.read(2, PROMPT, read_top=5, read_isolate=False, presence_penalty=1.5)
    batch = rig.prefill.schedule_next_batch(64)
    args = rig.sampler.prepare(batch)
    logits = torch.randint(0, 6, (2, 64), generator=torch.Generator().manual_seed(5)).to(torch.bfloat16)
    tokens = rig.sampler.sample(logits.clone(), args)
    assert torch.equal(tokens, logits.float().argmax(-1))
    ((uid, cached, isolated, ids, values),) = args.read_scores
    assert (uid, cached, isolated) == (2, 0, False)
    row = logits[1].double()
    reference = row - row.exp().sum().log()
    best = sorted(range(64), key=lambda token: (-row[token].item(), token))[:5]
    assert ids.tolist() == [int(tokens[1]), *best]
    assert torch.allclose(values.double(), reference[ids], atol=1e-5)


def nothing_else_is_touched() -> None:
    """Control: unmarked one-token requests share passes, resume and donate as ever."""
    rig = Rig("radix")
    for uid in range(3):
        rig.chat(uid, [*PROMPT, uid], tokens=1)
    assert uids(rig.run()) == [[0, 1, 2]]
    assert rig.tree()
    rig.chat(9, PROMPT, tokens=1)
    assert rig.run() == [[(9, 19, 20)]]


def messages_carry_scores() -> None:
    """`_process_last_data` hands the scores of its batch to the replies that it sends, and to no later ones."""
    from freetoken.message.tokenizer import DetokenizeMsg, PromptAdmittedMsg
    from freetoken.scheduler.scheduler import Scheduler

    sent: list[Any] = []

    class Wire:
        def put(self, message: Any) -> None:
            sent.append(message)

    class Bare(Scheduler):  # type: ignore[misc]
        def __init__(self) -> None:
            self._send_into_tokenizer = Wire()
            self.send_result = self._reply_tokenizer_rank0

    scheduler = Bare()
    score = (7, 3, True, torch.tensor([4, 5]), torch.tensor([-0.5, -1.5]))

    class Batch:
        reqs: tuple[Any, ...] = ()
        is_prefill = True

    class Data:
        sample_args = type("Args", (), {"read_scores": [score]})()
        batch = Batch()

    replies = [DetokenizeMsg(uid=7, next_token=4, finished=True), DetokenizeMsg(uid=8, next_token=4, finished=False)]
    scheduler.cache_manager = Drained(lambda: scheduler.send_result(replies))
    try:
        scheduler._process_last_data((Data(), (None, torch.tensor([4]), Event())))
    except Stop:
        pass
    read, other = sent[0].data
    assert read.read == {"ids": [4, 5], "scores": [-0.5, -1.5], "cached": 3, "isolated": True}
    assert read.counters == COUNTERS.snapshot()
    assert type(other) is DetokenizeMsg
    scheduler.send_result([DetokenizeMsg(uid=7, next_token=4, finished=True)])
    assert sent[1].read is None
    scheduler.send_result([PromptAdmittedMsg(uid=7, prompt_tokens=3)])
    assert sent[2].counters == COUNTERS.snapshot()


class Stop(Exception):
    """Ends `_process_last_data` where it would begin to free requests."""


class Event:
    def synchronize(self) -> None: ...


class Drained:
    """A cache manager that is asked for its region when the batch's results are there."""

    def __init__(self, then: Any) -> None:
        self.then = then

    def lazy_free_region(self) -> Any:
        self.then()
        raise Stop
