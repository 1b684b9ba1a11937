"""vLLM servers for the tests: the CPU build's own server in its own processes, one at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.engines import free_port
from tests.support.patched import CLI, ROOT, stop

STARTUP = 240.0
NAME = "m"
BLOCK = 32
BUDGET = 512

FLAGS = (
    *("--served-model-name", NAME, "--dtype", "float32", "--max-model-len", "8192", "--max-num-seqs", "32"),
    *("--max-num-batched-tokens", str(BUDGET), "--block-size", str(BLOCK), "--max-logprobs", "20"),
    *("--enable-prompt-tokens-details", "--enforce-eager"),
)
ENVIRON = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONPATH": str(ROOT),
}


@contextmanager
def serving(
    model: Path,
    *flags: str,
    blocks: int | None = None,
    ours: Sequence[str] | None = (),
    environ: dict[str, str] | None = None,
) -> Iterator[str]:
    """Start a server and wait until it serves; yields its URL.

    Args:
        flags: of vLLM, besides FLAGS.
        blocks: blocks of its KV cache, BLOCK tokens each; by default 1 GiB of them.
        ours: flags of `logprob-router engine vllm`; None is vLLM as it comes.
    """
    port = free_port()
    where = ["--host", "127.0.0.1", "--port", str(port), *FLAGS, *flags]
    if blocks is not None:
        where += ["--num-gpu-blocks-override", str(blocks)]
    if ours is None:
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *where]
    else:
        command = [sys.executable, "-c", CLI, "engine", "vllm", *ours, "--", "serve", str(model), *where]
    log = model.parent / f"server-{port}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **ENVIRON, **(environ or {})},
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
            if httpx.get(url + "/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.3)
    raise RuntimeError(f"not ready in {STARTUP} s:\n{log.read_text()[-4000:]}")
