"""Start, stop and the orchestrator's view, O01-O08."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from time import perf_counter
from typing import Any

import pytest

from tests.support.answers import STREAM_HEAD, chunk, held, in_turn, silent
from tests.support.client import GEN, READ1, STREAM, Client, completions, get
from tests.support.routers import Running, eventually, running, serving
from tests.support.upstream import Connection, Request, Upstream


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


async def status_of(router: Running, path: str) -> int:
    return (await router.admin(path)).status


async def becomes(router: Running, path: str, status: int, timeout: float) -> None:
    """The admin port answers `status` within `timeout` seconds; /livez is 200 all along."""
    deadline = perf_counter() + timeout
    while await status_of(router, path) != status:
        assert await status_of(router, "/livez") == 200
        assert perf_counter() < deadline, f"{path} is not {status} within {timeout} s"
        await asyncio.sleep(0.05)


async def endless(connection: Connection, request: Request) -> None:
    await connection.send(STREAM_HEAD)
    while True:
        await connection.send(chunk(b"data: 1\n\n"))
        await asyncio.sleep(0.05)


async def test_o01_readiness_follows_the_engine() -> None:
    """O01: 503 while the engine is down or unwell, 200 within 2 s of its health, 503 when it dies; always alive."""
    upstream = Upstream(port=free_port())
    async with running(upstream) as router:
        assert await status_of(router, "/readyz") == 503
        async with upstream:
            upstream.health = 503
            await asyncio.sleep(0.8)
            assert await status_of(router, "/readyz") == 503
            assert await status_of(router, "/livez") == 200
            upstream.health = 200
            await becomes(router, "/readyz", 200, 2.0)
            upstream.health = 500
            await becomes(router, "/readyz", 503, 2.0)
            upstream.health = 200
            await becomes(router, "/readyz", 200, 2.0)
            assert (await router.ask(READ1)).status == 200
        await becomes(router, "/readyz", 503, 2.0)
        async with Upstream(port=upstream.port):
            await becomes(router, "/readyz", 200, 2.0)
            assert (await router.ask(READ1)).status == 200


async def test_o02_an_engine_that_is_not_there(upstream: Upstream) -> None:
    """O02: connection refused is 503 with Retry-After in under 1 s, for a generation, a GET, a read and a list."""
    async with running(upstream, url=f"http://127.0.0.1:{free_port()}") as router:
        for data in (GEN, get("/v1/models"), READ1, completions(prompt=["a", "b"])):
            began = perf_counter()
            answer = await router.ask(data)
            assert perf_counter() - began < 1.0
            assert answer.status == 503
            assert (answer.get("retry-after") or b"").isdigit()
            assert answer.json()["error"]["type"] == "router_error"
        samples = await router.settled()
        assert samples.sum("requests_total", outcome="upstream_error") == 4


async def test_o02_an_engine_that_comes_up_is_served_at_once() -> None:
    """O02: requests before the engine are refused, after it they succeed, with nothing parked between."""
    upstream = Upstream(port=free_port())
    async with running(upstream) as router:
        assert (await router.ask(READ1)).status == 503
        async with upstream:
            assert (await router.ask(GEN)).status == 200
            await becomes(router, "/readyz", 200, 2.0)
            assert (await router.ask(READ1)).status == 200
            assert len(upstream.requests) == 2


async def test_o03_sigterm_lets_a_stream_run_for_the_grace() -> None:
    """O03: not ready at once, the stream flows on, then an abnormal end, exit 0, the engine's socket closed."""
    async with Upstream(endless) as upstream, serving(upstream, "--grace", "2") as router:
        async with await router.connect() as client:
            await client.send(STREAM)
            answer = await client.head()
            began = perf_counter()
            router.signal()
            await asyncio.sleep(0.3)
            with contextlib.suppress(OSError):
                assert await status_of(router, "/readyz") == 503
            await client.rest(answer)
            assert not answer.whole
            assert b"[DONE]" not in answer.body
            assert 1.4 < answer.ended_at - began < 3.0
            assert len(answer.pieces) > 20
        assert await router.exit_code() == 0
        assert perf_counter() - began < 3.5
        await eventually(lambda: upstream.open_connections == 0)


async def test_o03_a_stream_that_ends_in_time_ends_whole() -> None:
    """O03: what finishes within the grace is not cut, and the process goes when it is done."""

    async def short(connection: Connection, request: Request) -> None:
        await connection.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await asyncio.sleep(0.6)
        await connection.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with Upstream(short) as upstream, serving(upstream, "--grace", "20") as router:
        async with await router.connect() as client:
            await client.send(STREAM)
            answer = await client.head()
            router.signal()
            assert (await client.rest(answer)).whole
        assert await router.exit_code(3.0) == 0


async def test_o04_sigterm_with_waiting_reads() -> None:
    """O04: the running read finishes, and one that waits runs too, within the grace."""
    async with Upstream(held(0.5)) as upstream, serving(upstream, "--grace", "10") as router:
        first = asyncio.create_task(router.ask(READ1))
        await upstream.arrival(1)
        second = asyncio.create_task(router.ask(READ1))
        await asyncio.sleep(0.1)
        router.signal()
        assert (await first).status == 200
        assert (await second).status == 200
        assert await router.exit_code() == 0


