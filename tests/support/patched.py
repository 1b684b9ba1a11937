"""Processes around an engine that runs with one of our patches, in the engine's own environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.support.engines import free_port

ROOT = Path(__file__).parents[2]
CLI = "from router.cli import main; main()"

ADMIN: dict[str, str] = {}
"""Admin ports' URLs by the router's URL."""


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and all of its processes: they share a group that is theirs alone."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def routing(engine: str, *flags: str) -> Iterator[str]:
    """A router that takes no read without the engine's acknowledgement; yields its URL."""
    port, admin_port = free_port(), free_port()
    command = [sys.executable, "-c", CLI, "serve", "--upstream", engine, "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--admin-port", str(admin_port), "--require-ack", *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    ADMIN[f"http://127.0.0.1:{port}"] = f"http://127.0.0.1:{admin_port}"
    try:
        for _ in range(200):
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{admin_port}/readyz").status_code == 200:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(process)
