"""Starts, stops and restarts, with real processes: what was accepted is answered, and nothing ends with a false end."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter

import yaml

from tests.deploy.test_host import started
from tests.support.answers import LAST_CHUNK, STREAM_HEAD, chunk, engine
from tests.support.client import GEN, READ1, STREAM, Answer, Client, ask, completions
from tests.support.deploy import BIN, DEPLOY
from tests.support.engines import free_port
from tests.support.routers import Process, assert_healthy, eventually, serving
from tests.support.upstream import Connection, Request, Upstream


async def at_work(connection: Connection, request: Request) -> None:
    """Reads take a while; a stream has no end."""
    if request.is_read:
        await asyncio.sleep(0.2)
        await engine(connection, request)
        return
    await connection.send(STREAM_HEAD)
    while True:
        await connection.send(chunk(b"data: 1\n\n"))
        await asyncio.sleep(0.05)


async def test_sigterm_in_the_middle_of_everything() -> None:
    """A list half done, queued reads, an endless stream, an idle and two half-sent connections: grace, then exit 0."""
    grace = 6.0
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(Upstream(at_work))
        router = await stack.enter_async_context(serving(upstream, "--grace", str(grace)))
        idle, half_head, half_body, endless = [
            await stack.enter_async_context(await router.connect()) for _ in range(4)
        ]
        assert (await idle.ask(READ1)).status == 200
        await half_head.send(GEN[:30])
        await half_body.send(GEN[:-10])
        await endless.send(STREAM)
        stream = await endless.head()
        reads = [asyncio.create_task(router.ask(completions(prompt=["a", "b", "c", "d"])))]
        await eventually(lambda: sum(request.is_read for request in upstream.requests) >= 3)
        reads += [asyncio.create_task(router.ask(READ1)) for _ in range(5)]
        await asyncio.sleep(0.1)

        began = perf_counter()
        router.signal()
        for answer in await asyncio.gather(*reads):
            assert answer.status == 200
            assert answer.whole
        assert len(reads[0].result().json()["choices"]) == 4
        assert perf_counter() - began < grace - 1, "reads did not wait for the stream's end"
        assert await idle.closed()
        await endless.rest(stream)
        assert not stream.whole
        assert LAST_CHUNK not in stream.raw_body
        assert b"[DONE]" not in stream.body
        assert await router.exit_code() == 0
        assert grace - 1.5 < perf_counter() - began < grace + 2
        for client in (half_head, half_body):
            with contextlib.suppress(ConnectionError):
                assert not (await client.receive()).startswith(b"HTTP/1.1 2")
        assert upstream.max_reads_overlap == 1
        await eventually(lambda: upstream.open_connections == 0)


async def test_an_engine_that_is_slow_to_start() -> None:
    """10 s without an engine: alive, not ready, 503 at once; served within 2 s of its start."""
    port = free_port()
    upstream = Upstream(port=port)
    async with serving(upstream, url=f"http://127.0.0.1:{port}") as router:
        until = perf_counter() + 10
        while perf_counter() < until:
            for data in (READ1, GEN):
                began = perf_counter()
                answer = await router.ask(data)
                assert (answer.status, perf_counter() - began < 1.0) == (503, True)
                assert answer.get("retry-after") == b"1"
            assert (await router.admin("/livez")).status == 200
            assert (await router.admin("/readyz")).status == 503
            await asyncio.sleep(0.3)
        async with upstream:
            began = perf_counter()
            while (await router.admin("/readyz")).status != 200:
                await asyncio.sleep(0.05)
            assert perf_counter() - began < 2.5
            await assert_healthy(router)


async def test_an_engine_that_flaps() -> None:
    """It dies and comes back five times under load: every answer is prompt and honest, and nothing is left behind."""
    port = free_port()
    answers: list[Answer] = []
    over = asyncio.Event()

    async def client(router: Process, data: bytes) -> None:
        while not over.is_set():
            began = perf_counter()
            answer = await router.ask(data)
            assert perf_counter() - began < 3.0
            answers.append(answer)
            await asyncio.sleep(0.02)

    async with serving(Upstream(port=port), url=f"http://127.0.0.1:{port}") as router:
        list_read = completions(prompt=["a", "b"])
        clients = [asyncio.create_task(client(router, data)) for data in (READ1, GEN, list_read, READ1)]
        for _ in range(5):
            async with Upstream(port=port) as upstream:
                await upstream.arrival(5)
                await asyncio.sleep(0.3)
                assert upstream.max_reads_overlap <= 1
            await asyncio.sleep(0.3)
        over.set()
        await asyncio.gather(*clients)
        assert {answer.status for answer in answers} <= {200, 502, 503}
        assert sum(answer.status == 200 for answer in answers) > 20
        async with Upstream(port=port):
            await assert_healthy(router)


async def short_chat(connection: Connection, request: Request) -> None:
    """Reads at once; a chat streams for half a second."""
    if request.is_read:
        await engine(connection, request)
        return
    await connection.send(STREAM_HEAD)
    for _ in range(5):
        await connection.send(chunk(b"data: 1\n\n"))
        await asyncio.sleep(0.1)
    await connection.send(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)


class Place:
    """One engine and its router, which are stopped and started as a pod's containers are."""

    def __init__(self) -> None:
        self.port, self.admin_port, self.engine_port = free_port(), free_port(), free_port()
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        self._stack = AsyncExitStack()
        self.upstream = await self._stack.enter_async_context(Upstream(short_chat, port=self.engine_port))
        drain = ("--drain-delay", "2.5", "--grace", "20")
        ports = ("--port", str(self.port), "--admin-port", str(self.admin_port))
        self.router = await self._stack.enter_async_context(serving(self.upstream, *ports, *drain))
        while (await self.router.admin("/readyz")).status != 200:
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """The router drains and ends, then the engine: the order that the sidecar's preStop hooks bring about."""
        self.router.signal()
        assert await self.router.exit_code(25) == 0
        await self._stack.aclose()