async def test_o04_reads_that_cannot_run_in_time_are_told() -> None:
    """O04: one that cannot run within the grace gets 503 and Retry-After before the exit, not a reset."""
    handler = in_turn(held(0.8), silent)
    async with Upstream(handler) as upstream, serving(upstream, "--grace", "1.5") as router:
        first = asyncio.create_task(router.ask(READ1))
        await upstream.arrival(1)
        clients = [await router.connect() for _ in range(2)]
        for client in clients:
            await client.send(READ1)
        await asyncio.sleep(0.1)
        router.signal()
        assert (await first).status == 200
        waiting = await clients[1].answer()
        assert waiting.status == 503
        assert (waiting.get("retry-after") or b"").isdigit()
        assert await router.exit_code() == 0
        for client in clients:
            client.close()
        assert "CancelledError" not in router.text


async def test_o05_the_drain_delay_keeps_the_door_open() -> None:
    """O05: for --drain-delay new connections are served while /readyz says 503; then the port is closed."""
    async with Upstream() as upstream, serving(upstream, "--drain-delay", "1", "--grace", "5") as router:
        began = perf_counter()
        router.signal()
        await asyncio.sleep(0.2)
        assert await status_of(router, "/readyz") == 503
        assert await status_of(router, "/livez") == 200
        while perf_counter() - began < 0.8:
            assert (await router.ask(GEN)).status == 200
            assert (await router.ask(READ1)).status == 200
            await asyncio.sleep(0.1)
        assert await router.exit_code(4.0) == 0
        assert perf_counter() - began > 0.9
        with pytest.raises(OSError):
            await Client.connect(router.port)


async def test_o06_probes_answer_under_load() -> None:
    """O06: with 1500 open connections and a full queue, /livez and /readyz answer within 200 ms."""
    async with Upstream(silent) as upstream, serving(upstream, "--max-queued-reads", "100") as router:
        clients = [await Client.connect(router.port) for _ in range(1500)]
        for number, client in enumerate(clients[:400]):
            await client.send(READ1 if number < 101 else GEN)
        await upstream.arrival(300)
        try:
            for _ in range(10):
                for path in ("/livez", "/readyz"):
                    began = perf_counter()
                    assert await status_of(router, path) == 200
                    assert perf_counter() - began < 0.2
            assert (await router.ask(READ1)).status == 503
        finally:
            for client in clients:
                client.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_o07_localhost_is_tried_in_both_families(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """O07: `localhost` that resolves to ::1 first works with an engine on either address only."""
    genuine = socket.getaddrinfo

    def both(name: Any, port: Any, *arguments: Any, **options: Any) -> list[Any]:
        if name not in ("localhost", b"localhost"):
            return genuine(name, port, *arguments, **options)
        return [
            (family, socket.SOCK_STREAM, 6, "", (address, int(port), *rest))
            for family, address, rest in ((socket.AF_INET6, "::1", (0, 0)), (socket.AF_INET, "127.0.0.1", ()))
        ]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    async with Upstream(host=host) as upstream:
        async with running(upstream, url=f"http://localhost:{upstream.port}") as router:
            assert (await router.ask(GEN)).status == 200
            assert (await router.ask(READ1)).status == 200
            assert await status_of(router, "/readyz") == 200
        assert upstream.requests[0].get("host") == f"localhost:{upstream.port}".encode()


async def test_o08_a_second_signal_ends_at_once() -> None:
    """O08: SIGTERM twice: it ends at once, sockets are closed, and the port is free for the next process."""
    async with Upstream(endless) as upstream:
        async with serving(upstream, "--grace", "60") as router, await router.connect() as client:
            await client.send(STREAM)
            await client.head()
            router.signal()
            await asyncio.sleep(0.2)
            assert router.process.returncode is None
            began = perf_counter()
            router.signal()
            await router.exit_code(3.0)
            assert perf_counter() - began < 1.5
            port = router.port
        await eventually(lambda: upstream.open_connections == 0)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))


async def test_o08_an_interrupt_drains_too() -> None:
    """O08: SIGINT is as good as SIGTERM, and an idle router goes at once with exit code 0."""
    async with Upstream() as upstream, serving(upstream) as router, await router.connect() as idle:
        assert (await idle.ask(GEN)).status == 200
        began = perf_counter()
        router.signal(signal.SIGINT)
        assert await router.exit_code(3.0) == 0
        assert perf_counter() - began < 1.5
        assert await idle.closed()


async def test_a_taken_port_is_said_in_words() -> None:
    """The kind of O08: a port in use is an error message that names the flag, not a traceback."""
    async with Upstream() as upstream:
        with pytest.raises(RuntimeError, match="--port") as caught:
            async with serving(upstream, "--port", str(upstream.port)):
                pass
        assert "Traceback" not in str(caught.value)


async def test_three_lines_at_the_start() -> None:
    """Section 9b of the design: it says where it listens, what engine it found, and what isolation it can promise."""
    async with Upstream() as upstream, serving(upstream) as router:
        await eventually(lambda: "isolation:" in router.text)
        assert f"engine at {upstream.url}" in router.text
