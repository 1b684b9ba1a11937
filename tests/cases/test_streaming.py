"""Streaming, S01-S10: what the engine writes reaches the client as it is, when it is."""

from __future__ import annotations

import asyncio
import hashlib
from time import perf_counter

import pytest

from tests.support.answers import LAST_CHUNK, STREAM_HEAD, chunk, held, in_turn, json_message, play, stream
from tests.support.client import GEN, READ1, STREAM, STREAM_BODY, Answer, completions, post
from tests.support.routers import InProcess, eventually, running, serving
from tests.support.upstream import Connection, Request, Upstream

EVENT = b'data: {"choices":[{"index":0,"text":"x"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def arrival_of(answer: Answer, size: int) -> float:
    """When the first `size` bytes of the body were all there."""
    have = 0
    for at, piece in answer.pieces:
        have += len(piece)
        if have >= size:
            return at
    raise AssertionError(f"only {have} bytes arrived")


def timed(log: list[float], *events: bytes | float, head: bytes = STREAM_HEAD) -> object:
    """An event stream that notes when it wrote each piece."""

    async def handler(connection: Connection, request: Request) -> None:
        await connection.send(head)
        for event in events:
            if isinstance(event, bytes):
                log.append(perf_counter())
                await connection.send(chunk(event))
            else:
                await asyncio.sleep(event)
        await connection.send(LAST_CHUNK)

    return handler


async def test_s01_an_event_cut_inside_a_character_arrives_in_its_pieces(router: InProcess, upstream: Upstream) -> None:
    """S01: fragments of an event, and of one character, are passed on at once and unchanged."""
    wrote: list[float] = []
    pieces = [b'data: {"t":"\xe6\x97', b'\xa5"}\n', b"\n", DONE]
    upstream.handler = timed(wrote, pieces[0], 0.2, pieces[1], 0.2, *pieces[2:])  # type: ignore[assignment]
    answer = await router.ask(STREAM)
    assert answer.body == b"".join(pieces)
    assert answer.whole
    assert arrival_of(answer, len(pieces[0])) - wrote[0] < 0.05
    assert answer.pieces[0][1] == pieces[0]
    samples = await router.settled()
    assert samples.sum("time_to_first_byte_seconds_sum", kind="chat") < 0.2


async def test_s02_odd_framing_of_events_is_kept(router: InProcess, upstream: Upstream) -> None:
    """S02: CRLF, comments, missing spaces, ids and retries in one segment arrive as they are."""
    segment = b': ping\r\n\r\ndata:{"a":1}\r\n\r\nevent: x\r\nid: 7\r\nretry: 10\r\ndata: l1\r\ndata: l2\r\n\r\n'
    upstream.handler = stream(segment)
    answer = await router.ask(STREAM)
    assert answer.body == segment
    assert answer.whole
    assert answer.get("content-type") == b"text/event-stream"


@pytest.mark.parametrize("end", ["reset", "close"])
async def test_s03_a_broken_stream_breaks_at_the_client_too(router: InProcess, upstream: Upstream, end: str) -> None:
    """S03: after an RST, or a FIN without the final chunk, there is no fake end, and it counts as upstream_aborted."""
    upstream.handler = play(STREAM_HEAD, chunk(EVENT), chunk(EVENT), 0.05, end)  # type: ignore[arg-type]
    async with await router.connect() as client:
        answer = await client.ask(STREAM)
    assert answer.status == 200
    assert answer.body == EVENT * 2
    assert not answer.whole
    assert not answer.raw_body.endswith(LAST_CHUNK)
    samples = await router.settled()
    assert samples.sum("requests_total", outcome="upstream_aborted") == 1
    assert samples.sum("requests_total", outcome="ok") == 0


async def test_s04_an_error_inside_a_stream_counts_as_an_error(router: InProcess, upstream: Upstream) -> None:
    """S04: an error event in a 200 stream is passed unchanged, and the outcome says error."""
    events = EVENT + b'data: {"error":{"code":400}}\n\n' + DONE
    upstream.handler = stream(EVENT, b'data: {"error":{"code":400}}\n\n', DONE)
    answer = await router.ask(STREAM)
    assert (answer.status, answer.body, answer.whole) == (200, events, True)
    samples = await router.settled()
    assert samples.sum("requests_total", outcome="upstream_error", code="2xx") == 1


async def test_s05_binary_audio_is_binary(router: InProcess, upstream: Upstream) -> None:
    """S05: chunked audio keeps its type and its bytes."""
    audio = bytes(range(256)) * 1000
    head = b"HTTP/1.1 200 OK\r\nContent-Type: audio/pcm\r\nTransfer-Encoding: chunked\r\n\r\n"
    upstream.handler = play(head, *(chunk(audio[at : at + 7000]) for at in range(0, len(audio), 7000)), LAST_CHUNK)
    answer = await router.ask(post("/v1/audio/speech", b'{"input":"hi"}'))
    assert answer.get("content-type") == b"audio/pcm"
    assert hashlib.sha256(answer.body).hexdigest() == hashlib.sha256(audio).hexdigest()
    assert answer.whole


