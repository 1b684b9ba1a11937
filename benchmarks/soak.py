"""100,000 mixed requests through one router: reads, lists, chats, streams, uploads, slow readers, clients that leave.

    python benchmarks/soak.py [--requests 100000] [--clients 64]

At the end: memory is flat once the ledger of conversations is full, every socket and gauge is back at zero, no read was
lost and
no two were at the engine at once. The engine is a small scripted one in a process of its own. Exits 1 if one of these
fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar
from urllib.request import urlopen

import uvloop
from proxies import Running, free_port, started

UPLOAD = b"x" * 300_000
ANSWER = (
    b'{"id":"c","object":"text_completion","created":1,"choices":[{"index":0,"text":"x"}],"usage":{"prompt_tokens":2}}'
)
GROWTH_MB = 3.0


class Engine(asyncio.Protocol):
    """Answers everything a little later, and counts the reads that are here at once. `GET /stats` tells."""

    active: ClassVar[set[Engine]] = set()
    overlaps = served = 0

    def __init__(self) -> None:
        self.buffer = b""
        self.reading = self.shared = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self.leave()

    def left(self) -> bool:
        """The other side has closed, whether or not the event loop has come to say so."""
        if self.transport.is_closing():
            return True
        with socket.fromfd(self.transport.get_extra_info("socket").fileno(), socket.AF_INET, socket.SOCK_STREAM) as s:
            try:
                return s.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
            except BlockingIOError:
                return False
            except OSError:
                return True

    def leave(self) -> None:
        self.reading = False
        Engine.active.discard(self)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        length = re.search(rb"content-length: *(\d+)", head)
        size = end + 4 + (int(length[1]) if length else 0)
        if len(self.buffer) < size:
            return
        request, self.buffer = self.buffer[:size], self.buffer[size:]
        if request.startswith(b"GET /stats"):
            self.answer(
                json.dumps({"reads": len(Engine.active), "overlaps": Engine.overlaps, "served": Engine.served}).encode()
            )
            return
        if b"x-cache-bypass" in head:
            self.reading, self.shared = True, False
            # A read that is still here may be one whose client left, with its close just behind.
            # If it is answered, they overlapped.
            for other in Engine.active - {self}:
                other.shared = True
            Engine.active.add(self)
        loop = asyncio.get_running_loop()
        if b'"stream":true' in request:
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            loop.call_later(0.001, self.tick, 10)
        elif b'"big"' in request:
            loop.call_later(0.001, self.answer, b"y" * 400_000)
        else:
            loop.call_later(0.0003, self.answer, ANSWER)

    def tick(self, left: int) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(b"a\r\ndata: {}\n\n\r\n" if left else b"0\r\n\r\n")
        if left:
            asyncio.get_running_loop().call_later(0.001, self.tick, left - 1)

    def answer(self, body: bytes) -> None:
        if self.reading and not self.left():
            Engine.served += 1
            Engine.overlaps += self.shared
        self.leave()
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            )


async def engine(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def request(kind: str, number: int) -> bytes:
    """One request. Models, ids and cookies are all different, as the wild's are."""
    body: dict[str, object] = {"model": f"m{number}", "prompt": f"number {number}", "max_tokens": 1}
    path = "/v1/completions"
    if kind in ("read", "leaver"):
        body["logprobs"] = 2
    elif kind == "list":
        body |= {"logprobs": 1, "prompt": [f"{number} {k}" for k in range(4)]}
    elif kind == "stream":
        body |= {"stream": True, "max_tokens": 10}
    elif kind == "slow":
        body |= {"max_tokens": 9, "prompt": "big"}
    else:
        body["max_tokens"] = 9
    text = UPLOAD if kind == "upload" else json.dumps(body, separators=(",", ":")).encode()
    if kind == "upload":
        path = "/v1/files"
    content = "application/octet-stream" if kind == "upload" else "application/json"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {content}\r\n"
        f"Cookie: sid={number}\r\nX-Request-Id: r{number}\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n"
    )
    return head.encode() + text


