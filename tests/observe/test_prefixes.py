"""The ledger against a simulated block cache: no false eviction, and every loss of more than a block is counted."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.observe.prefixes import PrefixLedger
from router.observe.usage import Usage, UsageReader

CHAT = "/v1/chat/completions"
BLOCK = 16


class Tally:
    def __init__(self) -> None:
        self.unknown: Counter[str] = Counter()
        self.lost: list[tuple[int, str]] = []
        self.expected = self.cached = 0

    def prefix_seen(self, expected: int, cached: int) -> None:
        self.expected += expected
        self.cached += cached

    def prefix_lost(self, tokens: int, after: str) -> None:
        self.lost.append((tokens, after))

    def prefix_unknown(self, reason: str) -> None:
        self.unknown[reason] += 1


def turn(ledger: PrefixLedger, messages: list[Any], usage: dict[str, Any] | None, **members: Any) -> None:
    body = json.dumps({"model": "m", "messages": messages, **members}).encode()
    watch = ledger.begin(CHAT, body)
    assert watch is not None
    watch.feed(json.dumps({"choices": [], **({"usage": usage} if usage is not None else {})}).encode())
    watch.end(True)


def used(prompt: int, cached: int | None) -> dict[str, Any]:
    details = None if cached is None else {"cached_tokens": cached}
    return {"prompt_tokens": prompt, "completion_tokens": 1, "prompt_tokens_details": details}


FIRST = [{"role": "user", "content": "a"}]
SECOND = [*FIRST, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]


@pytest.mark.parametrize(
    ("cached", "lost"),
    [(160, []), (192, []), (144, []), (140, []), (127, [(129 - 127 + 15, "idle")]), (0, [(144, "idle")])],
)
def test_a_shortfall_of_more_than_a_block_is_an_eviction(cached: int, lost: list[tuple[int, str]]) -> None:
    tally = Tally()
    ledger = PrefixLedger(tally, block_size=BLOCK)
    turn(ledger, FIRST, used(170, 0))  # ten whole blocks, of which nine are expected
    turn(ledger, SECOND, used(300, cached))
    assert tally.expected == 144
    assert tally.lost == lost
    assert tally.unknown == {"first_sight": 1}


def test_what_ran_in_between_gets_the_blame() -> None:
    for reads, acknowledged, chats, after in (
        (1, 0, 0, "read"),
        (1, 1, 1, "chat"),
        (2, 1, 0, "idle"),
        (0, 0, 0, "idle"),
    ):
        tally = Tally()
        ledger = PrefixLedger(tally)
        turn(ledger, FIRST, used(170, 0))
        for number in range(reads):
            ledger.note_read(number < acknowledged)
        for number in range(chats):
            turn(ledger, [{"role": "user", "content": f"other {number}"}], used(40, 0))
        turn(ledger, SECOND, used(300, 0))
        assert tally.lost == [(144, after)], (reads, acknowledged, chats)


def test_what_is_not_certain_is_not_counted() -> None:
    tally = Tally()
    ledger = PrefixLedger(tally)
    turn(ledger, FIRST, used(170, None))
    turn(ledger, SECOND, used(300, None))  # no details
    turn(ledger, SECOND, None)  # no usage
    turn(ledger, [{"role": "user", "content": "x"}], used(20, 0))
    turn(ledger, [{"role": "user", "content": "x"}], used(20, 0))  # under a block
    turn(ledger, SECOND, used(300, 0), cache_salt="other")
    turn(ledger, SECOND, used(300, 0), tools=[{"x": 1}])
    assert tally.lost == []
    assert tally.unknown == {"first_sight": 4, "no_details": 1, "no_usage": 1, "short": 1}


def test_sampling_members_do_not_change_the_prompt() -> None:
    tally = Tally()
    ledger = PrefixLedger(tally)
    turn(ledger, FIRST, used(170, 0), temperature=0, max_tokens=5)
    turn(ledger, SECOND, used(300, 0), temperature=1, stream=False, user="u")
    assert len(tally.lost) == 1


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (CHAT, b"no json"),
        (CHAT, b'{"prompt":"x"}'),
        (CHAT, b'{"messages":[],"cache_prompt":false}'),
        ("/generate", b'{"text":"x"}'),
        (CHAT, b"[" * 100_000),
    ],
)
def test_bodies_that_tell_nothing_are_not_watched(route: str, body: bytes) -> None:
    assert PrefixLedger(Tally()).begin(route, body) is None


def complete(
    ledger: PrefixLedger, prompt: Any, usage: dict[str, Any], route: str = "/v1/completions", key: str = "prompt"
) -> None:
    watch = ledger.begin(route, json.dumps({key: prompt}).encode())
    assert watch is not None
    watch.feed(b'{"usage":' + json.dumps(usage).encode() + b"}")
    watch.end(True)


@pytest.mark.parametrize("length", [40, 511, 512, 513, 1500])
def test_text_prompts_extend_one_another(length: int) -> None:
    tally = Tally()
    ledger = PrefixLedger(tally)
    text = "".join(chr(97 + i * 7 % 26) for i in range(3000))
    complete(ledger, text[:length], used(100, 0))
    complete(ledger, text[: length + 700], used(300, 0))
    complete(ledger, "z" + text[: length + 700], used(300, 0))
    assert len(tally.lost) == 1


def test_token_ids_responses_and_messages_too() -> None:
    tally = Tally()
    ledger = PrefixLedger(tally)
    ids = list(range(1000))
    complete(ledger, ids[:600], used(600, 0))
    complete(ledger, ids, used(1000, 592))
    assert tally.lost == []
    complete(
        ledger, "hello", {"input_tokens": 90, "input_tokens_details": {"cached_tokens": 0}}, "/v1/responses", "input"
    )
    complete(
        ledger, "hello", {"input_tokens": 90, "input_tokens_details": {"cached_tokens": 0}}, "/v1/responses", "input"
    )
    assert tally.lost == [(64, "idle")]
    complete(ledger, [], used(90, 0), "/v1/messages", "messages")
    assert tally.unknown["first_sight"] == 3


def test_memory_is_bounded_and_the_oldest_goes() -> None:
    tally = Tally()
    ledger = PrefixLedger(tally, capacity=10)
    for number in range(50):
        turn(ledger, [{"role": "user", "content": str(number)}], used(170, 0))
    assert len(ledger) == 10
    turn(ledger, [{"role": "user", "content": "0"}], used(170, 0))
    assert tally.lost == []


def test_an_answer_that_broke_off_tells_nothing() -> None:
    tally = Tally()
    watch = PrefixLedger(tally).begin(CHAT, json.dumps({"messages": FIRST}).encode())
    assert watch is not None
    assert watch.end(False) is None
    assert not tally.unknown


class BlockCache:
    """An engine's prefix cache in miniature: whole blocks of a token sequence, evicted at will."""

    def __init__(self) -> None:
        self.blocks: set[tuple[int, ...]] = set()

    def serve(self, tokens: tuple[int, ...]) -> int:
        cached = 0
        while cached + BLOCK <= len(tokens) - 1 and tokens[: cached + BLOCK] in self.blocks:
            cached += BLOCK
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            self.blocks.add(tokens[:end])
        return cached


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("say"), st.integers(0, 3), st.integers(1, 60)),
            st.tuples(st.just("evict"), st.integers(0, 3), st.integers(0, 12)),
        ),
        max_size=40,
    )
)
def test_against_a_simulated_cache(events: list[tuple[str, int, int]]) -> None:
    """Conversations that grow in an engine whose evictions are known."""
    tally, cache = Tally(), BlockCache()
    ledger = PrefixLedger(tally, block_size=BLOCK)
    messages: dict[int, list[Any]] = {}
    tokens: dict[int, tuple[int, ...]] = {}
    evicted: dict[int, bool] = {}
    for what, who, size in events:
        if what == "evict":
            gone = {block for block in cache.blocks if block[0] == who and len(block) > size * BLOCK}
            cache.blocks -= gone
            evicted[who] = evicted.get(who, False) or bool(gone)
            continue
        before = tokens.get(who, ())
        messages.setdefault(who, []).append({"role": "user", "content": f"{who} {len(before)} {size}"})
        tokens[who] = before + tuple([who] * size)
        cached = cache.serve(tokens[who])
        losses = len(tally.lost)
        turn(ledger, messages[who], used(len(tokens[who]), cached))
        expected = len(before) // BLOCK * BLOCK - BLOCK
        should = expected > 0 and expected - cached > BLOCK
        assert (len(tally.lost) > losses) is should
        if should:
            assert evicted[who], "an eviction was counted where there was none"
            assert tally.lost[-1][0] == expected - cached
        evicted[who] = False


