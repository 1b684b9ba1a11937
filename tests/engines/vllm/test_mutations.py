"""Leave out any one hook, and a test fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

from router.engines.vllm import marks
from router.engines.vllm.scheduler import ReadIsolationScheduler
from tests.engines.vllm import properties

pytestmark = pytest.mark.engines


def untouched(self: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    return original


def overtake(self: Any, queue: list[Any]) -> list[Any]:
    return [request for request in queue if self._belongs(request)]


def settle_without_debt(self: Any, owner: Any, chats: bool, output: Any) -> None:
    SETTLE(self, owner, chats, output)
    self._chat_steps_owed = 0


def settle_without_counting(self: Any, owner: Any, chats: bool, output: Any) -> None:
    counters, self.counters = self.counters, type(self.counters).private()
    SETTLE(self, owner, chats, output)
    self.counters = counters


SETTLE = ReadIsolationScheduler._settle

LEFT_OUT: dict[str, tuple[str, Any, Callable[[], None]]] = {
    "running chats stand aside": ("_belongs", lambda self, request: True, properties.running_chats_stand_aside),
    "the queue waits": ("_admissible", lambda self, queue: queue, properties.waiting_requests_stay_where_they_are),
    "a read sees itself alone": (
        "_admissible",
        lambda self, queue: queue,
        properties.chunks_depend_on_nothing_but_the_read,
    ),
    "no overtaking": ("_admissible", overtake, properties.nobody_overtakes_a_read_that_waits_for_room),
    "everybody keeps their place": (
        "_merged",
        lambda self, before, shown, left: self._queue([*left, *(one for one in before if one not in shown)]),
        properties.everybody_keeps_their_place,
    ),
    "no lookup": ("_look_nothing_up", lambda self, request: None, properties.reads_look_nothing_up),
    "no hash": ("_keeping_reads_out", untouched, properties.reads_leave_nothing_behind),
    "no hash, in the long run": ("_keeping_reads_out", untouched, properties.a_conversation_is_still_cached),
    "room for a started read": (
        "_making_room",
        untouched,
        properties.a_started_read_takes_blocks_from_the_youngest_chat,
    ),
    "slots": ("_slots_taken", lambda self: 0, properties.slots_are_bounded),
    "chat steps": ("_settle", settle_without_debt, properties.chats_get_their_steps),
    "taking reads": ("add_request", Scheduler.add_request, properties.running_chats_stand_aside),
    "forgetting reads": ("_free_request", Scheduler._free_request, properties.finished_reads_are_forgotten),
    "counting steps": ("_settle", settle_without_counting, properties.steps_are_counted),
    "counting evictions": ("_counting_evictions", untouched, properties.evictions_have_a_cause),
    "checking steps": ("_check", lambda self, scheduled, output: None, properties.a_mixed_step_is_noticed),
    "checking for warmth": ("_check", lambda self, scheduled, output: None, properties.a_warm_read_is_noticed),
    "the end": ("shutdown", Scheduler.shutdown, properties.counters_end_with_the_scheduler),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_without_one_hook_its_check_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, instead, check = LEFT_OUT[name]
    check()
    with monkeypatch.context() as patch:
        patch.setattr(ReadIsolationScheduler, method, instead)
        with pytest.raises((AssertionError, KeyError)):
            check()
    check()


def test_without_the_marks_check_every_score_is_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    properties.unmarked_requests_are_chats()
    monkeypatch.setattr(marks, "isolates", lambda request, isolate_all: marks.scores_one_token(request))
    with pytest.raises(AssertionError):
        properties.unmarked_requests_are_chats()
