"""What the scripted engine can answer, as handlers."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from tests.support.upstream import Connection, Handler, Request

Step = bytes | float | Literal["reset", "close", "forever"]

Pairs = Iterable[tuple[str, str]]


def message(status: int, body: bytes, fields: Pairs = (), *, reason: str = "OK") -> bytes:
    """A whole answer with its Content-Length."""
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode("latin-1") + body


def json_message(content: Any, status: int = 200, fields: Pairs = ()) -> bytes:
    """A whole JSON answer."""
    return message(status, json.dumps(content).encode(), [("Content-Type", "application/json"), *fields])


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def play(*steps: Step) -> Handler:
    """Send bytes, pause for seconds, and end as told."""

    async def handler(connection: Connection, request: Request) -> None:
        for step in steps:
            if isinstance(step, bytes):
                await connection.send(step)
            elif step == "reset":
                connection.reset()
            elif step == "close":
                connection.close()
            elif step == "forever":
                await connection.forever()
            else:
                await asyncio.sleep(float(step))

    return handler


def stream(*events: bytes | float) -> Handler:
    """An event stream: each piece in a chunk of its own, numbers are pauses in seconds."""
    body: list[Step] = [chunk(event) if isinstance(event, bytes) else event for event in events]
    return play(STREAM_HEAD, *body, LAST_CHUNK)


silent = play("forever")
"""Reads the request and never answers."""


def held(seconds: float, then: Handler | None = None) -> Handler:
    """Answer after a while."""

    async def handler(connection: Connection, request: Request) -> None:
        await asyncio.sleep(seconds)
        await (then or engine)(connection, request)

    return handler


def gated(gate: asyncio.Event, then: Handler | None = None) -> Handler:
    """Answer when the test opens the gate."""

    async def handler(connection: Connection, request: Request) -> None:
        await gate.wait()
        await (then or engine)(connection, request)

    return handler


def in_turn(*handlers: Handler) -> Handler:
    """The first request gets the first handler, and so on; the last one serves all that follow."""
    calls = iter(range(1 << 62))

    async def handler(connection: Connection, request: Request) -> None:
        await handlers[min(next(calls), len(handlers) - 1)](connection, request)

    return handler


def completion(body: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """What a completions engine answers: the text of each choice is its prompt, so that order shows."""
    prompt = body.get("prompt")
    n = int(body.get("n", 1))
    flat = not isinstance(prompt, list) or all(isinstance(p, int) for p in prompt)
    prompts: Sequence[Any] = [prompt] if flat else prompt  # type: ignore[assignment]
    choices = [
        {
            "index": i * n + j,
            "text": p if isinstance(p, str) else json.dumps(p),
            "logprobs": {
                "token_logprobs": [None, *[-0.5] * (len(p) if isinstance(p, list) else 1)],
                "text_offset": [0, 1],
            },
            "finish_reason": "length",
        }
        for i, p in enumerate(prompts)
        for j in range(n)
    ]
    return {
        "id": f"cmpl-{number}",
        "object": "text_completion",
        "created": 1700000000 + number,
        "model": body.get("model"),
        "choices": choices,
        "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
    }


async def engine(connection: Connection, request: Request) -> None:
    """The default: completions to whatever is asked, X-Request-Id echoed, an acknowledgement to no one."""
    body: Any = None
    if request.method == b"POST":
        try:
            body = json.loads(request.body)
        except (ValueError, RecursionError):
            body = None
    content = completion(body, len(connection.upstream.requests)) if isinstance(body, dict) else {"ok": True}
    echo = [("X-Request-Id", v.decode("latin-1")) for v in request.all("x-request-id")]
    await connection.send(json_message(content, fields=echo) if request.method != b"HEAD" else message(200, b""))


async def patched(connection: Connection, request: Request) -> None:
    """An engine with our patch: it acknowledges the bypass header."""
    acknowledged = [("X-Cache-Bypass", "applied")] if request.is_read else []
    await connection.send(
        json_message(completion(request.json(), len(connection.upstream.requests)), fields=acknowledged)
    )


async def gzipping(connection: Connection, request: Request) -> None:
    """An engine that compresses whether asked or not."""
    body = gzip.compress(json.dumps(completion(request.json(), len(connection.upstream.requests))).encode())
    await connection.send(message(200, body, [("Content-Type", "application/json"), ("Content-Encoding", "gzip")]))
