"""The two rules, the yield, the counters and the scores, on FreeToken's own scheduler and cache classes."""

from __future__ import annotations

import pytest

from router.engines.freetoken import checks
from tests.engines.freetoken import hooked, properties
from tests.engines.freetoken.rig import CACHES, PROMPT, TREES, Rig

pytestmark = pytest.mark.engines

every_cache = pytest.mark.parametrize("cache", CACHES)


@every_cache
def test_a_read_opens_and_closes_its_pass(cache: str) -> None:
    properties.reads_are_alone(cache)


@every_cache
def test_a_read_never_resumes_from_the_cache(cache: str) -> None:
    properties.reads_resume_from_nothing(cache)


@every_cache
def test_a_read_leaves_cache_and_pools_as_they_were(cache: str) -> None:
    properties.reads_leave_no_trace(cache)


@every_cache
def test_the_chunks_of_a_long_read_are_alone(cache: str) -> None:
    properties.chunks_are_alone(cache)


@every_cache
@pytest.mark.parametrize("steps", [0, 1, 2, 4])
@pytest.mark.parametrize("drained", [False, True])
def test_an_aborted_read_leaves_no_trace(cache: str, steps: int, drained: bool) -> None:
    properties.aborted_reads_leave_no_trace(cache, steps, drained)


@pytest.mark.parametrize("cache", TREES)
def test_chat_finds_the_same_prefixes_with_reads_in_between(cache: str) -> None:
    properties.chat_finds_what_chat_left(cache)


def test_a_decode_step_between_two_read_passes() -> None:
    properties.decodes_run_between_reads()


@pytest.mark.parametrize("cache", ["swa", "swa-naive", "dsv4"])
def test_a_read_is_cut_as_if_it_were_alone(cache: str) -> None:
    properties.short_chunks_wait_for_the_pool(cache)


def test_a_full_snapshot_pool_survives_96_reads() -> None:
    properties.snapshots_survive_reads()


@pytest.mark.parametrize("cache", TREES)
def test_evictions_are_counted_by_cause(cache: str) -> None:
    properties.evictions_have_a_cause(cache)


def test_passes_and_tokens_are_counted() -> None:
    properties.passes_are_counted()


def test_the_scheduler_has_evidence_of_isolation() -> None:
    properties.evidence_is_kept()


def test_a_read_that_was_not_alone_is_not_called_isolated() -> None:
    with hooked.without("alone"):
        rig = Rig("radix")
        first, second = rig.read(1, PROMPT), rig.read(2, PROMPT)
        batch = rig.prefill.schedule_next_batch(64)
        assert len(batch.reqs) == 2
        assert [row[-1] for row in rig.sampler.prepare(batch).read_rows] == [False, False]
        assert first.read_mixed
        assert second.read_mixed


def test_log_probabilities() -> None:
    properties.scores_are_right()


def test_scores_and_counters_ride_on_freetokens_messages() -> None:
    properties.messages_carry_scores()


def test_unmarked_requests_keep_their_path() -> None:
    properties.nothing_else_is_touched()


def test_setting_the_hooks_twice_sets_them_once() -> None:
    before = [getattr(*hook.target.owner()) for hook in hooked.HOOKS]
    checks.install(hooked.HOOKS)
    assert [getattr(*hook.target.owner()) for hook in hooked.HOOKS] == before
