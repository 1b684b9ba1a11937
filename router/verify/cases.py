"""The cases: what moves scores on an engine, tried straight at it and through the router, against the same baseline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from router.verify.load import ChatLoad
from router.verify.probe import Scores, Target, deviation
from router.verify.prompts import PromptMaker


@dataclass(slots=True)
class Column:
    """One case at one target.

    Attributes:
        reads, equal: how many there were, and how many had the baseline's bits.
        deviation: largest difference in nats.
        cached: reads that the engine says it answered from its cache in part.
        overlapped: reads during which a chat was producing text.
        chat_pieces: pieces of text that the chats produced meanwhile.
        seconds: wall time.
        labels: the router's isolation labels.
    """

    reads: int = 0
    equal: int = 0
    deviation: float = 0.0
    cached: int = 0
    overlapped: int = 0
    chat_pieces: int = 0
    seconds: float = 0.0
    labels: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Row:
    """One case, with a column for each target that was measured.

    Attributes:
        load: chats that ran beside it.
        warm_baselines: how many of its baselines came mostly from a cache, which none should.
    """

    case: str
    tokens: int
    load: int
    warm_baselines: int = 0
    columns: dict[str, Column] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        lengths: prompt lengths in tokens for the repeats.
        loaded_lengths: those that are repeated under chat load too.
        chats: chats that run at a time as load.
        loaded_mixes: whether lists and chat turns are tried under load too, or only parallel reads and repeats.
        short: tokens of the prompts that go several at a time.
        rotation, long_context: tokens of the shared prefix, and of the conversation; 0 leaves the part out.
        burst: short reads that run against the conversation.
        chat_rounds: how often the chat is timed, with and without reads.
    """

    lengths: Sequence[int] = (60, 300, 512, 513, 819, 820, 4096)
    loaded_lengths: Sequence[int] = (60, 300, 513, 820)
    chats: int = 3
    loaded_mixes: bool = True
    short: int = 60
    rotation: int = 500
    long_context: int = 2000
    burst: int = 96
    chat_rounds: int = 3


Say = Callable[[str], None]
Ask = Callable[[Target, list[str]], Awaitable[list[Scores]]]

LONG = 2048
"""A prompt of more tokens is repeated once, a shorter one twice."""

AFTER_CHAT = 300
"""Tokens of the prompt whose beginning a chat turn used before."""


class Bench:
    """Runs the cases at each target, and keeps the rows."""

    def __init__(self, targets: dict[str, Target], prompts: PromptMaker, plan: Plan, say: Say) -> None:
        self.targets = targets
        self.prompts = prompts
        self.plan = plan
        self.say = say
        self.rows: list[Row] = []
        self._baselines: dict[str, Scores] = {}
        self._seed = 0

    @property
    def reference(self) -> Target:
        """Where baselines are read: through the router if there is one."""
        return self.targets.get("router") or self.targets["engine"]

    async def prompts_of(self, tokens: int, count: int = 1) -> list[str]:
        """New prompts, which no engine has seen."""
        self._seed += count
        return [await self.prompts.make(tokens, self._seed - number) for number in range(count)]

    async def baseline(self, prompts: list[str]) -> None:
        """Read each alone, where nothing of it is cached: for the first time ever, or through the router."""
        for prompt in prompts:
            if prompt not in self._baselines:
                self._baselines[prompt] = await self.reference.read(prompt)

    async def run(self) -> None:
        """All the cases of the table."""
        for load in (0, self.plan.chats) if self.plan.chats else (0,):
            mixes = self.plan.loaded_mixes or not load
            if self.reference.api == "completions" and mixes:
                await self._several("3 prompts in one request", 3, load, lambda t, p: t.read_list(p))
            await self._several("8 prompts in parallel", 8, load, _in_parallel)
            if mixes:
                await self._after_chat(load)
            for tokens in self.plan.loaded_lengths if load else self.plan.lengths:
                await self._again(tokens, load)

    async def _several(self, case: str, count: int, load: int, ask: Ask) -> None:
        prompts = await self.prompts_of(self.plan.short, count)
        # Beside a router, the engine's own column comes first, while the prompts are new: it computes them together.
        if "router" not in self.targets:
            await self.baseline(prompts)
        await self._case(case, self.plan.short, load, prompts, ask)

    async def _again(self, tokens: int, load: int) -> None:
        prompts = await self.prompts_of(tokens)
        await self.baseline(prompts)

        async def again(target: Target, prompts: list[str]) -> list[Scores]:
            return [await target.read(prompts[0]) for _ in range(1 if tokens > LONG else 2)]

        await self._case("the same prompt again", tokens, load, prompts, again)

    async def _after_chat(self, load: int) -> None:
        prompts = await self.prompts_of(AFTER_CHAT)

        async def chat_first(target: Target, prompts: list[str]) -> list[Scores]:
            await target.complete(prompts[0][: len(prompts[0]) * 3 // 4], 4)
            return [await target.read(prompts[0])]

        await self.baseline(prompts)
        await self._case("after a chat turn on the same prefix", AFTER_CHAT, load, prompts, chat_first)

    async def _case(self, case: str, tokens: int, load: int, prompts: list[str], ask: Ask) -> None:
        row = Row(case, tokens, load)
        answers: dict[str, list[Scores]] = {}
        for name, target in self.targets.items():
            if name == "router":
                await self.baseline(prompts)
            self.say(f"{case}, {tokens} tokens, {f'{load} chats' if load else 'idle'}, {name}")
            async with ChatLoad(target, load) as chats:
                began = time.perf_counter()
                found = answers[name] = await ask(target, prompts)
                seconds = time.perf_counter() - began
                overlapped = sum(chats.running_during(scores) for scores in found)
            row.columns[name] = Column(seconds=seconds, overlapped=overlapped, chat_pieces=chats.pieces)
        for name, found in answers.items():
            self._judge(row.columns[name], prompts, found)
        row.warm_baselines = sum(self._baselines[prompt].mostly_cached for prompt in prompts)
        row.tokens = self._baselines[prompts[0]].prompt_tokens or tokens
        self.rows.append(row)

    def _judge(self, column: Column, prompts: list[str], found: list[Scores]) -> None:
        column.reads = len(found)
        for number, scores in enumerate(found):
            baseline = self._baselines[prompts[number % len(prompts)]]
            column.equal += scores.top == baseline.top
            column.deviation = max(column.deviation, deviation(scores, baseline))
            column.cached += bool(scores.cached_tokens)
            if scores.isolation:
                column.labels[scores.isolation] = column.labels.get(scores.isolation, 0) + 1


async def _in_parallel(target: Target, prompts: list[str]) -> list[Scores]:
    return list(await asyncio.gather(*(target.read(prompt) for prompt in prompts)))
