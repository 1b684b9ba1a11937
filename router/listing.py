"""A list read: one ticket, a turn for each prompt, one answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter

from router.account import Account
from router.errors import Answer, engine_failed
from router.reading import RANK, Reading, Turn, labels
from router.reads.coding import CodingError, decode
from router.reads.detect import Read
from router.reads.lane import Ticket
from router.reads.split import MergeError, StreamMerger, merge, sub_bodies
from router.wire.exchange import Exchange
from router.wire.headers import response_fields
from router.wire.message import ResponseHead, UpstreamGarbled, WireError
from router.wire.relay import Collected

ANSWER_LIMIT = 256 * 1024 * 1024
"""Bytes of one sub-answer that are kept for merging."""

_REFRAMED = frozenset({b"content-length", b"content-encoding", b"etag", b"content-md5", b"digest", b"repr-digest"})


class Totals:
    """What the sub-reads of one list add up to."""

    __slots__ = ("engine", "isolation", "queue")

    def __init__(self) -> None:
        self.queue = self.engine = 0.0
        self.isolation = "engine"

    def add(self, turn: Turn, engine: float) -> None:
        self.queue += turn.waited
        self.engine += engine
        self.isolation = min(self.isolation, turn.isolation, key=RANK.index)


async def answer_list(
    reading: Reading, exchange: Exchange, account: Account, read: Read, body: bytes, ticket: Ticket
) -> None:
    """Send each prompt as a read of its own and merge the answers; the first failing one is the whole answer."""
    answers: list[bytes] = []
    first: ResponseHead | None = None
    totals = Totals()
    for number, sub_body in enumerate(sub_bodies(body, read)):
        sink = Collected(ANSWER_LIMIT)
        work = partial(_sub_read, reading, exchange, account, read, sub_body, number, sink, totals)
        turn = await reading.in_turn(ticket, account, work)
        head = sink.answer
        if head is None or sink.error is not None:
            raise engine_failed(sink.error or UpstreamGarbled("no answer"))
        account.status = head.status
        if head.status != 200:
            fields = _echo_id(exchange, response_fields(head, drop=_LENGTH), number)
            exchange.start(
                head.status,
                [
                    *fields,
                    (b"Content-Length", b"%d" % len(sink.body)),
                    *labels(totals.isolation, totals.queue, totals.engine),
                ],
                reason=head.reason,
                length=len(sink.body),
            )
            exchange.send(sink.body, True)
            account.outcome = turn.outcome
            return
        answers.append(_identity(sink.body, head))
        first = first or head
    assert first is not None, "a list that is split has prompts"
    try:
        merged = merge(read, answers)
    except MergeError as error:
        raise engine_failed(UpstreamGarbled(str(error))) from None
    fields = _echo_id(exchange, response_fields(first, drop=_REFRAMED), 0)
    exchange.respond(200, [*fields, *labels(totals.isolation, totals.queue, totals.engine)], merged)


async def answer_list_stream(
    reading: Reading, exchange: Exchange, account: Account, read: Read, body: bytes, ticket: Ticket
) -> None:
    """Relay the sub-reads' streams one after another under one id, as one stream with one `[DONE]`."""
    merger = StreamMerger(read)
    totals = Totals()
    sink = _Joined(exchange, merger, totals)
    for number, sub_body in enumerate(sub_bodies(body, read)):
        sink.number = number
        work = partial(_sub_read, reading, exchange, account, read, sub_body, number, sink, totals)
        turn = await reading.in_turn(ticket, account, work)
        account.status = account.status or sink.status
        if sink.whole:  # the first answer was an error, and is the whole answer
            account.outcome = turn.outcome
            return
        if turn.outcome != "ok":
            account.outcome = turn.outcome
            exchange.abort()
            return
        exchange.send(merger.next_answer(), False)
    exchange.send(merger.finish(), True)


async def _sub_read(
    reading: Reading,
    exchange: Exchange,
    account: Account,
    read: Read,
    body: bytes,
    number: int,
    sink: Collected | _Joined,
    totals: Totals,
    turn: Turn,
) -> None:
    head, body = reading.request(exchange, read, body, turn, suffix=b"-%d" % number)
    if isinstance(sink, _Joined):
        sink.turn = turn
        sink.judge = lambda head: reading.judge(turn, head)
    try:
        call = await reading.call(turn, head, body, sink)
        if isinstance(sink, Collected) and sink.answer is not None:
            reading.judge(turn, sink.answer)
        if not account.sent_at:
            account.timed(call)
        totals.add(turn, perf_counter() - turn.sent_at)
    except Answer:
        raise
    except BaseException:
        turn.outcome = "client_gone"
        raise
    finally:
        account.outcome = turn.outcome
        reading.count(turn, read.model)


class _Joined:
    """The sink of a list's streams: the first head starts the client's answer, every body goes through the merger."""

    def __init__(self, exchange: Exchange, merger: StreamMerger, totals: Totals) -> None:
        self.exchange = exchange
        self.merger = merger
        self.totals = totals
        self.number = 0
        self.status = 0
        self.whole = False
        self.turn: Turn | None = None
        self.judge = _no_judge

    def head(self, head: ResponseHead) -> None:
        self.judge(head)
        self.status = head.status
        if self.exchange.response_started:
            if head.status != 200:
                raise UpstreamGarbled(f"sub-read {self.number} was answered {head.status}")
            return
        turn = self.turn
        assert turn is not None
        extra = labels(turn.isolation, turn.waited, perf_counter() - turn.sent_at)
        self.whole = head.status != 200
        fields = _echo_id(self.exchange, response_fields(head, drop=_NOTHING if self.whole else _REFRAMED), self.number)
        length = head.length if self.whole else None
        self.exchange.start(head.status, [*fields, *extra], reason=head.reason, length=length)

    def data(self, data: bytes, last: bool) -> None:
        if self.whole:
            self.exchange.send(data, last)
        elif data:
            out = self.merger.feed(data)
            if out:
                self.exchange.send(out, False)

    def broken(self, error: WireError) -> None:
        self.exchange.abort()


def _no_judge(head: ResponseHead) -> None: ...


def _identity(body: bytes, head: ResponseHead) -> bytes:
    """The answer without its content coding (some engines compress unasked)."""
    coding = head.get(b"content-encoding")
    if coding is None:
        return body
    try:
        return decode(body, coding, ANSWER_LIMIT)
    except CodingError as error:
        raise engine_failed(UpstreamGarbled(f"the answer's content coding {coding!r}: {error}")) from None


def _echo_id(exchange: Exchange, fields: list[tuple[bytes, bytes]], number: int) -> Sequence[tuple[bytes, bytes]]:
    """Give the client its own X-Request-Id back where the engine echoes a sub-read's."""
    own = exchange.get(b"x-request-id")
    if own is None:
        return fields
    sub = own + b"-%d" % number
    return [(name, own if name.lower() == b"x-request-id" and value == sub else value) for name, value in fields]


_LENGTH = frozenset({b"content-length"})
_NOTHING: frozenset[bytes] = frozenset()
