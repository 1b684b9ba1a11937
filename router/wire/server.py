"""The data port's protocol: uvicorn's httptools protocol, strict where that one is lenient.

Each complete head becomes an `Exchange`, which one task answers. Bytes move in callbacks, not in messages: what an
endpoint sends is written to the client in the same turn of the loop. What this class adds to its base:

- malformed framing is 400 and close, oversize heads 431, and nothing of them reaches the application;
- trailers are never headers, and an `Upgrade` that we do not take cannot swallow a body;
- HTTP/1.0 clients get no chunk framing, HEAD, 204 and 304 get no body;
- heads, bodies and idle connections have deadlines.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router.wire.exchange import Exchange
from router.wire.headers import END_TO_END, connection_options
from router.wire.message import Field, Limits
from router.wire.peer import has_left
from router.wire.refusals import refusal

App = Callable[[Exchange], Awaitable[None]]

LOOK = 0.5
"""Seconds between two looks at whether a client has left whose socket is not being read."""

LINGER = 2.0
"""Seconds for which a client that still uploads may go on, unread, so that it sees our answer before the close."""


class OpenConnections(set[Any]):
    """The open client connections; one can wait until there are none."""

    def __init__(self) -> None:
        super().__init__()
        self._emptied: list[asyncio.Future[None]] = []

    def discard(self, connection: object) -> None:
        super().discard(connection)
        if not self:
            waiters, self._emptied = self._emptied, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def emptied(self) -> None:
        """Wait until no connection is open."""
        while self:
            waiter = asyncio.get_running_loop().create_future()
            self._emptied.append(waiter)
            await waiter


class RouterProtocol(HttpToolsProtocol):
    """One client connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app: App,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(config, server_state, {}, loop)
        # The base parser lets data follow a request that closes the connection; we never read that far.
        self.parser = httptools.HttpRequestParser(self)
        self.handler = app
        self.limits = limits
        self.exchange: Exchange | None = None  # being answered
        self.waiting: deque[Exchange] = deque()  # pipelined behind it
        self.incoming: Exchange | None = None  # whose body is still arriving
        self.raw: Exchange | None = None  # owns the connection after an upgrade
        self.peer: bytes | None = None
        self._in_head = False
        self._head_size = 0
        self._target: list[bytes] = []
        self._fields: list[Field] = []
        self._refused: bytes | None = None
        self._shut = False  # takes no further request
        self._resuming = False
        self._lost = False
        self._reading = True
        self._deadline: float | None = None
        self._on_deadline: Callable[[], None] = self._idle_expired
        self._timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=128 * 1024, low=32 * 1024)
        if self.client:
            self.peer = self.client[0].encode("ascii")
        self._arm(self.limits.keepalive, self._idle_expired)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self.connections.discard(self)
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._look_timer is not None:
            self._look_timer.cancel()
        self.waiting.clear()
        self.incoming = self.raw = None
        exchange, self.exchange = self.exchange, None
        if exchange is not None and not exchange.finished:  # finished: we ended it, and its task is about to
            exchange.client_lost()
        self.parser = None  # type: ignore[assignment]

    def pause_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.writable(False)

    def resume_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.writable(True)

    def shutdown(self) -> None:
        """Take no further request; close now if none is running."""
        self._shut = True
        self.waiting.clear()
        if self.exchange is None:
            self.transport.close()
        else:
            self.exchange.keep_alive = False

    def cut(self) -> None:
        """End at once, without a clean end of whatever answer is under way."""
        self.transport.abort()

    def reset(self) -> None:
        """End with RST: where the close is a body's end, nothing less shows that it is not whole."""
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    # -- reading

    def data_received(self, data: bytes) -> None:
        if self.raw is not None:
            self.raw.body_received(data, False)
            return
        if self._shut or self._refused is not None:
            return
        if self._in_head:
            self._head_size += len(data)
        self._feed(data)
        if self._in_head and self._head_size > self.limits.header_bytes and self._refused is None:
            self._refuse(431, "header_too_large", f"The request's head is over {self.limits.header_bytes} bytes.")
        if self._refused is not None:
            self._answer_refusal()
            return
        incoming = self.incoming
        if incoming is not None:
            incoming.flush()
            if self.incoming is not None:
                self._arm(self.limits.body_timeout, self._body_expired)
                if incoming.held > incoming.want or incoming is not self.exchange:
                    self.pause_reading()

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                rest = data[upgrade.args[0] :]
                if self._refused is not None:
                    return
                if self.incoming is not None and self.incoming.upgrade is not None:
                    self.raw, self.incoming = self.incoming, None
                    if rest:
                        self.raw.body_received(rest, False)
                    self.raw.flush()
                    return
                # The parser stops behind a head that offers an upgrade, as if the body were of another protocol.
                # We decline the offer, so the body follows: a new parser reads it under the same framing.
                data = self._framing_again() + rest
                continue
            except httptools.HttpParserError as error:
                if self._refused is None:
                    self._refuse(400, "bad_request", f"The request is not well-formed HTTP/1.1: {error}.")
            return

    def _framing_again(self) -> bytes:
        self.parser = httptools.HttpRequestParser(self)
        self._resuming = True
        lines = [name + b": " + value + b"\r\n" for lower, name, value in self._fields if lower in _FRAMING]
        return b"POST / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n"

    def pause_reading(self) -> None:
        if self._reading and not self._lost:
            self._reading = False
            self.transport.pause_reading()
            if self._look_timer is None:
                self._look_timer = self.loop.call_later(LOOK, self._look)

    def _look(self) -> None:
        self._look_timer = None
        if self._reading or self._lost:
            return
        if has_left(self.transport.get_extra_info("socket")):
            self.transport.abort()
        else:
            self._look_timer = self.loop.call_later(LOOK, self._look)

    def resume_reading(self) -> None:
        if not self._reading and not self._lost:
            self._reading = True
            self.transport.resume_reading()
            if self.incoming is not None:
                self._arm(self.limits.body_timeout, self._body_expired)

    # -- the parser's callbacks

    def on_message_begin(self) -> None:
        if self._resuming:
            return
        self._in_head = True
        self._head_size = 0
        self._target = []
        self._fields = []
        if self.exchange is None:
            self._arm(self.limits.header_timeout, self._head_expired)

    def on_url(self, url: bytes) -> None:
        if self._in_head:
            self._target.append(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer, or framing that was read before
        fields = self._fields
        fields.append((name.lower(), name, value))
        self._head_size += len(name) + len(value)
        if len(fields) > self.limits.header_count or self._head_size > 2 * self.limits.header_bytes:
            self._refuse(431, "header_too_large", "The request has too many or too large header fields.")

    def on_headers_complete(self) -> None:
        if self._resuming or self._refused is not None:
            self._resuming = False
            return None
        self._in_head = False
        method = self.parser.get_method()
        version = self.parser.get_http_version()
        target = b"".join(self._target)
        fields = self._fields
        length: int | None = None
        chunked = expect = False
        hosts = 0
        upgrade: bytes | None = None
        size = len(target)
        for lower, name, value in fields:
            size += len(name) + len(value) + 4
            if lower == b"content-length":
                if length is not None or not value.isdigit():
                    return self._refuse(400, "bad_request", "Content-Length is doubled or not a number.")
                length = int(value)
            elif lower == b"transfer-encoding":
                if chunked or value.strip().lower() != b"chunked":
                    return self._refuse(
                        400, "bad_request", "The only transfer coding that is taken is 'chunked', once."
                    )
                chunked = True
            elif lower == b"host":
                hosts += 1
            elif lower == b"expect":
                expect = value.lower() == b"100-continue"
            elif lower == b"upgrade":
                upgrade = value
            elif lower == b"connection" and not END_TO_END.isdisjoint(connection_options([(lower, name, value)])):
                return self._refuse(400, "bad_request", "Connection names a field that must reach the engine.")
        if size > self.limits.header_bytes:
            return self._refuse(431, "header_too_large", f"The head is over {self.limits.header_bytes} bytes.")
        if chunked and (length is not None or version == "1.0"):
            return self._refuse(400, "bad_request", "Transfer-Encoding with Content-Length or HTTP/1.0.")
        if hosts > 1 or (not hosts and version == "1.1"):
            return self._refuse(400, "bad_request", "A request needs exactly one Host field.")
        if version not in ("1.0", "1.1"):
            return self._refuse(505, "version", "Only HTTP/1.0 and HTTP/1.1 are spoken here.")
        if method in (b"CONNECT", b"TRACE"):
            return self._refuse(405, "method_not_allowed", f"{method.decode()} is not served.")
        if not target.startswith(b"/"):
            target = _origin_form(method, target)
            if not target:
                return self._refuse(400, "bad_request", "The request target must be a path.")
        websocket = (
            upgrade is not None
            and upgrade.strip().lower() == b"websocket"
            and method == b"GET"
            and length in (None, 0)
            and not chunked
            and b"upgrade" in connection_options(fields)
        )
        exchange = Exchange(self, method, target, fields, length, chunked)
        exchange.expects_continue = expect and version == "1.1"
        exchange.http10 = version == "1.0"
        exchange.keep_alive = not websocket and version == "1.1" and self._keeps_alive(fields)
        exchange.upgrade = upgrade if websocket else None
        self.incoming = exchange
        if self.exchange is None:
            self._start(exchange)
        else:
            self.waiting.append(exchange)
            self.pause_reading()
        return None

    @staticmethod
    def _keeps_alive(fields: list[Field]) -> bool:
        return b"close" not in connection_options(fields)

    def on_body(self, body: bytes) -> None:
        if self.incoming is not None:
            self.incoming.collect(body)

    def on_message_complete(self) -> None:
        incoming = self.incoming
        if incoming is None or self.parser.should_upgrade():
            return  # behind an offered upgrade the body is still to come, whatever the parser thinks
        incoming.collect_end()
        incoming.flush()
        self.incoming = None
        if self.exchange is incoming:
            self._deadline = None
        if not incoming.keep_alive:
            self._shut = True

    # -- exchanges

    def _start(self, exchange: Exchange) -> None:
        self.exchange = exchange
        if self.incoming is None:
            self._deadline = None
        else:
            self._arm(self.limits.body_timeout, self._body_expired)
        task = exchange.task = self.loop.create_task(exchange.run(self.handler))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def response_complete(self, exchange: Exchange) -> None:
        """The exchange's answer is wholly written: close, or go on with the next request."""
        if self._lost or self.exchange is not exchange:
            return
        self.exchange = None
        if not exchange.keep_alive or not exchange.body_complete:
            self._close_gently(exchange.body_complete)
            return
        if self._refused is not None and self.waiting and not self.waiting[-1].body_complete:
            self.waiting.pop()  # its body broke while it waited
        if self.waiting:
            self._start(self.waiting.popleft())
            if self.exchange is not self.incoming and self._refused is None:
                self.resume_reading()
            return
        if self._refused is not None:
            self._answer_refusal()
            return
        if self._shut:
            self.transport.close()
            return
        self.resume_reading()
        if self._in_head:
            self._arm(self.limits.header_timeout, self._head_expired)
        else:
            self._arm(self.limits.keepalive, self._idle_expired)

    # -- refusals

    def _refuse(self, status: int, code: str, message: str) -> None:
        if self._refused is None:
            self._refused = refusal(status, code, message)
            self._in_head = False

    def _answer_refusal(self) -> None:
        if self._lost or self._refused is None:
            return
        exchange = self.exchange
        if exchange is not None:
            if exchange.body_complete:
                self.pause_reading()
                return  # its own answer goes first
            # The body of the running request broke: it can never reach the endpoint as a complete request.
            self.exchange = self.incoming = None
            started = exchange.response_started
            exchange.client_lost()
            if started:
                self.transport.abort()
                return
        self.transport.write(self._refused)
        self._close_gently(False)

    def _close_gently(self, all_read: bool) -> None:
        """Close; but closing on unread bytes resets the connection, and a reset may destroy the answer on its way."""
        self._shut = True
        self.incoming = self.raw = None
        if all_read:
            self.transport.close()
            return
        self.transport.write_eof()
        self.resume_reading()
        self._arm(LINGER, self._idle_expired)

    # -- deadlines: one timer a connection, moved lazily

    def _arm(self, seconds: float, then: Callable[[], None]) -> None:
        self._on_deadline = then
        deadline = self._deadline = self.loop.time() + seconds
        if self._timer is None:
            self._timer = self.loop.call_at(deadline, self._tick)
        elif self._timer.when() > deadline:
            self._timer.cancel()
            self._timer = self.loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        deadline = self._deadline
        if deadline is None or self._lost:
            return
        if self.loop.time() < deadline:
            self._timer = self.loop.call_at(deadline, self._tick)
        else:
            self._deadline = None
            self._on_deadline()

    def _idle_expired(self) -> None:
        self.transport.close()

    def _head_expired(self) -> None:
        self._refuse(408, "request_timeout", f"The head took longer than {self.limits.header_timeout:g} s.")
        self._answer_refusal()

    def _body_expired(self) -> None:
        incoming = self.incoming
        if incoming is None or not self._reading:
            return  # the pause is ours: the endpoint or the application is slow, not the client
        self._refuse(408, "request_timeout", f"The body stood still for {self.limits.body_timeout:g} s.")
        self._answer_refusal()


_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


def _origin_form(method: bytes, target: bytes) -> bytes:
    """An absolute-form target's path and query; `*` for OPTIONS; b"" for what is neither."""
    if target == b"*" and method == b"OPTIONS":
        return target
    scheme, colon, rest = target.partition(b"://")
    if not colon or scheme.lower() not in (b"http", b"https"):
        return b""
    ends = [at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0]
    if not ends:
        return b"/"
    tail = rest[min(ends) :]
    return tail if tail.startswith(b"/") else b"/" + tail
