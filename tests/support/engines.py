"""The real embedded engine, and a router in front of it, each as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from subprocess import DEVNULL, Popen

import httpx

from router.app import Router
from router.settings import Settings

START = 60.0


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine."""

    url: str
    process: Popen[bytes]


@contextlib.contextmanager
def embedded_engine(*arguments: str, port: int | None = None) -> Iterator[Engine]:
    """`logprob-router engine llamacpp` on this or a free port, ready to answer."""
    port = port or free_port()
    command = [sys.executable, "-c", "from router.cli import main; main()", "engine", "llamacpp", "--port", str(port)]
    process = Popen([*command, *arguments], stdout=DEVNULL, stderr=DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START
        while True:
            assert process.poll() is None, "the embedded engine ended by itself"
            assert time.monotonic() < deadline, f"the embedded engine is not up after {START} s"
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(url + "/health", trust_env=False).status_code == 200:
                    break
            time.sleep(0.2)
        yield Engine(url, process)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@contextlib.asynccontextmanager
async def router_at(url: str, **settings: object) -> AsyncIterator[Router]:
    """A router in this process in front of an engine, once it has found it."""
    async with Router(Settings(upstream=url, port=0, admin_port=0, **settings)) as router:  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            while not router.ready:
                await asyncio.sleep(0.05)
        yield router
