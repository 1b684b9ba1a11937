"""Three real engines, each behind its router, behind a balancer that users already run; one of each dies under load.

Reads have the same bits on all of them, no two reads meet at an engine, and nothing fails but what was in flight.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import httpx
import pytest
import yaml

from tests.deploy.test_host import started
from tests.support.deploy import BIN, DEPLOY
from tests.support.engines import embedded_engine, free_port
from tests.support.routers import Process, eventually, serving
from tests.support.tap import Tap

pytestmark = pytest.mark.engines

SMALL = ("--slots", "2", "--context", "256", "--threads", "1")
PROMPTS = [f"Question {n}: is {n * 37} {'larger' if n % 2 else 'smaller'} than {n * n}? Answer:" for n in range(24)]
REQUESTS = 2000
CLIENTS = 12
Kind = Literal["read", "chat"]


def read_body(prompt: str) -> dict[str, Any]:
    return {"model": "smollm2-135m", "prompt": prompt, "max_tokens": 1, "logprobs": 5, "temperature": 0}


def chat_body(prompt: str) -> dict[str, Any]:
    message = {"role": "user", "content": prompt}
    return {"model": "smollm2-135m", "messages": [message], "max_tokens": 4, "temperature": 0}


@dataclass(slots=True)
class Seen:
    """One request as its client saw it; `bits` is the read's scores, to the last digit."""

    kind: Kind
    prompt: int
    began: float
    ended: float = 0.0
    failed: str = ""
    bits: str = ""


async def request(client: httpx.AsyncClient, base: str, kind: Kind, number: int) -> Seen:
    seen = Seen(kind, number, perf_counter())
    try:
        if kind == "read":
            answer = await client.post(f"{base}/v1/completions", json=read_body(PROMPTS[number]))
        else:
            answer = await client.post(f"{base}/v1/chat/completions", json=chat_body(PROMPTS[number]))
        if answer.status_code == 200:
            seen.bits = str(answer.json()["choices"][0]["logprobs"]) if kind == "read" else ""
        else:
            seen.failed = f"{answer.status_code} {answer.text[:100]}"
    except (httpx.HTTPError, ValueError) as error:
        seen.failed = repr(error)
    seen.ended = perf_counter()
    return seen


def http() -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False, timeout=60.0, limits=httpx.Limits(max_connections=CLIENTS))


