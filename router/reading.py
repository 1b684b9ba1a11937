"""A read's way: its turn in the lane, its call at an endpoint, and what its answer says of its isolation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from time import perf_counter

import msgspec

from router.account import Account
from router.canary import BODY as CANARY_BODY
from router.endpoints import AFTERWORK, Endpoint, Endpoints
from router.errors import Answer, Unsent, engine_down, engine_failed, not_acknowledged, read_timeout
from router.observe.metrics import Metrics, Outcome
from router.observe.prefixes import PrefixLedger
from router.reads.detect import Read
from router.reads.gate import Gate
from router.reads.lane import Lane, LaneRefusal, Ticket, TurnExpired
from router.reads.split import append_members
from router.settings import Settings
from router.wire.exchange import Exchange
from router.wire.headers import request_head
from router.wire.message import ConnectFailed, ResponseHead, UpstreamClosed, WireError
from router.wire.relay import Call, Collected, Sink, ToClient

logger = logging.getLogger("router.reads")

CANARY_ROUTE = "/v1/completions"
CANARY_LIMIT = 1024 * 1024

RANK = ("serial", "exclusive", "engine")
"""Isolation from the weakest to the strongest."""

_BUFFERED = frozenset({b"expect"})


class Turn:
    """One read's turn at one endpoint, and what became of it."""

    __slots__ = ("acknowledged", "endpoint", "isolation", "knobs", "outcome", "sent_at", "waited")

    def __init__(self, endpoint: Endpoint, waited: float) -> None:
        self.endpoint = endpoint
        self.waited = waited
        self.sent_at = 0.0
        self.acknowledged = False
        self.isolation = "serial"
        self.outcome: Outcome = "ok"
        self.knobs = False  # the engine's own knobs are in its body


