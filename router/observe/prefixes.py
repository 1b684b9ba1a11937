"""The prefix ledger: what the router remembers of conversations, to notice that an engine lost a cached prefix.

It needs nothing of the engine but the `cached_tokens` of its answers. When a chat request extends (or repeats) an
earlier one, the engine should still hold the earlier prompt: at least its whole blocks, less one. If it reports fewer
cached tokens, and by more than a block, then what is missing was evicted in between.

Two requests belong together if everything that shapes the prompt is the same (model, salt, tools, templates, and every
member that is not known to leave the prompt alone) and the earlier one's messages, or text, begin the later one's. What
is not certain is not counted: it goes to `prefix_unknown_total` with its reason.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from router.observe.usage import Usage, UsageReader

Reason = Literal["first_sight", "no_usage", "no_details", "short"]
After = Literal["read", "chat", "idle"]

CHUNK = 512
"""Characters of a completion's prompt that make one link of its chain."""

# Members that say how to generate, not what the prompt is.
_GENERATION_NAMES = """
messages prompt input stream stream_options temperature top_p top_k min_p max_tokens max_completion_tokens
max_output_tokens n best_of stop stop_sequences seed logprobs top_logprobs logit_bias presence_penalty
frequency_penalty repetition_penalty user metadata store echo n_predict n_probs ignore_eos min_tokens priority
request_id parallel_tool_calls service_tier
"""
_GENERATION = frozenset(_GENERATION_NAMES.split())

_HELD_IN = {"/v1/chat/completions": "messages", "/v1/messages": "messages", "/v1/responses": "input"}
_TEXT_IN = {"/v1/completions": "prompt"}

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


class Tally(Protocol):
    """Where the ledger's findings go."""

    def prefix_seen(self, expected: int, cached: int) -> None:
        """A known prefix came again: tokens that the engine should hold, and that it reports."""

    def prefix_lost(self, tokens: int, after: After) -> None:
        """An eviction: tokens lost, and what ran since the conversation's last turn."""

    def prefix_unknown(self, reason: Reason) -> None:
        """A request from which nothing can be told."""


@dataclass(slots=True)
class _Entry:
    """An earlier request: its prompt's tokens, and how many reads and chats had run when it ended."""

    tokens: int
    tail: tuple[int, int]  # length and hash of what the chain leaves out of its prompt's text
    reads: int
    acknowledged: int
    chats: int


class Watch:
    """One chat request under way. Feed it the answer's bytes as they pass; it neither keeps nor changes them."""

    __slots__ = ("_earlier", "_key", "_ledger", "_tail", "_usage", "feed")

    def __init__(self, ledger: PrefixLedger, key: int, tail: bytes, earlier: _Entry | None) -> None:
        self._ledger = ledger
        self._key = key
        self._tail = tail
        self._earlier = earlier
        self._usage = UsageReader()
        self.feed = self._usage.feed

    def end(self, ok: bool) -> Usage | None:
        """The answer ended, whole or not; what it says of its tokens."""
        usage = self._usage.usage() if ok else None
        if ok:
            self._ledger._ended(self._key, self._tail, self._earlier, usage)
        return usage


class PrefixLedger:
    """Remembers conversations of one endpoint, the most recent `capacity` of them.

    Args:
        block_size: tokens in a block of the engine's prefix cache.
    """

    def __init__(self, tally: Tally, *, block_size: int = 16, capacity: int = 10_000) -> None:
        self.block_size = block_size
        self.capacity = capacity
        self._tally = tally
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._reads = self._acknowledged = self._chats = 0

    def __len__(self) -> int:
        return len(self._entries)

    def note_read(self, acknowledged: bool) -> None:
        """A read ran at this endpoint; whether it was acknowledged as bypassing the cache."""
        self._reads += 1
        self._acknowledged += acknowledged

    def begin(self, route: str, body: bytes) -> Watch | None:
        """Watch one chat request, or None if its prompt cannot be told from its body."""
        try:
            members = _object.decode(body)
            if bytes(members.get("cache_prompt", b"")) == b"false":
                return None
            seed = hash((route, *((name, bytes(raw)) for name, raw in members.items() if name not in _GENERATION)))
            if (name := _HELD_IN.get(route)) is not None and name in members:
                links, tail = _message_chain(seed, bytes(members[name])), b""
            elif (name := _TEXT_IN.get(route)) is not None and name in members:
                links, tail = _text_chain(seed, bytes(members[name]))
            else:
                return None
        except (msgspec.DecodeError, RecursionError):
            return None
        return Watch(self, links[-1][0], tail, self._find(links))

    def _find(self, links: Sequence[tuple[int, bytes]]) -> _Entry | None:
        """The longest earlier request that begins this one."""
        for key, rest in reversed(links):
            entry = self._entries.get(key)
            if entry is not None and _mark(rest[: entry.tail[0]]) == entry.tail:
                return entry
        return None

    def _ended(self, key: int, tail: bytes, earlier: _Entry | None, usage: Usage | None) -> None:
        self._chats += 1
        if usage is None or usage.prompt is None:
            self._tally.prefix_unknown("no_usage")
            return
        if earlier is None:
            self._tally.prefix_unknown("first_sight")
        else:
            self._compare(earlier, usage)
        self._entries.pop(key, None)
        self._entries[key] = _Entry(usage.prompt, _mark(tail), self._reads, self._acknowledged, self._chats)
        if len(self._entries) > self.capacity:
            self._entries.popitem(last=False)

    def _compare(self, earlier: _Entry, usage: Usage) -> None:
        block = self.block_size
        expected = earlier.tokens // block * block - block
        if expected <= 0:
            self._tally.prefix_unknown("short")
        elif usage.cached is None:
            self._tally.prefix_unknown("no_details")
        else:
            self._tally.prefix_seen(expected, usage.cached)
            if expected - usage.cached > block:
                self._tally.prefix_lost(expected - usage.cached, self._after(earlier))

    def _after(self, earlier: _Entry) -> After:
        if self._reads > earlier.reads and self._acknowledged == earlier.acknowledged:
            return "read"
        return "chat" if self._chats > earlier.chats + 1 else "idle"


def _mark(text: bytes) -> tuple[int, int]:
    return len(text), hash(text)


def _message_chain(seed: int, value: bytes) -> list[tuple[int, bytes]]:
    """A link for each beginning of a list of messages, each as its JSON text; a string is one message."""
    if not value.startswith(b"["):
        return [(hash((seed, value)), b"")]
    links, key = [], seed
    for item in _items.decode(value):
        key = hash((key, bytes(item)))
        links.append((key, b""))
    return links or [(seed, b"")]


def _text_chain(seed: int, value: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """A link for each whole chunk of a prompt's JSON text, with what follows it, and the whole prompt's rest.

    A list of token ids is cut like text; the quote or bracket that ends it is no part of the prompt.
    """
    text = value[:-1]
    links, key = [], seed
    whole = len(text) // CHUNK * CHUNK
    for at in range(0, whole, CHUNK):
        links.append((key, text[at : at + 2 * CHUNK]))
        key = hash((key, text[at : at + CHUNK]))
    links.append((key, text[whole:]))
    return links, text[whole:]
