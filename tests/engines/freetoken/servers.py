"""FreeToken servers for the tests: the whole server in its own processes, with the stand-in for its engine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.engines import free_port
from tests.support.patched import CLI, ROOT, stop

STARTUP = 240.0
STOCK = "from freetoken.cli import main; main()"
DOOR = f"import site; site.addsitedir('router/engines/freetoken'); {STOCK}"
"""As a site-packages folder that holds door.pth."""


@contextmanager
def serving(
    model: Path,
    *flags: str,
    cache: str = "radix",
    program: str = CLI,
    engine_flags: tuple[str, ...] = (),
    environ: dict[str, str] | None = None,
) -> Iterator[str]:
    """Start a server and wait until it serves; yields its URL.

    Args:
        flags: of `logprob-router engine freetoken`.
        engine_flags: of FreeToken.
        program: CLI, or STOCK for FreeToken as it comes, or DOOR.
    """
    port = free_port()
    front = ["engine", "freetoken", *flags, "--"] if program is CLI else []
    command = [
        sys.executable,
        "-c",
        program,
        *front,
        "serve",
        "--model",
        str(model),
        "--port",
        str(port),
        "--host",
        "127.0.0.1",
    ]
    command += ["--num-tokens", "65536", "--max-running-requests", "16", "--enable-cache-report"]
    command += ["--attention-backend", "triton", *engine_flags]
    log = Path(model).parent / f"server-{port}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent / "standin")]),
                "FREETOKEN_STANDIN": cache,
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
                "TOKENIZERS_PARALLELISM": "false",
                **(environ or {}),
            },
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(process, url, log)
        yield url
    finally:
        stop(process)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + STARTUP
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}:\n{log.read_text()[-4000:]}")
        try:
            health = httpx.get(url + "/health", timeout=5).json()
        except (httpx.HTTPError, ValueError):
            health = {}
        if health.get("status") == "ok":
            return
        if health.get("status") == "error":
            raise RuntimeError(f"{health.get('message')}\n{log.read_text()[-4000:]}")
        time.sleep(0.2)
    raise RuntimeError(f"not ready in {STARTUP} s:\n{log.read_text()[-4000:]}")