class Reading:
    """What all reads share: the lane, the gate, the endpoints and the labels."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        endpoints: Endpoints,
        lane: Lane,
        gate: Gate | None,
        ledger: PrefixLedger,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.endpoints = endpoints
        self.lane = lane
        self.gate = gate
        self.ledger = ledger
        self.bypass = settings.bypass
        self.bypass_name = self.bypass[0].lower()
        self.drop = _BUFFERED | {self.bypass_name}

    # -- turns

    @asynccontextmanager
    async def turn(self, ticket: Ticket, account: Account | None) -> AsyncIterator[Turn]:
        """Wait for a turn; the slot is held inside the block and handed on at its end.

        Raises:
            TurnExpired, LaneClosed, NoEndpoint: from the lane.
        """
        metrics = self.metrics
        began = perf_counter()
        try:
            index = await ticket.turn()
        except BaseException:
            self._settle()
            raise
        endpoint = self.endpoints.reads[index]
        gate = self.gate if endpoint is self.endpoints.upstream else None
        try:
            if gate is not None:
                at_gate = perf_counter()
                try:
                    async with asyncio.timeout(max(0.0, self.settings.queue_timeout - (at_gate - began))):
                        await gate.enter_reads()
                except TimeoutError:
                    raise TurnExpired from None
                metrics.gate_wait_seconds.labels("read").observe(perf_counter() - at_gate)
            try:
                waited = perf_counter() - began
                turn = Turn(endpoint, waited)
                metrics.read_queue_wait_seconds.observe(waited)
                if account is not None:
                    account.waited += waited
                yield turn
            finally:
                if gate is not None:
                    gate.leave_reads(more=self.lane.has_next)
        finally:
            ticket.done()

    async def in_turn(self, ticket: Ticket, account: Account, work: Callable[[Turn], Awaitable[None]]) -> Turn:
        """Do `work` in the ticket's turn. Where an endpoint is not there, another turn brings it to another one.

        Raises:
            Answer, and what `turn` raises.
        """
        others = len(self.endpoints.reads) - 1
        while True:
            try:
                async with self.turn(ticket, account) as turn:
                    await work(turn)
                    return turn
            except Unsent:
                if not others:
                    raise
                others -= 1

    def _settle(self) -> None:
        """A read that was next in a burst left before its turn; nobody may be left to end the gate's hold."""
        if self.gate is not None and not self.lane.has_next:
            self.gate.settle()

    # -- requests

    def request(
        self,
        exchange: Exchange,
        read: Read,
        body: bytes,
        turn: Turn,
        *,
        suffix: bytes = b"",
        encoded: bool = False,
    ) -> tuple[bytes, bytes]:
        """Head and body of one read for one endpoint: the bypass header, and the engine's own knobs in the body.

        Args:
            suffix: appended to the client's X-Request-Id (sub-reads).
            encoded: the body is compressed and goes as it is.
        """
        endpoint = turn.endpoint
        if not encoded:
            body = self._with_knobs(turn, read.route, body)
        fields = exchange.fields
        drop = self.drop
        if suffix:
            fields = [(low, name, value + suffix if low == b"x-request-id" else value) for low, name, value in fields]
            drop |= _SPLIT_DROP
        head = request_head(
            exchange.method,
            exchange.target,
            fields,
            authority=endpoint.pool.authority,
            preserve_host=self.settings.preserve_host,
            peer=exchange.peer,
            length=len(body),
            drop=drop,
            add=(self.bypass,),
        )
        return head, body

    def _with_knobs(self, turn: Turn, route: str, body: bytes) -> bytes:
        """The body with the members by which this engine bypasses its cache, where they are wanted and can be added."""
        members = turn.endpoint.facts.adapter.knobs(route) if self.settings.body_knobs else b""
        added = append_members(body, members)
        turn.knobs = added is not body
        return added

    async def call(self, turn: Turn, head: bytes, body: bytes, sink: Sink) -> Call:
        """Send one read; resend it once, and only if a reused connection closed without one byte of an answer.

        Raises:
            Answer: the error that the client is to see.
        """
        endpoint = turn.endpoint
        call = Call(endpoint.pool, sink)
        busy = self.metrics.read_slots_busy.labels(endpoint.name)
        busy.inc()
        began = perf_counter()
        try:
            async with asyncio.timeout(self.settings.read_timeout):
                try:
                    await self._send(turn, call, head, body)
                except UpstreamClosed as error:
                    if not error.clean_slate:
                        raise
                    self.metrics.reads_resent_total.inc()
                    call = Call(endpoint.pool, sink)
                    await self._send(turn, call, head, body, fresh=True)
        except asyncio.CancelledError:
            endpoint.last_cut = perf_counter()
            raise
        except TimeoutError:
            endpoint.last_cut = perf_counter()
            turn.outcome = "timeout"
            raise read_timeout(self.settings.read_timeout) from None
        except ConnectFailed as error:
            turn.outcome = "upstream_error"
            if len(self.endpoints.reads) > 1:
                self.endpoints.lost(endpoint)
            raise engine_down(error) from None
        except WireError as error:
            turn.outcome = "upstream_error"
            raise engine_failed(error) from None
        finally:
            busy.dec()
            endpoint.last_read_end = perf_counter()
            self.metrics.read_engine_seconds.labels(endpoint.name).observe(endpoint.last_read_end - began)
        if call.truncated:
            turn.outcome = "upstream_aborted"
        elif call.status >= 400:
            turn.outcome = "upstream_error"
        return call

    async def _send(self, turn: Turn, call: Call, head: bytes, body: bytes, *, fresh: bool = False) -> None:
        endpoint = turn.endpoint
        now = perf_counter()
        if now - turn.waited <= endpoint.last_read_end and not fresh:  # it was waiting when the last one ended
            self.metrics.read_gap_seconds.labels(endpoint.name).observe(now - endpoint.last_read_end)
        turn.sent_at = now
        await call.send(head, body, fresh=fresh)

    async def replay(self) -> tuple[int, bytes]:
        """The canary's read, through the lane like any other: its answer's status (0: none came) and body."""
        try:
            ticket = self.lane.admit()
        except LaneRefusal:
            return 0, b""
        sink = Collected(CANARY_LIMIT)
        try:
            async with self.turn(ticket, None) as turn:
                body = dict(CANARY_BODY)
                if turn.endpoint.facts.models:
                    body["model"] = turn.endpoint.facts.models[0]
                text = self._with_knobs(turn, CANARY_ROUTE, msgspec.json.encode(body))
                fields = [(b"content-type", b"Content-Type", b"application/json")]
                head = request_head(
                    b"POST",
                    CANARY_ROUTE.encode(),
                    fields,
                    authority=turn.endpoint.pool.authority,
                    length=len(text),
                    add=(self.bypass,),
                )
                await self.call(turn, head, text, sink)
        except (Answer, LaneRefusal, WireError):
            return 0, b""
        finally:
            ticket.leave()
        return (0 if sink.answer is None or sink.error is not None else sink.answer.status), sink.body

    # -- answers

    def judge(self, turn: Turn, head: ResponseHead) -> None:
        """How far this read was isolated, by what the endpoint's answer acknowledges.

        Raises:
            Answer: 502 where `--require-ack` wants an acknowledgement and there is none.
        """
        endpoint = turn.endpoint
        settings = self.settings
        turn.acknowledged = (head.get(self.bypass_name) or b"").strip().lower() == b"applied"
        if settings.isolation == "serial":
            turn.isolation = "serial"
            return
        # The engine may still be at work on a read that was cut; only its own word says that this one was alone then.
        alone = settings.reads_in_flight == 1 and turn.sent_at - endpoint.last_cut > AFTERWORK
        if turn.acknowledged or (alone and turn.knobs and endpoint.facts.vouched):
            turn.isolation = "engine"
            return
        gated = self.gate is not None and endpoint is self.endpoints.upstream
        turn.isolation = "exclusive" if gated and alone else "serial"
        if head.status >= 400:
            return  # an error is no read; there was nothing to acknowledge
        self.metrics.reads_unacknowledged_total.labels(endpoint.name).inc()
        if settings.require_ack:
            turn.outcome = "upstream_error"
            raise not_acknowledged(endpoint.url)
        if self.gate is None and not endpoint.facts.vouched and not endpoint.warned:
            endpoint.warned = True
            logger.warning(
                "%s does not acknowledge %s: its reads are alone among reads only, and labelled serial. "
                "Use an engine with our patch, or --isolation exclusive.",
                endpoint.url,
                self.bypass[0].decode(),
            )

    def count(self, turn: Turn, model: str | None) -> None:
        """A read or sub-read ended."""
        if turn.endpoint is self.endpoints.upstream:
            self.ledger.note_read(turn.isolation == "engine")
        self.metrics.count_read(turn.isolation, model, turn.outcome)