@pytest.mark.parametrize(
    ("pieces", "usage"),
    [
        ([b'{"usage" : {"prompt_tokens":3,"completion_tokens":1}}'], Usage(3, None, 1)),
        (
            [b'data: {"choices":[],"us', b'age":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":2}}}\n\n'],
            Usage(7, 2, None),
        ),
        ([b'{"usage":null}'], None),
        ([b'{"text":"\\"usage\\":{}"}'], None),
        ([b'{"usage":{broken}'], None),
        ([b"x" * 40_000, b'{"usage":{"prompt_tokens":1}}'], Usage(1, None, None)),
        ([b'{"usage":{"prompt_tokens":1}}', b"x" * 40_000], Usage(1, None, None)),
        ([b'{"usage":{"prompt_tokens":true}}'], Usage(None, None, None)),
        (
            [
                b'event: message_start\ndata: {"message":{"usage":{"input_tokens":5,"cache_creation_input_tokens":10,'
                b'"cache_read_input_tokens":100}}}\n\n',
                b"event: x\n\n" * 9000,
                b'data: {"usage":{"output_tokens":9}}\n\n',
            ],
            Usage(115, 100, 9),
        ),
        ([b'{"usage":{"output_tokens":9}}'], Usage(None, None, 9)),
    ],
)
def test_usage_is_read_from_the_ends_of_an_answer(pieces: list[bytes], usage: Usage | None) -> None:
    reader = UsageReader()
    for piece in pieces:
        reader.feed(piece)
    assert reader.usage() == usage
