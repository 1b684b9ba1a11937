"""What isolation costs, and whether chat notices: the parts of `verify` that measure time and chat."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from statistics import median

from router.verify.cases import Bench
from router.verify.probe import Scores, Target, deviation

QUESTION = [{"role": "user", "content": "Name three rivers and say one thing about each of them."}]


@dataclass(slots=True)
class Costs:
    """Seconds and tokens by target name; a part that was left out is empty.

    Attributes:
        parallel: wall seconds of 8 short reads at a time.
        rotation: wall seconds of one question in all orders of three options behind a shared prefix.
        rotation_moved, rotation_deviation: of these reads straight at the engine, how many differ from the router's,
            and by how many nats at most; None where not both were measured.
        chat_same: the greedy chat's text was the same while reads ran.
        chat_alone, chat_during: median seconds of that chat without and with a burst of reads.
        cached_before, cached_after: prompt tokens that the engine reports as cached when a long conversation goes on,
            before and after the burst.
    """

    parallel: dict[str, float] = field(default_factory=dict)
    rotation: dict[str, float] = field(default_factory=dict)
    rotation_moved: int | None = None
    rotation_deviation: float | None = None
    chat_same: dict[str, bool] = field(default_factory=dict)
    chat_alone: dict[str, float] = field(default_factory=dict)
    chat_during: dict[str, float] = field(default_factory=dict)
    cached_before: dict[str, int | None] = field(default_factory=dict)
    cached_after: dict[str, int | None] = field(default_factory=dict)
    conversation: int = 0


async def measure(bench: Bench) -> Costs:
    """All the parts that the plan asks for, at each target."""
    costs = Costs()
    short = [await bench.prompts.make(bench.plan.short, 1000 + number) for number in range(8)]
    for name, target in bench.targets.items():
        bench.say(f"8 reads in parallel, {name}")
        began = time.perf_counter()
        await asyncio.gather(*(target.read(prompt) for prompt in short))
        costs.parallel[name] = time.perf_counter() - began
    await _chat(bench, short, costs)
    if bench.plan.rotation:
        await _rotation(bench, costs)
    if bench.plan.long_context:
        for name, target in bench.targets.items():
            bench.say(f"a long conversation and {bench.plan.burst} reads, {name}")
            await _long_context(bench, target, name, costs)
    return costs


async def _chat(bench: Bench, prompts: list[str], costs: Costs) -> None:
    """The same greedy chat, the targets in turn so that all see the same weather; then with reads beside it."""
    alone: dict[str, list[tuple[str, float]]] = {name: [] for name in bench.targets}
    bench.say("greedy chat without reads")
    for target in bench.targets.values():
        await target.chat(QUESTION, 24)  # from now on its prompt is cached for all
    for _ in range(bench.plan.chat_rounds):
        for name, target in bench.targets.items():
            text, _, seconds = await target.chat(QUESTION, 24)
            alone[name].append((text, seconds))
    for name, target in bench.targets.items():
        bench.say(f"greedy chat beside reads, {name}")
        reading = asyncio.create_task(_keep_reading(target, prompts))
        try:
            during = [await target.chat(QUESTION, 24) for _ in range(bench.plan.chat_rounds)]
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        costs.chat_same[name] = {text for text, _, _ in during} == {text for text, _ in alone[name]}
        costs.chat_alone[name] = median(seconds for _, seconds in alone[name])
        costs.chat_during[name] = median(seconds for _, _, seconds in during)


async def _keep_reading(target: Target, prompts: list[str]) -> None:
    while True:
        await asyncio.gather(*(target.read(prompt) for prompt in prompts[:4]))


async def _rotation(bench: Bench, costs: Costs) -> None:
    prefix = await bench.prompts.make(bench.plan.rotation, 2000)
    orders = list(itertools.permutations(("river", "mountain", "harbour")))
    found: dict[str, list[Scores]] = {}
    for name, target in bench.targets.items():
        bench.say(f"option rotation, {name}")
        began = time.perf_counter()
        found[name] = [await target.read(f"{prefix}\nOptions: {', '.join(order)}.\nAnswer:") for order in orders]
        costs.rotation[name] = time.perf_counter() - began
    if len(found) == 2:
        pairs = list(zip(found["engine"], found["router"], strict=True))
        costs.rotation_moved = sum(a.top != b.top for a, b in pairs)
        costs.rotation_deviation = max(deviation(a, b) for a, b in pairs)


async def _long_context(bench: Bench, target: Target, name: str, costs: Costs) -> None:
    """More reads than an engine has slots: a cache that they fill forgets the conversation."""
    story = await bench.prompts.make(bench.plan.long_context, 3000 + len(costs.cached_before))
    talk = [{"role": "user", "content": story}]
    text, _, _ = await target.chat(talk, 8)
    talk += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    text, costs.cached_before[name], _ = await target.chat(talk, 8)
    texts = [await bench.prompts.make(40, 4000 + number) for number in range(4)]
    prompts = [f"{number}. {texts[number % 4]}" for number in range(bench.plan.burst)]
    for at in range(0, len(prompts), 8):
        await asyncio.gather(*(target.read(prompt) for prompt in prompts[at : at + 8]))
    talk += [{"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]
    _, costs.cached_after[name], _ = await target.chat(talk, 8)
    costs.conversation = bench.plan.long_context