def labels(isolation: str, queue: float, engine: float) -> Sequence[tuple[bytes, bytes]]:
    """The fields that every read's answer carries. `queue` and `engine` in seconds."""
    timing = b"queue;dur=%.3f, engine;dur=%.3f" % (queue * 1e3, engine * 1e3)
    return ((b"X-Read-Isolation", isolation.encode()), (b"Server-Timing", timing))


async def answer_single(
    reading: Reading, exchange: Exchange, account: Account, read: Read, body: bytes, ticket: Ticket, *, encoded: bool
) -> None:
    """A read that goes as one request: relayed as it comes, with its labels on the head."""

    async def work(turn: Turn) -> None:
        head, sent = reading.request(exchange, read, body, turn, encoded=encoded)

        def on_head(answer: ResponseHead) -> Sequence[tuple[bytes, bytes]]:
            reading.judge(turn, answer)
            account.status = answer.status
            return labels(turn.isolation, turn.waited, perf_counter() - turn.sent_at)

        try:
            call = await reading.call(turn, head, sent, ToClient(exchange, on_head))
            account.timed(call)
        except Answer:
            raise
        except BaseException:
            turn.outcome = "client_gone"
            raise
        finally:
            account.outcome = turn.outcome
            reading.count(turn, read.model)

    await reading.in_turn(ticket, account, work)


_SPLIT_DROP = frozenset({b"accept-encoding", b"content-encoding"})
