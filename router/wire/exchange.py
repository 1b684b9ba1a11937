"""One request and its answer on a client's connection.

The application sees an `Exchange` and nothing else of the server: it reads the request, takes the body whole or as it
comes, and writes an answer. When the client leaves, the task that answers is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from router.wire.headers import status_line
from router.wire.message import NO_BODY_STATUS, Field
from router.wire.refusals import error_body

if TYPE_CHECKING:
    from router.wire.server import RouterProtocol

logger = logging.getLogger("router.wire")

READ_AHEAD = 256 * 1024
"""Body bytes that may wait for the application before the client's socket is no longer read."""

BodySink = Callable[[bytes, bool], None]
"""Called with each piece of a streamed body and whether it is the last."""


class Exchange:
    """One request on a client's connection, and the answer to it.

    Attributes:
        method, target: as on the request line (absolute-form already reduced to path and query).
        fields: the header fields, names in lower case and as received.
        length, chunked: how the request frames its body; neither: it has none.
        gone: the client left.
        began, received_at: `time.perf_counter` when the head, and when the whole request was here.
    """

    __slots__ = (
        "_chunks",
        "_close_delimited",
        "_framed",
        "_head",
        "_sink",
        "_waiter",
        "began",
        "body_complete",
        "chunked",
        "expects_continue",
        "fields",
        "finished",
        "gone",
        "held",
        "http10",
        "keep_alive",
        "length",
        "method",
        "on_writable",
        "protocol",
        "received_at",
        "response_started",
        "target",
        "task",
        "upgrade",
        "want",
    )

    def __init__(
        self,
        protocol: RouterProtocol,
        method: bytes,
        target: bytes,
        fields: list[Field],
        length: int | None,
        chunked: bool,
    ) -> None:
        self.protocol = protocol
        self.method = method
        self.target = target
        self.fields = fields
        self.length = length
        self.chunked = chunked
        self.expects_continue = False
        self.http10 = False
        self.keep_alive = True
        self.upgrade: bytes | None = None
        self.began = self.received_at = perf_counter()
        self.body_complete = False
        self.held = 0
        self.want = READ_AHEAD
        self.gone = False
        self.response_started = False
        self.finished = False
        self.on_writable: Callable[[bool], None] | None = None
        self.task: asyncio.Task[None] | None = None
        self._chunks: list[bytes] = []
        self._sink: BodySink | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._head: bytes = b""
        self._framed = False
        self._close_delimited = False

    def get(self, name: bytes) -> bytes | None:
        """The first value of a request field by its lower-case name."""
        for lower, _, value in self.fields:
            if lower == name:
                return value
        return None

    @property
    def peer(self) -> bytes | None:
        """The client's address."""
        return self.protocol.peer

    # -- the request's body, from the protocol

    def collect(self, data: bytes) -> None:
        self._chunks.append(data)
        self.held += len(data)

    def collect_end(self) -> None:
        self.body_complete = True
        self.received_at = perf_counter()

    def flush(self) -> None:
        """Hand on what one segment brought."""
        if self._sink is not None:
            if self._chunks or self.body_complete:
                self._deliver(self._sink)
        elif self._waiter is not None and (self.body_complete or self.held > self.want) and not self._waiter.done():
            self._waiter.set_result(None)

    def body_received(self, data: bytes, last: bool) -> None:
        """Bytes after an upgrade: they have no framing."""
        self.collect(data)
        if last:
            self.body_complete = True
        self.flush()

    def _deliver(self, sink: BodySink) -> None:
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        self.held = 0
        if self.body_complete:
            self._sink = None
        sink(data, self.body_complete)

    # -- the request's body, for the application

    def proceed(self) -> None:
        """Send `100 Continue` if the client waits for it."""
        if self.expects_continue:
            self.expects_continue = False
            if not self.response_started and not self.gone:
                self.protocol.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def read_body(self, limit: int) -> bytes | None:
        """The whole body, or None if it is over `limit` bytes; then it can still be streamed, from its first byte."""
        if self.length is not None and self.length > limit:
            return None
        if not self.body_complete:
            self.proceed()
            self.want = limit
            self.protocol.resume_reading()
            self._waiter = self.protocol.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
                self.want = READ_AHEAD
        if self.held > limit:
            return None
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        self.held = 0
        return body

    def stream_body(self, sink: BodySink) -> None:
        """Give the body to `sink` as it comes, beginning with what is here. `body_readable` throttles it."""
        self._sink = sink
        if self._chunks or self.body_complete:
            self._deliver(sink)
        self.protocol.resume_reading()

    def body_readable(self, yes: bool) -> None:
        """Go on or stop reading the client's socket."""
        if self.body_complete:
            return
        if yes:
            self.protocol.resume_reading()
        else:
            self.protocol.pause_reading()

    # -- the answer

    def start(
        self,
        status: int,
        fields: Iterable[tuple[bytes, bytes]],
        *,
        reason: bytes | None = None,
        length: int | None = None,
    ) -> None:
        """Prepare the head; it leaves with the next `send`.

        Args:
            fields: Content-Length included where `length` is known; Transfer-Encoding and Connection are ours.
            length: the body's size in bytes. Without it the body goes chunked, or to the close for HTTP/1.0.
        """
        self.response_started = True
        self.expects_continue = False
        out = [status_line(status, reason)]
        for name, value in fields:
            out += (name, b": ", value, b"\r\n")
        if status == 101:
            self._close_delimited = True
        elif self.method == b"HEAD" or status in NO_BODY_STATUS or length is not None:
            pass
        elif self.http10:
            self._close_delimited = True
            self.keep_alive = False
        else:
            self._framed = True
            out.append(b"Transfer-Encoding: chunked\r\n")
        if not self.body_complete and status != 101:
            self.keep_alive = False
        if not self.keep_alive and status != 101:
            out.append(b"Connection: close\r\n")
        out.append(b"\r\n")
        self._head = b"".join(out)

    def send(self, data: bytes, last: bool) -> None:
        """Write a piece of the answer, and the head if it has not gone yet, as one segment unless that copies much."""
        if self.gone or self.finished:
            return
        head = self._head
        if self._framed and (data or last):
            if data:
                head = b"%b%x\r\n" % (head, len(data))
                tail = b"\r\n0\r\n\r\n" if last else b"\r\n"
            else:
                tail = b"0\r\n\r\n"
        else:
            tail = b""
        self._head = b""
        write = self.protocol.transport.write
        if len(data) <= 65536:
            if head or tail:
                data = b"".join((head, data, tail))
            if data:
                write(data)
        else:
            self.protocol.transport.writelines([head, data, tail] if tail else [head, data])
        if last:
            self.finished = True
            self.protocol.response_complete(self)

    def respond(self, status: int, fields: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Write a whole answer with its Content-Length."""
        self.start(status, [*fields, (b"content-length", b"%d" % len(body))], length=len(body))
        self.send(b"" if self.method == b"HEAD" else body, True)

    def respond_error(self, status: int, code: str, message: str, fields: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Answer with an error of the router's own."""
        self.respond(status, [(b"content-type", b"application/json"), *fields], error_body(code, message))

    def abort(self) -> None:
        """End an answer abnormally: the client sees that it is not whole."""
        if self.gone or self.finished:
            return
        self.finished = True
        if self._close_delimited:
            self.protocol.reset()  # a plain close would be this body's clean end
        else:
            self.protocol.transport.close()

    # -- from the protocol

    def writable(self, yes: bool) -> None:
        if self.on_writable is not None:
            self.on_writable(yes)

    def client_lost(self) -> None:
        """The client left, or its request broke: cancel the task that answers."""
        self.gone = True
        if self.task is not None:
            self.task.cancel()

    async def run(self, handler: Callable[[Exchange], Awaitable[None]]) -> None:
        """Answer the request with `handler`; whatever it leaves undone becomes an error or an abnormal end."""
        try:
            await handler(self)
        except asyncio.CancelledError:
            if not self.gone:
                self.abort()
                raise
        except Exception:
            logger.exception("the request failed inside the router")
            self._fail()
        else:
            if not self.finished and not self.gone:
                logger.error("the request was left without an answer")
                self._fail()
        finally:
            # These close a circle, and a circle is freed only when the garbage collector comes round.
            self.task = self.on_writable = None

    def _fail(self) -> None:
        if self.response_started:
            self.abort()
        else:
            self.respond_error(500, "internal_error", "The router failed; its log says why.")