class Member:
    """One engine, a tap that watches it, and its router, each of which can be ended and started again."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap
        self.port, self.admin_port = free_port(), free_port()
        self._engine, self._router = ExitStack(), AsyncExitStack()
        self.router: Process

    async def start_engine(self) -> None:
        self._engine = ExitStack()
        engine = embedded_engine(*SMALL, port=self.tap.engine_port)
        await asyncio.to_thread(self._engine.enter_context, engine)

    async def stop_engine(self) -> None:
        await asyncio.to_thread(self._engine.close)

    async def start_router(self) -> None:
        self._router = AsyncExitStack()
        ports = ("--port", str(self.port), "--admin-port", str(self.admin_port), "--engine", "auto")
        self.router = await self._router.enter_async_context(serving(None, *ports, url=self.tap.url))  # type: ignore[arg-type]
        async with asyncio.timeout(20):
            while (await self.router.admin("/readyz")).status != 200:
                await asyncio.sleep(0.1)

    async def kill_router(self) -> None:
        self.router.process.kill()
        await self.router.process.wait()
        await self._router.aclose()

    async def close(self) -> None:
        await self._router.aclose()
        await self.stop_engine()


@asynccontextmanager
async def fleet(count: int = 3) -> AsyncIterator[list[Member]]:
    async with AsyncExitStack() as stack:
        members = [Member(await stack.enter_async_context(Tap(free_port()))) for _ in range(count)]
        for member in members:
            stack.push_async_callback(member.close)
            await member.start_engine()
            await member.start_router()
        yield members


def envoy(tmp_path: Path, members: list[Member], port: int) -> list[str | Path]:
    config = yaml.safe_load((DEPLOY / "envoy/fleet.yaml").read_text())
    static = config["static_resources"]
    static["listeners"][0]["address"]["socket_address"]["port_value"] = port
    endpoints = static["clusters"][0]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    for endpoint, member in zip(endpoints, members, strict=True):
        endpoint["endpoint"]["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": member.port}
        endpoint["endpoint"]["health_check_config"]["port_value"] = member.admin_port
    path = tmp_path / "envoy.yaml"
    path.write_text(yaml.safe_dump(config))
    return [BIN / "envoy", "-c", path, "--log-level", "error", "--concurrency", "1", "--use-dynamic-base-id"]


def vllm_router(tmp_path: Path, members: list[Member], port: int) -> list[str | Path]:
    workers = [f"http://127.0.0.1:{member.port}" for member in members]
    watch = ("--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--health-success-threshold", "1")
    listen = ("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port()))
    return [BIN / "vllm-router", "--worker-urls", *workers, "--policy", "round_robin", *listen, *watch]


async def load(base: str, on_count: dict[int, Any]) -> list[Seen]:
    """2,000 mixed requests from several clients; `on_count` starts what happens when so many are done."""
    chance = random.Random(11)
    kinds: list[Kind] = [("read" if chance.random() < 0.75 else "chat") for _ in range(REQUESTS)]
    work = iter([(kind, chance.randrange(len(PROMPTS))) for kind in kinds])
    done: list[Seen] = []
    happenings: list[asyncio.Task[None]] = []

    async with http() as client:

        async def one_client() -> None:
            for kind, number in work:
                done.append(await request(client, base, kind, number))
                if happening := on_count.pop(len(done), None):
                    happenings.append(asyncio.create_task(happening()))

        await asyncio.gather(*(one_client() for _ in range(CLIENTS)))
    await asyncio.gather(*happenings)
    return done


@pytest.mark.parametrize("balancer", [envoy, vllm_router])
async def test_a_fleet_loses_only_what_was_in_flight(balancer: Any, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        members = await stack.enter_async_context(fleet())
        client = await stack.enter_async_context(http())
        quiet = {}
        for number in range(len(PROMPTS)):
            answers = [await request(client, f"http://127.0.0.1:{m.port}", "read", number) for m in members]
            assert len({answer.bits for answer in answers}) == 1, "the same model has the same bits on each engine"
            quiet[number] = answers[0].bits
        port = free_port()
        await stack.enter_async_context(started(port, *balancer(tmp_path, members, port)))
        base = f"http://127.0.0.1:{port}"
        async with asyncio.timeout(20):  # until the balancer has found them
            while (await request(client, base, "read", 0)).failed:
                await asyncio.sleep(0.2)

        deaths: list[tuple[float, float]] = []

        async def kill_a_router() -> None:
            began = perf_counter()
            await members[0].kill_router()
            deaths.append((began, perf_counter()))
            await asyncio.sleep(3)
            await members[0].start_router()

        async def restart_an_engine() -> None:
            began = perf_counter()
            members[1].tap.shut()
            await members[1].stop_engine()
            deaths.append((began, perf_counter()))
            await members[1].start_engine()
            await members[1].tap.open()

        began = perf_counter()
        done = await load(base, {500: kill_a_router, 1200: restart_an_engine})
        took = perf_counter() - began
        failed = [seen for seen in done if seen.failed]
        moved = [seen for seen in done if seen.bits and seen.bits != quiet[seen.prompt]]
        print(f"\n{balancer.__name__}: {len(done)} requests in {took:.0f} s, {len(failed)} failed, {len(moved)} moved")
        print("reads at the engines:", [member.tap.reads for member in members])
        print("failures:", Counter(seen.failed for seen in failed))
        assert len(done) == REQUESTS
        assert not moved
        assert [member.tap.most for member in members] == [1, 1, 1], "no two reads meet at an engine"
        assert min(member.tap.reads for member in members) > 100, "each had its share"
        late = [seen for seen in failed if not any(seen.began < end and seen.ended > start for start, end in deaths)]
        assert not late, late
        assert len(failed) <= 2 * CLIENTS


async def test_one_router_keeps_three_engines_busy() -> None:
    async with AsyncExitStack() as stack:
        members = await stack.enter_async_context(fleet())
        urls = [member.tap.url for member in members]
        chat = members[0].tap.url
        arguments = [part for url in urls for part in ("--read-endpoint", url)]
        one = await stack.enter_async_context(serving(None, *arguments, "--engine", "auto", url=chat))  # type: ignore[arg-type]
        for member in members:
            await member.kill_router()
        client = await stack.enter_async_context(http())
        base = f"http://127.0.0.1:{one.port}"

        async def up() -> list[bool]:
            return list((await one.admin("/lane")).json()["lane"]["up"])

        async def until(expected: list[bool]) -> None:
            async with asyncio.timeout(20):
                while await up() != expected:
                    await asyncio.sleep(0.1)

        async def burst(count: int) -> list[Seen]:
            work = iter(range(count))

            async def one_client() -> list[Seen]:
                return [await request(client, base, "read", n % len(PROMPTS)) for n in work]

            return [seen for each in await asyncio.gather(*(one_client() for _ in range(CLIENTS))) for seen in each]

        async with asyncio.timeout(20):
            while (await one.admin("/readyz")).status != 200:
                await asyncio.sleep(0.1)
        await until([True, True, True])
        quiet = {seen.prompt: seen.bits for seen in await burst(len(PROMPTS))}

        busy, began = [member.tap.busy for member in members], perf_counter()
        done = await burst(400)
        took = perf_counter() - began
        shares = [(member.tap.busy - before) / took for member, before in zip(members, busy, strict=True)]
        print("\nutilisation of three engines from one queue:", [f"{share:.0%}" for share in shares])
        assert not [seen for seen in done if seen.failed or seen.bits != quiet[seen.prompt]]
        assert min(shares) > 0.8
        assert [member.tap.most for member in members] == [1, 1, 1]

        running = asyncio.create_task(burst(400))
        before = members[2].tap.reads
        await eventually(lambda: members[2].tap.reads > before + 10, 20.0)
        died = perf_counter()
        members[2].tap.shut()
        await members[2].stop_engine()
        dead = perf_counter()
        done = await running
        failed = [seen for seen in done if seen.failed]
        print("an endpoint died:", Counter(seen.failed for seen in failed))
        assert all(seen.began < dead and seen.ended > died for seen in failed)
        assert len(failed) <= 1, "one read can be in flight at one endpoint"
        assert not [seen for seen in done if seen.bits and seen.bits != quiet[seen.prompt]]
        await until([True, True, False])

        await members[2].start_engine()
        await members[2].tap.open()
        await until([True, True, True])
        before = members[2].tap.reads
        assert not [seen for seen in await burst(60) if seen.failed or seen.bits != quiet[seen.prompt]]
        assert members[2].tap.reads > before + 10, "it has its share again"
