"""What isolation costs, and whether chat notices: the parts of `verify` that measure time and chat."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from statistics import median

from router.verify.cases import Bench
from router.verify.probe import Target

QUESTION = [{"role": "user", "content": "Name three rivers and say one thing about each of them."}]


@dataclass(slots=True)
class Costs:
    """Seconds and tokens by target name; a part that was left out is empty.

    Attributes:
        parallel: wall seconds of 8 short reads at a time.
        rotation: wall seconds of one question in all orders of three options behind a shared prefix.
        chat_same: the greedy chat's text was the same while reads ran.
        chat_alone, chat_during: median seconds of that chat without and with a burst of reads.
        cached_before, cached_after: prompt tokens that the engine reports as cached when a long conversation goes on,
            before and after the burst.
    """

    parallel: dict[str, float] = field(default_factory=dict)
    rotation: dict[str, float] = field(default_factory=dict)
    chat_same: dict[str, bool] = field(default_factory=dict)
    chat_alone: dict[str, float] = field(default_factory=dict)
    chat_during: dict[str, float] = field(default_factory=dict)
    cached_before: dict[str, int | None] = field(default_factory=dict)
    cached_after: dict[str, int | None] = field(default_factory=dict)
    conversation: int = 0


async def measure(bench: Bench) -> Costs:
    """All the parts that the plan asks for, at each target."""
    costs = Costs()
    for name, target in bench.targets.items():
        bench.say(f"8 reads in parallel, {name}")
        prompts = [await bench.prompts.make(bench.plan.short, 1000 + number) for number in range(8)]
        began = time.perf_counter()
        await asyncio.gather(*(target.read(prompt) for prompt in prompts))
        costs.parallel[name] = time.perf_counter() - began
        bench.say(f"greedy chat with and without reads, {name}")
        await _chat(target, prompts, name, costs)
        if bench.plan.rotation:
            bench.say(f"option rotation, {name}")
            costs.rotation[name] = await _rotation(target, await bench.prompts.make(bench.plan.rotation, 2000))
        if bench.plan.long_context:
            bench.say(f"a long conversation and {bench.plan.burst} reads, {name}")
            await _long_context(bench, target, name, costs)
    return costs


async def _chat(target: Target, prompts: list[str], name: str, costs: Costs) -> None:
    alone = [await target.chat(QUESTION, 24) for _ in range(3)]
    reading = asyncio.create_task(_keep_reading(target, prompts))
    try:
        during = [await target.chat(QUESTION, 24) for _ in range(3)]
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    costs.chat_same[name] = {text for text, _, _ in during} == {text for text, _, _ in alone}
    costs.chat_alone[name] = median(seconds for _, _, seconds in alone)
    costs.chat_during[name] = median(seconds for _, _, seconds in during)


async def _keep_reading(target: Target, prompts: list[str]) -> None:
    while True:
        await asyncio.gather(*(target.read(prompt) for prompt in prompts[:4]))


async def _rotation(target: Target, prefix: str) -> float:
    began = time.perf_counter()
    for order in itertools.permutations(("river", "mountain", "harbour")):
        await target.read(f"{prefix}\nOptions: {', '.join(order)}.\nAnswer:")
    return time.perf_counter() - began


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