KINDS = ["read"] * 40 + ["chat"] * 25 + ["stream"] * 10 + ["leaver"] * 12 + ["list"] * 6 + ["slow"] * 4 + ["upload"] * 3


async def one(port: int, number: int, chance: random.Random, outcomes: Counter[str]) -> None:
    kind = chance.choice(KINDS)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request(kind, number))
        if kind == "leaver":
            await asyncio.sleep(chance.random() * 0.03)
            writer.transport.abort()
            outcomes["left"] += 1
            return
        if kind == "slow":
            await asyncio.sleep(chance.random() * 0.05)
        answer = await reader.read(-1)
        outcomes[f"{kind} {answer[9:12].decode('ascii', 'replace') or 'nothing'}"] += 1
    finally:
        writer.close()


async def drive(port: int, total: int, clients: int, proxy: Running, memory: list[tuple[int, float]]) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    chance = random.Random(1)
    numbers = iter(range(total))

    async def client() -> None:
        for number in numbers:
            await one(port, number, chance, outcomes)
            if number % (total // 50) == 0:
                memory.append((number, proxy.memory()))

    await asyncio.gather(*(client() for _ in range(clients)))
    return outcomes


def gauges(admin: int) -> dict[str, float]:
    text = urlopen(f"http://127.0.0.1:{admin}/metrics").read().decode()
    names = ("read_queue_depth", "inflight_requests", "read_slots_busy", "reads_total", "requests_total")
    return {
        name: sum(float(v) for v in re.findall(rf"^logprob_router_{name}(?:{{[^}}]*}})? ([\d.e+-]+)$", text, re.M))
        for name in names
    }


def sockets(pid: int) -> int:
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.readlink(entry).startswith("socket:")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--engine", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        uvloop.run(engine(arguments.engine))
        return 0
    upstream = free_port()
    child = subprocess.Popen([sys.executable, __file__, "--engine", str(upstream)])
    try:
        time.sleep(0.5)
        with tempfile.TemporaryDirectory() as directory, started("logprob-router", upstream, Path(directory)) as proxy:
            assert proxy is not None, "the router did not start; set LOGPROB_ROUTER to its command"
            quiet = sockets(proxy.process.pid)
            memory: list[tuple[int, float]] = []
            began = time.monotonic()
            outcomes = uvloop.run(drive(proxy.port, arguments.requests, arguments.clients, proxy, memory))
            seconds = time.monotonic() - began
            time.sleep(5)
            stats = json.loads(urlopen(f"http://127.0.0.1:{upstream}/stats").read())
            last, left = gauges(proxy.admin_port), sockets(proxy.process.pid)
    finally:
        child.terminate()
        child.wait()
    half, end = (max(mb for n, mb in memory if n <= arguments.requests * part) for part in (0.5, 1.0))
    answered = sum(count for name, count in outcomes.items() if name != "left")
    ok = sum(count for name, count in outcomes.items() if name.endswith(" 200"))
    left_early = outcomes["left"]
    print(
        f"{arguments.requests} requests in {seconds:.0f} s; {left_early} clients left; {ok} of {answered} answered 200"
    )
    curve = [f"{max(mb for n, mb in memory if n <= arguments.requests * k / 10):.0f}" for k in range(1, 11)]
    print(f"memory by tenths: {' '.join(curve)} MB")
    print(f"sockets before {quiet}, after {left}; gauges {last}; reads that shared the engine: {stats['overlaps']}")
    failures = [
        text
        for bad, text in (
            (end - half > GROWTH_MB, f"memory grew by {end - half:.1f} MB in the second half"),
            (left > quiet + 1, "sockets are left open"),
            (
                any(last[name] for name in ("read_queue_depth", "inflight_requests", "read_slots_busy")),
                "a gauge is not 0",
            ),
            (stats["overlaps"] != 0, "reads overlapped"),
            (ok != answered, f"some were not answered: {outcomes}"),
        )
        if bad
    ]
    print("; ".join(failures) or "all as it should be")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
