"""Connections to one endpoint: asyncio.Protocol + httptools, and a pool of the idle ones.

The pool only ever holds idle connections. There is no limit to be exhausted and no waiting list, so no pattern of
cancellation can fill it: a connection in use belongs to its exchange, and goes back only if nothing about it is in
doubt. In doubt means: bytes after the end of an answer, an answer before the end of the request, an unclean end.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from router.wire.message import (
    NO_BODY_STATUS,
    ConnectFailed,
    Field,
    ResponseHead,
    UpstreamClosed,
    UpstreamGarbled,
    WireError,
)

HEAD_LIMIT = 256 * 1024
"""Bytes of an answer's head before it counts as garbled."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an endpoint listens."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Origin:
        """The origin of an http(s) base URL."""
        parts = urlsplit(url)
        return cls(parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))

    @property
    def authority(self) -> bytes:
        """What `Host` says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        return (host if self.port == default else f"{host}:{self.port}").encode("ascii")

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority.decode()}"


class Receiver(Protocol):
    """Who takes an answer as it comes."""

    def received(self, head: ResponseHead | None, data: bytes, last: bool) -> None:
        """What one segment brought: the head with the first call, then pieces of the body."""

    def continued(self) -> None:
        """The endpoint answered `100 Continue`."""

    def failed(self, error: WireError) -> None:
        """The answer will not be completed."""

    def writable(self, yes: bool) -> None:
        """The connection takes more of the request, or is full."""


class Connection(asyncio.Protocol):
    """One connection to an endpoint. Used by one exchange at a time."""

    __slots__ = (
        "_chunks",
        "_dirty",
        "_done",
        "_fields",
        "_head",
        "_head_only",
        "_head_seen",
        "_head_size",
        "_parser",
        "_reading",
        "_reason",
        "_stays",
        "_until_close",
        "_upgrading",
        "bytes_in",
        "idle_since",
        "pool",
        "receiver",
        "request_sent",
        "reused",
        "transport",
        "tunnel",
    )

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.transport: asyncio.Transport
        self.receiver: Receiver | None = None
        self.idle_since = 0.0
        self.reused = False
        self.bytes_in = 0
        self.request_sent = False
        self.tunnel = False
        self._parser: httptools.HttpResponseParser | None = None
        self._reading = True
        self._clear()

    def _clear(self) -> None:
        self._head: ResponseHead | None = None
        self._fields: list[Field] = []
        self._reason = b""
        self._chunks: list[bytes] = []
        self._head_size = 0
        self._head_only = False
        self._head_seen = False
        self._until_close = False
        self._stays = False
        self._upgrading = False
        self._done = False
        self._dirty = False

    # -- for the exchange

    def begin(self, receiver: Receiver, *, head_only: bool = False, upgrading: bool = False) -> None:
        """Take the connection for one exchange. `head_only`: the answer is to a HEAD and has no body."""
        self._clear()
        self.receiver = receiver
        self.bytes_in = 0
        self.request_sent = False
        self._head_only = head_only
        self._upgrading = upgrading
        self._parser = httptools.HttpResponseParser(self)

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self.transport.writelines(pieces)

    def readable(self, yes: bool) -> None:
        """Go on or stop reading the endpoint's socket."""
        if yes is not self._reading and not self.transport.is_closing():
            self._reading = yes
            if yes:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def abort(self) -> None:
        """Give the connection up at once; the endpoint sees it closed."""
        self.receiver = None
        self._parser = None
        self.transport.abort()

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=256 * 1024, low=64 * 1024)
        self.pool.opened(self)

    def pause_writing(self) -> None:
        if self.receiver is not None:
            self.receiver.writable(False)

    def resume_writing(self) -> None:
        if self.receiver is not None:
            self.receiver.writable(True)

    def data_received(self, data: bytes) -> None:
        receiver = self.receiver
        if receiver is None or self._parser is None:
            self.transport.abort()  # an idle endpoint has nothing to say: whatever this is, it answers no request
            return
        self.bytes_in += len(data)
        if self.tunnel:
            receiver.received(None, data, False)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._head is not None and self._head.status == 101 and self._upgrading:
                self.tunnel = True
                head, self._head = self._head, None
                receiver.received(head, data[upgrade.args[0] :], False)
                return
            self._fail(UpstreamGarbled("the endpoint switched protocols unasked"))
            return
        except httptools.HttpParserError as error:
            if not self._done:
                reason = error.__context__ if isinstance(error.__context__, _Doubtful) else error
                self._fail(UpstreamGarbled(f"the endpoint's answer is not well-formed HTTP: {reason}"))
                return
            self._dirty = True
        if self._head_seen:
            if self._head is not None and self._head.status == 101:
                self._fail(UpstreamGarbled("the endpoint switched protocols unasked"))
            else:
                self._deliver(self._done)
            return
        self._head_size += len(data)
        if self._head_size > HEAD_LIMIT:
            self._fail(UpstreamGarbled(f"the head of the endpoint's answer is over {HEAD_LIMIT} bytes"))

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.closed(self)
        receiver = self.receiver
        if receiver is None:
            return
        if self.tunnel or (self._until_close and exc is None):
            self._done = self._dirty = True
            self._deliver(True)
            return
        nothing = self.bytes_in == 0
        self.receiver = self._parser = None
        what = "before it answered" if nothing else "before its answer was whole"
        receiver.failed(
            UpstreamClosed(f"the endpoint closed the connection {what}", clean_slate=nothing and self.reused)
        )

    # -- the parser's callbacks

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_message_begin(self) -> None:
        if self._done:
            self._dirty = True
        self._reason = b""
        self._fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_seen:  # behind it come trailers
            self._fields.append((name.lower(), name, value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if self._done or parser is None:
            self._dirty = True
            return
        status = parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._fields = []
            return
        if status < 100 or parser.get_http_version() not in ("1.0", "1.1") or b"\0" in self._reason:
            raise _Doubtful("the status line is odd")
        length: int | None = None
        chunked = False
        for lower, _, value in self._fields:
            if lower == b"content-length" and value.isdigit():
                length = int(value)
            elif lower == b"transfer-encoding":
                if chunked or value.strip().lower() != b"chunked":
                    raise _Doubtful(f"transfer coding {value.decode('latin-1')!r}")
                chunked = True
        bodyless = self._head_only or status in NO_BODY_STATUS
        self._head = ResponseHead(status, self._reason, self._fields, length, chunked, bodyless)
        self._head_seen = True
        if bodyless:
            # The parser goes on to wait for a body, so it cannot be asked whether the connection stays.
            self._done = True
            closes = b"close" in (self._head.get(b"connection") or b"").lower()
            self._stays = parser.get_http_version() == "1.1" and not closes
            return
        self._stays = parser.should_keep_alive()
        if status != 101 and length is None and not chunked:
            self._until_close = True

    def on_body(self, body: bytes) -> None:
        if self._done:
            self._dirty = True
        else:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        if self._done or self._parser is None:
            return
        if not self._head_seen:
            if self.receiver is not None and self._parser.get_status_code() == 100:
                self.receiver.continued()
            return
        self._done = True

    # -- handing on

    def _deliver(self, last: bool) -> None:
        receiver = self.receiver
        if receiver is None:
            return
        head, self._head = self._head, None
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        if not last:
            if data or head is not None:
                receiver.received(head, data, False)
            return
        self.receiver = self._parser = None
        if self._stays and self.request_sent and not self._dirty:
            self.readable(True)
            self.pool.release(self)
        else:
            self.transport.abort()
        receiver.received(head, data, True)

    def _fail(self, error: WireError) -> None:
        receiver, self.receiver, self._parser = self.receiver, None, None
        self.transport.abort()
        if receiver is not None:
            receiver.failed(error)


class Pool:
    """The connections to one endpoint.

    Args:
        keepalive: seconds for which an idle connection may be used again; keep it clearly under the endpoint's own.
        connect_timeout: seconds.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        keepalive: float = 3.0,
        connect_timeout: float = 5.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.origin = origin
        self.authority = origin.authority
        self.keepalive = keepalive
        self.connect_timeout = connect_timeout
        self.loop = asyncio.get_running_loop()
        self._tls = (tls or ssl.create_default_context()) if origin.scheme == "https" else None
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._shut = False

    @property
    def open_connections(self) -> int:
        return len(self._open)

    @property
    def idle_connections(self) -> int:
        return len(self._idle)

    def take_idle(self) -> Connection | None:
        """An idle connection that is fit for use, or None."""
        fresh = self.loop.time() - self.keepalive
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.idle_since > fresh and not connection.transport.is_closing():
                connection.reused = True
                return connection
            connection.transport.abort()
        return None

    async def connect(self) -> Connection:
        """A new connection.

        Raises:
            ConnectFailed: refused, unreachable, no TLS, or not within `connect_timeout`.
        """
        origin = self.origin
        try:
            async with asyncio.timeout(self.connect_timeout):
                _, connection = await self.loop.create_connection(
                    lambda: Connection(self), origin.host, origin.port, ssl=self._tls
                )
        except TimeoutError:
            raise ConnectFailed(f"no connection to {origin.url} within {self.connect_timeout:g} s") from None
        except (OSError, ssl.SSLError) as error:
            raise ConnectFailed(f"cannot connect to {origin.url}: {_reason(error)}") from None
        return connection

    def opened(self, connection: Connection) -> None:
        if self._shut:
            connection.transport.abort()
        self._open.add(connection)

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection.receiver is None and connection in self._idle:
            self._idle.remove(connection)

    def release(self, connection: Connection) -> None:
        """Take back a connection whose exchange ended cleanly."""
        if self.keepalive <= 0 or self._shut or connection.transport.is_closing():
            connection.transport.abort()
            return
        connection.idle_since = self.loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(self.keepalive, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        now = self.loop.time()
        expired = [c for c in self._idle if c.idle_since + self.keepalive <= now]
        self._idle = [c for c in self._idle if c.idle_since + self.keepalive > now]
        for connection in expired:
            connection.transport.abort()
        if self._idle:
            self._sweeper = self.loop.call_at(self._idle[0].idle_since + self.keepalive, self._sweep)

    def close(self) -> None:
        """Close every connection, in use or not."""
        self._shut = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._idle.clear()
        for connection in list(self._open):
            connection.transport.abort()


class _Doubtful(Exception):
    """An answer that the parser takes, but whose body could be read in two ways."""


def _reason(error: Exception) -> str:
    """The short reason of a connect error; several addresses tried give one line."""
    return str(error.__cause__ or error) or type(error).__name__
