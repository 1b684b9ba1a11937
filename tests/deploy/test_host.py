"""On a host: the systemd unit, and the real nginx and Envoy in front of the router."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tests.support.answers import LAST_CHUNK, STREAM_HEAD, chunk, in_turn, play
from tests.support.client import GEN, READ1, STREAM, Client, ask, completions, request
from tests.support.deploy import BIN, DEPLOY, ROOT, Object, settings_of
from tests.support.engines import free_port
from tests.support.routers import InProcess, eventually, running
from tests.support.tools import tool
from tests.support.upstream import Connection, Request, Upstream

UNIT = DEPLOY / "systemd/logprob-router.service"


# -- systemd


@pytest.mark.programs
def test_the_unit_is_valid_and_hardened(tmp_path: Path) -> None:
    unit = UNIT.read_text()
    unit = unit.replace("/opt/logprob-router/bin/logprob-router", str(BIN / "logprob-router"))
    copy = tmp_path / UNIT.name
    copy.write_text(unit)
    said = subprocess.run([tool("systemd-analyze"), "verify", copy], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    assert UNIT.name not in said.stderr
    scored = subprocess.run(
        [tool("systemd-analyze"), "security", "--offline=true", "--no-pager", copy], capture_output=True, text=True
    )
    found = re.search(r"Overall exposure level[^:]*: ([\d.]+)", scored.stdout)
    assert found is not None, scored.stdout + scored.stderr
    assert float(found[1]) < 2.0


def test_the_units_environment_is_the_routers(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (DEPLOY / "systemd/logprob-router.env").read_text().splitlines()
    variables = [line.split("=", 1) for line in lines if not line.startswith("#")]
    container: Object = {"args": ["serve"], "env": [{"name": name, "value": value} for name, value in variables]}
    settings = settings_of(container, monkeypatch)
    stop = re.search(r"TimeoutStopSec=(\d+)", UNIT.read_text())
    assert stop is not None
    assert int(stop[1]) > settings.grace
    assert settings.upstream == "http://127.0.0.1:8000"


# -- nginx and Envoy


@contextlib.asynccontextmanager
async def started(port: int, *command: str | Path) -> AsyncIterator[int]:
    """A proxy that listens on `port` once it is up."""
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    saying = asyncio.create_task(process.stdout.read())
    try:
        async with asyncio.timeout(20):
            while True:
                assert process.returncode is None, (await saying).decode()
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.05)
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 20)
        await saying


def nginx(tmp_path: Path, router_port: int, port: int) -> list[str | Path]:
    site = (DEPLOY / "nginx/logprob-router.conf").read_text()
    site = site.replace("127.0.0.1:9000", f"127.0.0.1:{router_port}").replace("listen 8080", f"listen 127.0.0.1:{port}")
    (tmp_path / "site.conf").write_text(site)
    user = "user root;" if os.geteuid() == 0 else ""
    (tmp_path / "nginx.conf").write_text(
        f"{user} daemon off; pid {tmp_path}/nginx.pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {tmp_path}/body; proxy_temp_path {tmp_path}/proxy;\n"
        f"fastcgi_temp_path {tmp_path}/f; uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s;\n"
        f"include {tmp_path}/site.conf; }}\n"
    )
    path = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    return [path or tool("nginx"), "-p", tmp_path, "-c", tmp_path / "nginx.conf"]


def envoy(tmp_path: Path, router_port: int, port: int) -> list[str | Path]:
    config = yaml.safe_load((DEPLOY / "envoy/single.yaml").read_text())
    static = config["static_resources"]
    static["listeners"][0]["address"]["socket_address"]["port_value"] = port
    [endpoint] = static["clusters"][0]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    endpoint["endpoint"]["address"]["socket_address"]["port_value"] = router_port
    (tmp_path / "envoy.yaml").write_text(yaml.safe_dump(config))
    level = ["--log-level", "error", "--concurrency", "1", "--use-dynamic-base-id"]
    return [BIN / "envoy", "-c", tmp_path / "envoy.yaml", *level]


class Front:
    """A real proxy in front of a router in front of a scripted engine."""

    def __init__(self, name: str, port: int, router: InProcess) -> None:
        self.name = name
        self.port = port
        self.router = router
        self.upstream = router.upstream


@pytest.fixture(params=[pytest.param("nginx", marks=pytest.mark.programs), "envoy"])
async def front(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Front]:
    async with Upstream() as upstream, running(upstream) as router:
        port = free_port()
        command = {"nginx": nginx, "envoy": envoy}[request.param](tmp_path, router.port, port)
        async with started(port, *command):
            yield Front(request.param, port, router)


async def test_events_arrive_one_by_one(front: Front) -> None:
    seen = [asyncio.Event() for _ in range(3)]

    async def handler(connection: Connection, request: Request) -> None:
        await connection.send(STREAM_HEAD)
        for number, event in enumerate(seen):
            await connection.send(chunk(b"data: %d\n\n" % number))
            await event.wait()  # the next one is written only once the client has this one
        await connection.send(LAST_CHUNK)

    front.upstream.handler = handler
    async with await Client.connect(front.port, lenient=True) as client:
        await client.send(STREAM)
        answer = await client.head()
        for number, event in enumerate(seen):
            while not answer.body.endswith(b"data: %d\n\n" % number):
                assert await client.more(answer)
            event.set()
        await client.rest(answer)
        assert answer.whole
        assert answer.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


async def test_reads_and_lists_are_answered_and_labelled(front: Front) -> None:
    for data, choices in ((READ1, 1), (completions(prompt=["a", "b", "c"]), 3)):
        answer = await ask(front.port, data)
        assert answer.status == 200
        assert answer.get("x-read-isolation") == b"serial"
        assert b"queue;dur=" in (answer.get("server-timing") or b"")
        assert len(answer.json()["choices"]) == choices
    assert len(front.upstream.requests) == 4
    assert front.upstream.max_reads_overlap == 1


async def test_an_upload_is_not_held_back(front: Front) -> None:
    body = os.urandom(2_000_000)
    half = len(body) // 2
    first = asyncio.Event()

    async def handler(connection: Connection, request: Request) -> None:
        first.set()
        await eventually(lambda: request.reader.done, 5.0)
        await play(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")(connection, request)

    front.upstream.on("/v1/files", handler, early=True)
    data = request("POST", "/v1/files", body, content_type="application/octet-stream")
    async with await Client.connect(front.port, lenient=True) as client:
        await client.send(data[:-half])
        await asyncio.wait_for(first.wait(), 5)  # it is at the engine, and half of it is still here
        await client.send(data[-half:])
        assert (await client.answer()).status == 200


async def test_a_client_that_leaves_is_seen_to_leave(front: Front) -> None:
    front.upstream.handler = play(STREAM_HEAD, chunk(b"data: 1\n\n"), "forever")
    async with await Client.connect(front.port, lenient=True) as client:
        await client.send(STREAM)
        answer = await client.head()
        while not answer.body:
            await client.more(answer)
    [connection] = {request.connection for request in front.upstream.requests}
    await eventually(lambda: connection.is_gone, 3.0)
    await front.router.settled()


async def test_nothing_is_sent_twice(front: Front) -> None:
    front.upstream.handler = play("close")
    answer = await ask(front.port, GEN)
    assert answer.status == 502
    assert len(front.upstream.requests) == 1


async def test_the_engines_own_errors_and_hints_pass(front: Front) -> None:
    body = b'{"error":{"message":"slow down"}}'
    head = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 30\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    front.upstream.handler = in_turn(play(head % len(body) + body))
    answer = await ask(front.port, READ1)
    assert (answer.status, answer.get("retry-after"), answer.body) == (429, b"30", body)
    assert len(front.upstream.requests) == 1


def test_the_examples_keep_connections_shorter_than_the_router_does() -> None:
    assert "keepalive_timeout 60s" in (DEPLOY / "nginx/logprob-router.conf").read_text()
    for name in ("single", "fleet"):
        config = (DEPLOY / f"envoy/{name}.yaml").read_text()
        assert "idle_timeout: 60s" in config
        subprocess.run(
            [BIN / "envoy", "--mode", "validate", "-c", DEPLOY / f"envoy/{name}.yaml"], check=True, capture_output=True
        )
    assert (ROOT / "Procfile").exists()
