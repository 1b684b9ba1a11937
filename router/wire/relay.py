"""One call at an endpoint, and where its answer goes.

`Call` writes a request and hands what comes back to a `Sink` in the same turn of the loop; it is awaited once, for the
end. `ToClient` is the sink that relays to the client's connection; `Collected` keeps the answer.
Cancelling a call closes the endpoint's connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol

from router.wire.exchange import Exchange
from router.wire.headers import response_fields
from router.wire.message import ResponseHead, WireError
from router.wire.upstream import Connection, Pool

CONTINUE_PATIENCE = 1.0
"""Seconds to wait for an endpoint's `100 Continue` before the body is sent anyway (RFC 9110, 10.1.1)."""

BIG_BODY = 64 * 1024
"""Bytes above which a body is not copied behind its head."""


class Sink(Protocol):
    """Takes an endpoint's answer as it comes. What it raises ends the call."""

    def head(self, head: ResponseHead) -> None: ...

    def data(self, data: bytes, last: bool) -> None: ...

    def broken(self, error: WireError) -> None:
        """The answer ended before its end, after its head."""


class Call:
    """One request to an endpoint and its answer.

    Attributes, all from `time.perf_counter` in seconds: `sent_at` (first byte written), `first_byte_at` (first byte
    of the final head), `ended_at`; `forwarding` is the time spent handing on the first segment.
    """

    __slots__ = (
        "_chunked_upload",
        "_connection",
        "_done",
        "_exchange",
        "_patience",
        "ended_at",
        "first_byte_at",
        "forwarding",
        "pool",
        "sent_at",
        "sink",
        "status",
        "truncated",
    )

    def __init__(self, pool: Pool, sink: Sink) -> None:
        self.pool = pool
        self.sink = sink
        self.status = 0
        self.truncated = False
        self.sent_at = self.first_byte_at = self.ended_at = self.forwarding = 0.0
        self._connection: Connection | None = None
        self._done: asyncio.Future[None] = pool.loop.create_future()
        self._exchange: Exchange | None = None
        self._chunked_upload = False
        self._patience: asyncio.TimerHandle | None = None

    async def send(self, head: bytes, body: bytes, *, head_only: bool = False, fresh: bool = False) -> None:
        """Send a whole request and wait for the end of its answer.

        Args:
            fresh: use a new connection.

        Raises:
            ConnectFailed: nothing was sent.
            UpstreamClosed, UpstreamGarbled: before the head of an answer came. Afterwards the sink is told, and
                `truncated` is set.
        """
        connection = await self._open(fresh)
        connection.begin(self, head_only=head_only)
        connection.request_sent = True
        if len(body) <= BIG_BODY:
            connection.write(head + body)
        else:
            connection.writelines([head, body])
        await self._finish(connection)

    async def stream(self, head: bytes, exchange: Exchange) -> None:
        """Send a request whose body is relayed from the client as it comes. Raises as `send` does."""
        connection = await self._open(False)
        connection.begin(self, head_only=exchange.method == b"HEAD", upgrading=exchange.upgrade is not None)
        self._exchange = exchange
        connection.write(head)
        if exchange.upgrade is not None:
            connection.request_sent = True
        elif exchange.expects_continue:
            self._patience = self.pool.loop.call_later(CONTINUE_PATIENCE, self._upload)
        else:
            self._upload()
        await self._finish(connection)

    async def _open(self, fresh: bool) -> Connection:
        connection = None if fresh else self.pool.take_idle()
        if connection is None:
            connection = await self.pool.connect()
        self._connection = connection
        self.sent_at = perf_counter()
        return connection

    async def _finish(self, connection: Connection) -> None:
        try:
            await self._done
        finally:
            if self._patience is not None:
                self._patience.cancel()
            if self._connection is not None:  # cancelled, or the sink failed: the endpoint must see us leave
                self._connection = None
                connection.abort()

    # -- the request's body

    def _upload(self) -> None:
        self._patience = None
        exchange = self._exchange
        if exchange is None or self._connection is None:
            return
        self._chunked_upload = exchange.chunked
        exchange.proceed()
        exchange.stream_body(self._piece)

    def _piece(self, data: bytes, last: bool) -> None:
        connection = self._connection
        if connection is None:
            return  # the endpoint answered early; nobody wants the rest
        if last:
            connection.request_sent = True
        if self._chunked_upload:
            if data:
                connection.write(b"%x\r\n%b\r\n%b" % (len(data), data, b"0\r\n\r\n" if last else b""))
            elif last:
                connection.write(b"0\r\n\r\n")
        elif data:
            connection.write(data)

    # -- the receiver's side

    def received(self, head: ResponseHead | None, data: bytes, last: bool) -> None:
        if head is None and not last:  # most calls are events of a stream
            try:
                self.sink.data(data, False)
            except Exception as error:
                self._break(error)
            return
        if head is not None:
            began = self.first_byte_at = perf_counter()
            self.status = head.status
        if last:
            self._connection = None
            self.ended_at = perf_counter()
        try:
            if head is not None:
                self.sink.head(head)
                if head.status == 101 and self._exchange is not None:
                    self._exchange.stream_body(self._piece)
            self.sink.data(data, last)
        except Exception as error:
            self._break(error)
            return
        if head is not None:
            self.forwarding = perf_counter() - began
        if last and not self._done.done():
            self._done.set_result(None)

    def _break(self, error: Exception) -> None:
        """The sink failed: whoever waits for the call gets its error, and closes the connection."""
        if not self._done.done():
            self._done.set_exception(error)

    def continued(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._upload()

    def failed(self, error: WireError) -> None:
        self._connection = None
        self.ended_at = perf_counter()
        if self._done.done():
            return
        if self.status:
            self.truncated = True
            self.sink.broken(error)
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    def writable(self, yes: bool) -> None:
        if self._exchange is not None:
            self._exchange.body_readable(yes)

    def readable(self, yes: bool) -> None:
        """Whether the sink takes more: back-pressure on the endpoint."""
        if self._connection is not None:
            self._connection.readable(yes)


NO_FIELDS: Sequence[tuple[bytes, bytes]] = ()


class ToClient:
    """Relays an answer to the client, with back-pressure.

    Args:
        on_head: sees the head before it is relayed and returns fields to add; it may raise to refuse the answer.
        taps: see each piece of the body once it has passed.
    """

    __slots__ = ("exchange", "on_head", "taps")

    def __init__(
        self,
        exchange: Exchange,
        on_head: Callable[[ResponseHead], Sequence[tuple[bytes, bytes]]] | None = None,
        taps: Sequence[Callable[[bytes], None]] = (),
    ) -> None:
        self.exchange = exchange
        self.on_head = on_head
        self.taps = taps

    def head(self, head: ResponseHead) -> None:
        extra = self.on_head(head) if self.on_head is not None else NO_FIELDS
        fields = response_fields(head, drop=_NO_LENGTH if head.status == 204 else _NOTHING)
        fields += extra
        if head.status == 101:
            fields += ((b"Connection", b"Upgrade"), (b"Upgrade", head.get(b"upgrade") or b"websocket"))
        self.exchange.start(head.status, fields, reason=head.reason, length=head.length)

    def data(self, data: bytes, last: bool) -> None:
        self.exchange.send(data, last)
        if data:
            for tap in self.taps:
                tap(data)

    def broken(self, error: WireError) -> None:
        self.exchange.abort()


_NOTHING: frozenset[bytes] = frozenset()
_NO_LENGTH = frozenset({b"content-length"})


class Collected:
    """Keeps an answer whole.

    Args:
        limit: bytes of body above which the answer is refused with `TooLarge`.
    """

    __slots__ = ("_pieces", "_size", "answer", "error", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.answer: ResponseHead | None = None
        self.error: WireError | None = None
        self._pieces: list[bytes] = []
        self._size = 0

    def head(self, head: ResponseHead) -> None:
        self.answer = head

    def data(self, data: bytes, last: bool) -> None:
        self._size += len(data)
        if self._size > self.limit:
            raise TooLarge(f"the endpoint's answer is over {self.limit} bytes")
        self._pieces.append(data)

    def broken(self, error: WireError) -> None:
        self.error = error

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)


class TooLarge(WireError):
    """An answer that was to be kept is over its limit."""
