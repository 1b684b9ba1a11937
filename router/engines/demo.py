"""`make run`: the Procfile under honcho, and what to try once the router is ready."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx

PATIENCE = 120.0

TRY = """
The router is ready. Try, in another terminal:

  # score a prompt: the same bits every time, whatever else runs
  curl -i {data}/v1/completions -H 'content-type: application/json' \\
    -d '{{"prompt": "The capital of France is", "max_tokens": 1, "logprobs": 5, "temperature": 0}}'

  # chat: passed through as it is
  curl {data}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"messages": [{{"role": "user", "content": "Say hello."}}], "max_tokens": 32}}'

  # measure it: the engine alone beside the engine behind the router
  {verify} verify --quick --engine {engine} --router {data}

  # watch it
  curl {admin}/lane
  curl {admin}/metrics

Ctrl-C ends both.
"""


def main() -> int:
    """Run the Procfile until it ends; the exit code is honcho's."""
    bin_dir = Path(sys.executable).parent
    ports = {name: os.environ.get(f"{name}_PORT", default) for name, default in DEFAULTS.items()}
    env = {**os.environ, "PATH": f"{bin_dir}{os.pathsep}{os.environ.get('PATH', '')}", "PYTHONUNBUFFERED": "1"}
    processes = subprocess.Popen([sys.executable, "-m", "honcho", "start"], env=env)
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    threading.Thread(target=_announce, args=(processes, urls, bin_dir), daemon=True).start()
    while True:
        try:
            return processes.wait()
        except KeyboardInterrupt:
            continue  # honcho has it too, and ends both


def _announce(processes: subprocess.Popen[bytes], urls: dict[str, str], bin_dir: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    with httpx.Client(trust_env=False, timeout=2.0) as client:
        while processes.poll() is None and time.monotonic() < deadline:
            try:
                if client.get(urls["ADMIN"] + "/readyz").status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.3)
        else:
            return
    command = bin_dir / "logprob-router"
    shown = command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command
    text = TRY.format(data=urls["ROUTER"], admin=urls["ADMIN"], engine=urls["ENGINE"], verify=shown)
    print(text, file=sys.stderr, flush=True)


DEFAULTS = {"ENGINE": "8001", "ROUTER": "9000", "ADMIN": "9091"}

if __name__ == "__main__":
    sys.exit(main())
