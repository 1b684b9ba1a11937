"""Chat's inter-token latency while reads run, through the router.

    python itl.py ROUTER_URL [--seconds 6]

Three chats stream; beside them no reader, one, then eight. Milliseconds between two events of a stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator
from statistics import quantiles

import httpx

WORDS = "river stone light north model score table window paper silver quiet engine "


async def chat(client: httpx.AsyncClient, number: int, until: float, gaps: list[float]) -> None:
    while time.perf_counter() < until:
        body = {
            "model": "m",
            "prompt": f"{number} {WORDS * 2}",
            "max_tokens": 400,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
        }
        last = 0.0
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                now = time.perf_counter()
                if last:
                    gaps.append((now - last) * 1e3)
                last = now
                if now > until:
                    return


async def reader(client: httpx.AsyncClient, number: int, until: float, seconds: list[float]) -> None:
    turn = 0
    while time.perf_counter() < until:
        body = {
            "model": "m",
            "prompt": f"{number} {turn} {WORDS}"[:60],
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 5,
        }
        began = time.perf_counter()
        (await client.post("/v1/completions", json=body)).raise_for_status()
        seconds.append(time.perf_counter() - began)
        turn += 1


async def rows(url: str, seconds: float, headers: dict[str, str] | None = None) -> AsyncIterator[dict[str, float]]:
    """One row for each number of readers."""
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, headers=headers) as client:
        for readers in (0, 1, 8):
            gaps: list[float] = []
            reads: list[float] = []
            until = time.perf_counter() + seconds
            await asyncio.gather(
                *(chat(client, number, until, gaps) for number in range(3)),
                *(reader(client, number, until, reads) for number in range(readers)),
            )
            cuts = quantiles(gaps, n=100)
            yield {
                "readers": readers,
                "chat_tokens_s": round(len(gaps) / seconds, 1),
                "itl_p50_ms": round(cuts[49], 2),
                "itl_p95_ms": round(cuts[94], 2),
                "itl_max_ms": round(max(gaps), 1),
                "reads_s": round(len(reads) / seconds, 1),
            }


async def main(url: str, seconds: float) -> None:
    async for row in rows(url, seconds):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=6)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.seconds))