async def test_a_rolling_restart_behind_envoy_loses_nothing(tmp_path: Path) -> None:
    """Each router and each engine is restarted in turn, under load: every request succeeds."""
    config = yaml.safe_load((DEPLOY / "envoy/fleet.yaml").read_text())
    places = [Place(), Place()]
    port = free_port()
    static = config["static_resources"]
    static["listeners"][0]["address"]["socket_address"]["port_value"] = port
    endpoints = static["clusters"][0]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    del endpoints[len(places) :]
    for endpoint, place in zip(endpoints, places, strict=True):
        endpoint["endpoint"]["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": place.port}
        endpoint["endpoint"]["health_check_config"]["port_value"] = place.admin_port
    (tmp_path / "envoy.yaml").write_text(yaml.safe_dump(config))
    command = (BIN / "envoy", "-c", tmp_path / "envoy.yaml", "--log-level", "error", "--use-dynamic-base-id")
    over = asyncio.Event()
    answers: list[Answer] = []

    async def client(data: bytes) -> None:
        async with await Client.connect(port, lenient=True) as connection:
            while not over.is_set():
                answers.append(await connection.ask(data))
                await asyncio.sleep(0.02)

    async with AsyncExitStack() as stack:
        for place in places:
            await place.start()
            stack.push_async_callback(lambda place=place: place._stack.aclose())
        await stack.enter_async_context(started(port, *command, "--concurrency", "1"))
        while (await ask(port, READ1)).status != 200:
            await asyncio.sleep(0.1)
        clients = [asyncio.create_task(client(data)) for data in (READ1, STREAM, READ1, STREAM, STREAM)]
        await asyncio.sleep(0.5)
        for place in places:
            await place.stop()
            await place.start()
            await asyncio.sleep(2.0)  # until Envoy has taken it in again
        over.set()
        await asyncio.gather(*clients)
        assert len(answers) > 100
        assert [answer for answer in answers if answer.status != 200 or not answer.whole] == []
        assert all(place.upstream.max_reads_overlap <= 1 for place in places)
