"""What read isolation costs in vLLM's CPU build, and what it leaves in the prefix cache; a table for docs/measurements.

    .venv-vllm/bin/python -m benchmarks.vllm.costs [--seconds 6] [--only stock "ratio 1"]

One server after the other, with the tests' random Llama in float32: vLLM as it comes, and with our patch at ratios 1, 2
and 4. All requests go straight to vLLM, those for the patch with the bypass header, so that reads queue inside it. The
model computes on the last core; the API server and the client have the others.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.freetoken.itl import rows
from tests.engines.vllm.asking import ON, bits, cached, ids, read, read_all, say
from tests.engines.vllm.models import random_weights
from tests.engines.vllm.servers import serving

SERVERS: dict[str, Sequence[str] | None] = {
    "stock": None,
    "ratio 1": (),
    "ratio 2": ("--read-step-ratio", "2"),
    "ratio 4": ("--read-step-ratio", "4"),
}
BLOCKS = 400  # of 32 tokens
CONVERSATION = 4000


def in_parallel(url: str, headers: dict[str, str] | None, length: int, times: int = 9) -> float:
    """Milliseconds for 8 reads at once; each time other prompts."""
    taken = []
    for turn in range(times):
        prompts = [ids(length, 20000 + 100 * length + 8 * turn + i) for i in range(8)]
        began = time.perf_counter()
        read_all(url, prompts, headers)
        taken.append((time.perf_counter() - began) * 1e3)
    return median(taken[1:])


def rotation(url: str, headers: dict[str, str] | None) -> dict[str, Any]:
    """One question in the 12 first orders of 4 options behind 2,000 shared tokens, one after the other."""
    shared, options = ids(2000, 31000), [ids(8, 31001 + i) for i in range(4)]
    orders = list(itertools.islice(itertools.permutations(options), 12))
    prompts = [shared + [token for option in order for token in option] for order in orders]
    # Their values where nothing is cached: a salt of their own keeps each from all others.
    with ThreadPoolExecutor(1) as pool:
        alone = list(pool.map(lambda prompt: bits(read(url, prompt, headers, cache_salt=str(prompt[-8:])))[0], prompts))
    began = time.perf_counter()
    found = read_all(url, prompts, headers, at_once=1)
    taken = time.perf_counter() - began
    return {"rotation_s": round(taken, 2), "rotation_equal": sum(a == b for a, b in zip(found, alone, strict=True))}


def conversation(url: str, headers: dict[str, str] | None) -> dict[str, int]:
    """Cached tokens of a long conversation's next turn, before and after 96 reads of 300 tokens."""
    turn = ids(CONVERSATION, 32000)
    say(url, turn, 4)
    before = cached(say(url, [*turn, 5], 4))
    read_all(url, [ids(300, 33000 + i) for i in range(96)], headers)
    return {"cached_before": before, "cached_after": cached(say(url, [*turn, 6], 4))}


async def latencies(url: str, headers: dict[str, str] | None, seconds: float) -> list[dict[str, float]]:
    return [row async for row in rows(url, seconds, headers)]


def measure(model: Path, ours: Sequence[str] | None, seconds: float) -> dict[str, Any]:
    headers = None if ours is None else ON
    # One core for the model. By default its threads have every core, and on few of them the API server's events come in
    # bunches: what is measured is then the operating system's scheduler.
    pinned = {"VLLM_CPU_OMP_THREADS_BIND": str((os.cpu_count() or 2) - 1)}
    with serving(model, blocks=BLOCKS, ours=ours, environ=pinned) as url:
        read_all(url, [ids(600, 1 + i) for i in range(3)], headers)  # whatever the first requests compile
        return {
            "8_reads_of_60_ms": round(in_parallel(url, headers, 60)),
            "8_reads_of_300_ms": round(in_parallel(url, headers, 300)),
            **rotation(url, headers),
            **conversation(url, headers),
            "itl": asyncio.run(latencies(url, headers, seconds)),
        }


def markdown(found: dict[str, dict[str, Any]]) -> str:
    """The tables of docs/measurements/vllm-cpu.md."""
    names = list(found)
    lines = [f"| | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
    labels = {
        "8_reads_of_60_ms": "8 reads of 60 tokens in parallel, ms",
        "8_reads_of_300_ms": "8 reads of 300 tokens in parallel, ms",
        "rotation_s": "12 option orders over 2,000 shared tokens, s",
        "rotation_equal": "of these with the bits of the same read alone and cold",
        "cached_before": "cached tokens of a 4,000-token conversation's next turn",
        "cached_after": "the same after 96 reads of 300 tokens",
    }
    for key, label in labels.items():
        lines.append(f"| {label} | {' | '.join(str(found[name][key]) for name in names)} |")
    lines += ["", "| server | readers | chat tokens/s | p50 ms | p95 ms | max ms | reads/s |", "| --- |" + " --- |" * 6]
    for name in names:
        lines += [f"| {name} | {' | '.join(str(value) for value in row.values())} |" for row in found[name]["itl"]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--only", nargs="*", choices=list(SERVERS), default=list(SERVERS))
    arguments = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = random_weights(Path(folder) / "model")
        for name in arguments.only:
            found[name] = measure(model, SERVERS[name], arguments.seconds)
            print(json.dumps({name: found[name]}), flush=True)
    print(markdown(found))


if __name__ == "__main__":
    main()