async def test_s06_the_head_does_not_wait_for_the_body(router: InProcess, upstream: Upstream) -> None:
    """S06: the head arrives before any body, and each padding byte when it is written."""
    wrote: list[float] = []
    upstream.handler = timed(wrote, 0.4, b" ", 0.3, b" ", 0.3, b'{"ok":true}')  # type: ignore[assignment]
    async with await router.connect() as client:
        began = perf_counter()
        await client.send(GEN)
        answer = await client.head()
        assert answer.head_at - began < 0.1
        assert not answer.pieces
        await client.rest(answer)
    assert answer.body == b'  {"ok":true}'
    for number, at in enumerate(wrote[:2]):
        assert arrival_of(answer, number + 1) - at < 0.05


async def test_s07_late_events_come_late_and_nothing_is_added(router: InProcess, upstream: Upstream) -> None:
    """S07: a usage event, `[DONE]` and the final chunk each come at their time; a stream without `[DONE]` gets none."""
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\n'
    wrote: list[float] = []
    plain = stream(EVENT)
    upstream.handler = in_turn(timed(wrote, EVENT, 0.4, usage, 0.4, DONE, 0.3), plain)  # type: ignore[arg-type]
    answer = await router.ask(STREAM)
    assert answer.body == EVENT + usage + DONE
    for size, at in zip((len(EVENT), len(EVENT + usage), len(answer.body)), wrote, strict=True):
        assert 0 <= arrival_of(answer, size) - at < 0.1
    assert answer.ended_at - wrote[-1] > 0.25
    assert (await router.ask(STREAM)).body == EVENT


async def test_s08_a_streaming_read_keeps_its_turn_to_its_end(router: InProcess, upstream: Upstream) -> None:
    """S08: the next read starts when the stream has ended, not when its head was there."""
    upstream.handler = in_turn(stream(EVENT, 0.3, DONE), held(0.0))
    first = asyncio.create_task(router.ask(completions(stream=True)))
    await upstream.arrival(1)
    second = await router.ask(READ1)
    streamed = await first
    assert streamed.body == EVENT + DONE
    assert second.status == 200
    ended, began = upstream.requests[0].answered_at, upstream.requests[1].head_at
    assert ended is not None
    assert ended <= began
    assert upstream.max_reads_overlap == 1


async def test_s09_a_slow_reader_stops_the_engine_and_nobody_else() -> None:
    """S09: of 500 MB behind a client that does not read, little is held; others go on; leaving ends it."""
    block = chunk(bytes(256 * 1024))

    async def flood(connection: Connection, request: Request) -> None:
        await connection.send(STREAM_HEAD)
        for _ in range(2000):
            await connection.send(block)

    async with Upstream() as upstream, serving(upstream) as router:
        await router.ask(READ1)
        before = router.rss
        upstream.on("/v1/chat/completions", flood)
        async with await router.connect(receive_buffer=16384) as client:
            await client.send(post("/v1/chat/completions", STREAM_BODY))
            await client.receive(size=1024)
            await asyncio.sleep(1.0)
            stream = next(r.connection for r in upstream.requests if r.path == "/v1/chat/completions")
            sent = stream.sent
            began = perf_counter()
            assert (await router.ask(READ1)).status == 200
            assert perf_counter() - began < 1.0
            await asyncio.sleep(0.5)
            assert stream.sent == sent < 64 * 1024 * 1024
            assert router.rss - before < 32
        left = perf_counter()
        await asyncio.wait_for(stream.closed.wait(), 5)
        assert perf_counter() - left < 1.0
        await router.settled()


async def test_s10_tokens_are_neither_gathered_nor_compressed(router: InProcess, upstream: Upstream) -> None:
    """S10: 20 events 100 ms apart arrive as 20, at their times, identity though gzip was offered."""
    wrote: list[float] = []
    events = [b'data: {"n":%d}\n\n' % n for n in range(20)]
    script = [piece for event in events for piece in (event, 0.1)]
    upstream.handler = timed(wrote, *script)  # type: ignore[assignment]
    answer = await router.ask(post("/v1/completions", STREAM_BODY, "Accept-Encoding: gzip"))
    assert [piece for _, piece in answer.pieces] == events
    assert answer.get("content-encoding") is None
    for (arrived, _), at in zip(answer.pieces, wrote, strict=True):
        assert arrived - at < 0.05
    assert upstream.requests[0].get("accept-encoding") == b"gzip"


async def test_streams_of_whole_answers_keep_their_length(router: InProcess, upstream: Upstream) -> None:
    """The kind of S02: an answer with a Content-Length keeps it, and is not framed anew."""
    upstream.handler = play(json_message({"a": 1}))
    answer = await router.ask(GEN)
    assert answer.get("content-length") == b"8"
    assert answer.get("transfer-encoding") is None


async def test_a_slow_client_of_one_stream_does_not_slow_another() -> None:
    """The kind of S09: back-pressure is each connection's own."""
    block = chunk(bytes(64 * 1024))

    async def flood(connection: Connection, request: Request) -> None:
        await connection.send(STREAM_HEAD)
        for _ in range(400):
            await connection.send(block)
        await connection.send(LAST_CHUNK)

    async with Upstream(flood) as upstream, running(upstream) as router:
        async with await router.connect(receive_buffer=16384) as slow:
            await slow.send(STREAM)
            await upstream.arrival(1)
            quick = await router.ask(STREAM)
            assert len(quick.body) == 400 * 64 * 1024
            assert quick.whole
        await eventually(lambda: upstream.requests[0].connection.closed_at is not None)
