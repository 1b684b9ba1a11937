"""One connection to the scripted engine, and the requests that came on it, to the byte."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from tests.support.http import BodyReader, Violation, framing, parse_fields, request_line, values

if TYPE_CHECKING:
    from tests.support.upstream import Upstream

Handler = Callable[["Connection", "Request"], Awaitable[None]]

RECORD_LIMIT = 64 * 1024 * 1024
"""Bytes of one body that are kept; of larger ones only size and digest."""

BYPASS = "x-cache-bypass"


class Gone(ConnectionError):
    """The router closed the connection."""


class Request:
    """One request as it arrived.

    Attributes:
        head, body, raw: exact bytes; `body` without its chunk framing, `raw` with everything.
        head_at, whole_at, answered_at: `perf_counter` times; None as long as it has not happened.
    """

    def __init__(self, connection: Connection, head: bytes) -> None:
        self.connection = connection
        self.head = head
        self.raw = bytearray(head)
        line, self.fields = parse_fields(head)
        self.method, self.target, self.version = request_line(line)
        self.length, self.chunked = framing(self.fields)
        if self.version == b"1" and len(values(self.fields, "host")) != 1:
            raise Violation("not exactly one Host")
        self.reader = BodyReader(0 if self.length is None and not self.chunked else self.length, self.chunked)
        self.size = 0
        self._pieces: list[bytes] = []
        self._digest = hashlib.sha256()
        self.head_at = perf_counter()
        self.whole_at: float | None = None
        self.answered_at: float | None = None
        self.whole = asyncio.Event()
        self.piece_times: list[float] = []

    def take(self, data: bytes) -> bytes:
        """Feed bytes of the body; returns those behind its end."""
        body, rest = self.reader.feed(data)
        if self.size <= RECORD_LIMIT:
            self.raw += data[: len(data) - len(rest)]
            self._pieces.append(body)
        self.size += len(body)
        self._digest.update(body)
        if body:
            self.piece_times.append(perf_counter())
        if self.reader.done:
            self.whole_at = perf_counter()
            self.whole.set()
        return rest

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    @property
    def path(self) -> str:
        return self.target.partition(b"?")[0].decode("latin-1")

    @property
    def is_read(self) -> bool:
        """Whether it asks to be isolated."""
        return bool(values(self.fields, BYPASS))

    def get(self, name: str) -> bytes | None:
        """A field's value; None if it is absent, and an error if it stands there twice."""
        found = values(self.fields, name)
        assert len(found) < 2, f"{name} stands there {len(found)} times"
        return found[0] if found else None

    def all(self, name: str) -> list[bytes]:
        return values(self.fields, name)

    def names(self) -> list[str]:
        return [name.lower().decode() for name, _ in self.fields]

    def json(self) -> Any:
        return json.loads(self.body)


class Connection(asyncio.Protocol):
    """One connection from the router. Handlers talk through it."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.requests: list[Request] = []
        self.transport: asyncio.Transport
        self.closed = asyncio.Event()
        self.closed_at: float | None = None
        self.sent = 0
        self.tunnel: asyncio.Queue[bytes] | None = None
        self._buffer = b""
        self._request: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    # -- for handlers

    async def send(self, data: bytes) -> None:
        """Write, and wait while the router takes no more.

        Raises:
            Gone: the router closed the connection.
        """
        if self.closed.is_set() or self.transport.is_closing():
            raise Gone
        self.transport.write(data)
        self.sent += len(data)
        if not self._writable.is_set():
            await self._writable.wait()
            if self.closed.is_set():
                raise Gone

    def reset(self) -> None:
        """End with RST."""
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def close(self) -> None:
        """End with FIN, after what was written."""
        self.transport.close()

    def pause(self) -> None:
        """Read no more: the router's writes back up."""
        self.transport.pause_reading()

    def resume(self) -> None:
        self.transport.resume_reading()

    async def forever(self) -> None:
        """Wait until the router closes the connection."""
        await self.closed.wait()
        raise Gone

    @property
    def is_gone(self) -> bool:
        """The router has closed it, whether or not the event loop has noticed."""
        if self.closed.is_set() or self.transport.is_closing():
            return True
        sock: socket.socket = self.transport.get_extra_info("socket")
        try:
            peek = socket.socket(fileno=os.dup(sock.fileno()))
        except OSError:
            return True
        with peek:
            peek.setblocking(False)
            try:
                return peek.recv(1, socket.MSG_PEEK) == b""
            except BlockingIOError:
                return False
            except OSError:
                return True

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods only
        self.upstream.all_connections.append(self)

    def data_received(self, data: bytes) -> None:
        if self.tunnel is not None:
            self.tunnel.put_nowait(data)
            return
        try:
            self._take(data)
        except Violation as violation:
            self.upstream.violations.append(str(violation))
            self.reset()

    def _take(self, data: bytes) -> None:
        while data:
            if self._request is not None and not self._request.reader.done:
                data = self._request.take(data)
                continue
            self._buffer += data
            head, end, data = self._buffer.partition(b"\r\n\r\n")
            if not end:
                if b"\n" in head.replace(b"\r\n", b""):
                    raise Violation("a bare line feed")
                return
            self._buffer = b""
            if self._request is not None and self._request.answered_at is None:
                raise Violation(f"a second request before the first was answered: {head[:80]!r}")
            self._begin(Request(self, head + end))

    def _begin(self, request: Request) -> None:
        self._request = request
        if request.reader.done:
            request.whole_at = request.head_at
            request.whole.set()
        self.requests.append(request)
        self.upstream.arrived(request)
        self._task = asyncio.get_running_loop().create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        handler, early = self.upstream.handler_of(request)
        try:
            if not early:
                await request.whole.wait()
            await handler(self, request)
        except ConnectionError:
            pass
        finally:
            request.answered_at = perf_counter()
            self.upstream.reads_active.discard(request)

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        if self._task is not None:
            self._task.cancel()

    def _end(self) -> None:
        if self.closed_at is None:
            self.closed_at = perf_counter()
            if self._buffer:
                self.upstream.violations.append(f"bytes that are no request: {self._buffer[:80]!r}")
        self.closed.set()
        self._writable.set()
        if self.tunnel is not None:
            self.tunnel.put_nowait(b"")
        if self._request is not None:
            self.upstream.reads_active.discard(self._request)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
