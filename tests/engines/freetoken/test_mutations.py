"""Leave out any one hook, and a test fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.freetoken import api_properties, hooked, properties

pytestmark = pytest.mark.engines

CAUGHT_BY: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "no-match": (properties.reads_resume_from_nothing, ("radix",)),
    "no-donation": (properties.reads_leave_no_trace, ("radix",)),
    "whole-chunks": (properties.short_chunks_wait_for_the_pool, ("swa",)),
    "alone": (properties.reads_are_alone, ("radix",)),
    "decode-yield": (properties.decodes_run_between_reads, ()),
    "count-evicted": (properties.evictions_have_a_cause, ("radix",)),
    "count-evicted-gdn": (properties.snapshots_survive_reads, ()),
    "count-passes": (properties.passes_are_counted, ()),
    "mark-rows": (properties.evidence_is_kept, ()),
    "score-rows": (properties.scores_are_right, ()),
    "collect-scores": (properties.messages_carry_scores, ()),
    "send-scores": (properties.messages_carry_scores, ()),
    "name-tokens": (api_properties.completion_reads_are_answered, ()),
    "pass-scores": (api_properties.completion_reads_are_answered, ()),
    "pass-counters": (api_properties.counters_are_served, ()),
    "completion-reads": (api_properties.completion_reads_are_answered, ()),
    "chat-reads": (api_properties.chat_reads_are_answered, ()),
    "mark-completion": (api_properties.completion_reads_are_answered, ()),
    "mark-chat": (api_properties.chat_reads_are_answered, ()),
    "note-uid": (api_properties.completion_reads_are_answered, ()),
    "receive-scores": (api_properties.counters_are_served, ()),
}


async def hold(check: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    result = check(*arguments)
    if inspect.isawaitable(result):
        await result


def test_every_hook_is_listed() -> None:
    assert set(CAUGHT_BY) == {hook.name for hook in hooked.HOOKS}


@pytest.mark.parametrize("name", CAUGHT_BY)
async def test_without_one_hook_its_check_fails(name: str) -> None:
    check, arguments = CAUGHT_BY[name]
    await hold(check, arguments)
    with hooked.without(name), pytest.raises((AssertionError, AttributeError, KeyError, RuntimeError)):
        await hold(check, arguments)
    await hold(check, arguments)
