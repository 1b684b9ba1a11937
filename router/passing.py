"""Everything that is not a read: relayed as it is, as soon as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from time import perf_counter

from router.account import Account
from router.endpoints import AFTERWORK, Endpoint
from router.errors import engine_down, engine_failed
from router.observe.metrics import Metrics
from router.observe.prefixes import PrefixLedger
from router.reads.dialects import Dialect
from router.reads.gate import Gate
from router.settings import Settings
from router.wire.exchange import Exchange
from router.wire.headers import request_head
from router.wire.message import ConnectFailed, WireError
from router.wire.relay import Call, ToClient

_SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS"})
_EXPECT = frozenset({b"expect"})
NEWLINE = 0x0A
_NOTHING: frozenset[bytes] = frozenset()


class Passing:
    """The way straight through to the upstream."""

    def __init__(self, settings: Settings, metrics: Metrics, upstream: Endpoint, gate: Gate | None) -> None:
        self.preserve_host = settings.preserve_host
        self.metrics = metrics
        self.upstream = upstream
        self.gate = gate
        self.ledger = PrefixLedger(metrics)

    async def stream(self, exchange: Exchange, account: Account) -> None:
        """Relay a request whose body, if it has one, is passed on as it comes."""
        if self.gate is None or exchange.method in _SAFE:
            await self._stream(exchange, account)
        else:
            async with self._admitted(self.gate, account):
                await self._stream(exchange, account)

    async def send(
        self, exchange: Exchange, account: Account, dialect: Dialect, body: bytes, plain: bytes | None
    ) -> None:
        """Relay a request that was inspected and is no read, the very bytes that came."""
        if self.gate is None:
            await self._send(exchange, account, dialect, body, plain)
        else:
            async with self._admitted(self.gate, account):
                await self._send(exchange, account, dialect, body, plain)

    async def _stream(self, exchange: Exchange, account: Account) -> None:
        head = self._head(exchange, exchange.length, exchange.chunked, _NOTHING)
        call = Call(self.upstream.pool, ToClient(exchange))
        exchange.on_writable = call.readable
        await self._run(account, call, call.stream(head, exchange))

    async def _send(
        self, exchange: Exchange, account: Account, dialect: Dialect, body: bytes, plain: bytes | None
    ) -> None:
        head = self._head(exchange, len(body), False, _EXPECT)
        errors = InBandErrors()
        watch = self.ledger.begin(dialect.route, plain) if plain is not None else None
        taps = (errors.feed,) if watch is None else (errors.feed, watch.feed)
        call = Call(self.upstream.pool, ToClient(exchange, taps=taps))
        exchange.on_writable = call.readable
        await self._run(account, call, call.send(head, body))
        if errors.found and account.outcome == "ok":
            account.outcome = "upstream_error"
        if watch is not None:
            account.usage = watch.end(account.outcome == "ok")

    def _head(self, exchange: Exchange, length: int | None, chunked: bool, drop: frozenset[bytes]) -> bytes:
        return request_head(
            exchange.method,
            exchange.target,
            exchange.fields,
            authority=self.upstream.pool.authority,
            preserve_host=self.preserve_host,
            peer=exchange.peer,
            length=length,
            chunked=chunked,
            drop=drop,
            upgrade=exchange.upgrade,
        )

    @asynccontextmanager
    async def _admitted(self, gate: Gate, account: Account) -> AsyncIterator[None]:
        began = perf_counter()
        await gate.enter_traffic()
        whole = False
        try:
            waited = perf_counter() - began
            account.waited += waited
            self.metrics.gate_wait_seconds.labels(account.kind).observe(waited)
            yield
            whole = True
        finally:
            if whole:
                gate.leave_traffic()
            else:  # the engine goes on for a moment after the connection of a client that left was closed
                asyncio.get_running_loop().call_later(AFTERWORK, gate.leave_traffic)

    async def _run(self, account: Account, call: Call, sending: Coroutine[None, None, None]) -> None:
        try:
            await sending
        except ConnectFailed as error:
            raise engine_down(error) from None
        except WireError as error:
            raise engine_failed(error) from None
        finally:
            account.status = call.status
            account.timed(call)
        if call.truncated:
            account.outcome = "upstream_aborted"
        elif call.status >= 400:
            account.outcome = "upstream_error"


class InBandErrors:
    """Notices an error event in a stream that began with 200."""

    __slots__ = ("_tail", "found")

    def __init__(self) -> None:
        self.found = False
        self._tail = b""

    def feed(self, data: bytes) -> None:
        if self._tail:
            data = self._tail + data
            self._tail = b""
        if b'{"error"' in data and (b'data: {"error"' in data or b'data:{"error"' in data):
            self.found = True
        if data[-1] != NEWLINE:  # an event that goes on in the next segment
            self._tail = data[-16:]
