"""Bodies and their encodings, B01-B11: looked at, never touched."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import zlib
from time import perf_counter

import brotli
import pytest
import zstandard

from tests.support.client import READ1_BODY, Client, post, request
from tests.support.routers import InProcess, Running, eventually, serving
from tests.support.upstream import Upstream

ODD = (
    b'{ "seed":12345678901234567890, "temperature":1.0, "x":1e2,"z":-0, "u":"\\u00e9","model":"m" ,'
    b'"prompt":"a\\/b","max_tokens":%d,"logprobs":1}'
)


async def sent(router: Running, body: bytes, *fields: str, content_type: str = "application/json") -> bool:
    """Send a body to completions; it arrives unchanged. Returns whether it was taken for a read."""
    upstream = router.upstream
    answer = await router.ask(post("/v1/completions", body, *fields, content_type=content_type))
    assert answer.status == 200
    arrived = upstream.requests[-1]
    assert arrived.body == body
    assert arrived.get("content-length") == str(len(body)).encode()
    assert (answer.get("x-read-isolation") is not None) is arrived.is_read
    return arrived.is_read


async def test_b01_json_is_not_written_anew(router: InProcess, upstream: Upstream) -> None:
    """B01: numbers, escapes and spaces arrive as they were written; in a read too."""
    assert not await sent(router, ODD % 50)
    assert await sent(router, ODD % 1)


async def test_b02_compressed_bodies_are_looked_into(router: InProcess, upstream: Upstream) -> None:
    """B02: a compressed read is a read, and its compressed bytes are what is forwarded."""
    packed = {
        "gzip": gzip.compress(READ1_BODY),
        "x-gzip": gzip.compress(READ1_BODY),
        "deflate": zlib.compress(READ1_BODY),
        "zstd": zstandard.compress(READ1_BODY),
        "br": brotli.compress(READ1_BODY),
        "gzip, br": brotli.compress(gzip.compress(READ1_BODY)),
    }
    for coding, body in packed.items():
        assert await sent(router, body, f"Content-Encoding: {coding}"), coding
        assert upstream.requests[-1].get("content-encoding") == coding.encode()


@pytest.mark.parametrize(
    ("coding", "body", "reason"),
    [("compress", b"\x1f\x9d\x90", "encoding"), ("gzip", b"not gzip", "corrupt"), ("zstd", b"not zstd", "corrupt")],
)
async def test_b02_what_cannot_be_unpacked_passes(
    router: InProcess, upstream: Upstream, coding: str, body: bytes, reason: str
) -> None:
    """B02, D9: an unknown or broken coding is the engine's to refuse; it is counted."""
    assert not await sent(router, body, f"Content-Encoding: {coding}")
    assert (await router.metrics()).sum("unclassified_total", reason=reason) == 1


@pytest.mark.parametrize("coding", ["gzip", "zstd", "br"])
async def test_b03_a_bomb_is_stopped_at_the_limit(upstream: Upstream, coding: str) -> None:
    """B03: compressed zeros many times the limit pass uninspected; memory stays, and others are served meanwhile."""
    size = 512 * 1024 * 1024
    pieces = (bytes(1 << 20) for _ in range(size >> 20))
    if coding == "gzip":
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        bomb = b"".join(packer.compress(piece) for piece in pieces) + packer.flush()
    elif coding == "zstd":
        writer = zstandard.ZstdCompressor(level=1).compressobj()
        bomb = b"".join(writer.compress(piece) for piece in pieces) + writer.flush()
    else:
        squeezer = brotli.Compressor(quality=1)
        bomb = b"".join(squeezer.process(piece) for piece in pieces) + squeezer.finish()
    async with serving(upstream) as router:
        await router.ask(post("/v1/completions", READ1_BODY))
        before = peak = router.rss
        slowest = 0.0
        bombing = asyncio.create_task(router.ask(post("/v1/completions", bomb, f"Content-Encoding: {coding}")))
        while not bombing.done():
            began = perf_counter()
            assert (await router.admin("/livez")).status == 200
            slowest = max(slowest, perf_counter() - began)
            peak = max(peak, router.rss)
            await asyncio.sleep(0.005)
        assert (await bombing).status == 200
        assert peak - before < 2 * 64 + 64, peak - before
        assert slowest < 0.3
        assert not upstream.requests[-1].is_read
        assert upstream.requests[-1].body == bomb
        assert (await router.metrics()).sum("unclassified_total", reason="too_large") == 1


async def test_b04_multipart_is_streamed_and_not_parsed(router: InProcess, upstream: Upstream) -> None:
    """B04: an odd boundary and binary parts arrive as they are, the first bytes before the last are sent."""
    kind = 'multipart/form-data; boundary="xX\'()+_,-./:=?"'
    head = b'--xX\'()+_,-./:=?\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    body = head + bytes(range(256)) * 64 + b"\r\n--xX'()+_,-./:=?--\r\n"
    data = post("/v1/audio/transcriptions", body, content_type=kind)
    async with await router.connect() as client:
        await client.send(data[:-5000])
        arrived = await upstream.arrival(1)
        await eventually(lambda: arrived.size == len(body) - 5000)
        await client.send(data[-5000:])
        assert (await client.answer()).status == 200
    assert arrived.body == body
    assert arrived.get("content-type") == kind.encode()


def chunked(target: str, *fields: str, content_type: str = "application/octet-stream") -> bytes:
    return request("POST", target, None, f"Content-Type: {content_type}", "Transfer-Encoding: chunked", *fields)


async def test_b05_chunked_uploads_arrive_whole(router: InProcess, upstream: Upstream) -> None:
    """B05: 5 MB in chunks of 1 byte and of 64 KB is streamed and complete."""
    small, big = bytes(range(256)) * 8, bytes(range(256)) * 256
    body = small + big * 80
    async with await router.connect() as client:
        await client.send(chunked("/v1/files"))
        await client.send(b"".join(b"1\r\n%c\r\n" % byte for byte in small))
        arrived = await upstream.arrival(1)
        await eventually(lambda: arrived.size == len(small))
        for _ in range(80):
            await client.send(b"%x\r\n%b\r\n" % (len(big), big))
        await client.send(b"0\r\n\r\n")
        assert (await client.answer()).status == 200
    assert arrived.digest == hashlib.sha256(body).hexdigest()
    assert arrived.chunked


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_b05_a_chunked_read_is_a_read(router: InProcess, upstream: Upstream, size: int) -> None:
    """B05: a read in chunks is recognised and goes on whole, with a length."""
    pieces = [READ1_BODY[at : at + size] for at in range(0, len(READ1_BODY), size)]
    data = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nX-Trailer: 1\r\n\r\n"
    answer = await router.ask(chunked("/v1/completions", content_type="application/json") + data)
    assert answer.status == 200
    arrived = upstream.requests[0]
    assert arrived.is_read
    assert arrived.body == READ1_BODY
    assert arrived.get("content-length") == str(len(READ1_BODY)).encode()
    assert "x-trailer" not in arrived.names()


async def test_b06_a_byte_order_mark_hides_nothing(router: InProcess, upstream: Upstream) -> None:
    """B06: a BOM before the JSON, as the engine's parser accepts it: a read, and the BOM is forwarded."""
    assert await sent(router, b"\xef\xbb\xbf" + READ1_BODY)
    for coding in ("utf-16", "utf-16-le", "utf-32-be"):
        assert await sent(router, READ1_BODY.decode().encode(coding)), coding


@pytest.mark.parametrize(
    ("cap", "read"),
    [
        (b'"max_tokens":50,"max_tokens":1', True),
        (b'"max_tokens":1,"max_tokens":50', False),
        (b'"max\\u005ftokens":1', True),
        (b'"max_tokens":50,"max\\u005ftokens":1', True),
        (b'"max_tokens":1,"\\u006dax_tokens":50', False),
    ],
)
async def test_b07_the_last_key_wins(router: InProcess, upstream: Upstream, cap: bytes, read: bool) -> None:
    """B07: duplicate and escaped keys mean what they mean to the engine."""
    assert await sent(router, b'{"model":"m","prompt":"hi","logprobs":1,' + cap + b"}") is read


HOSTILE = {
    "nesting": b'{"max_tokens":1,"logprobs":1,"x":' + b"[" * 100_000,
    "closed nesting": b'{"max_tokens":1,"logprobs":1,"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "number": b'{"max_tokens":1,"logprobs":1,"prompt":"x","n":' + b"9" * 5000 + b"}",
    "bad utf-8": b'{"max_tokens":1,"logprobs":1,"prompt":"\xff\xfe"}',
    "trailing": READ1_BODY + b" trailing",
    "cut": READ1_BODY[:-1],
    "empty": b"",
    "lone surrogate": b'{"max_tokens":1,"logprobs":1,"prompt":"\\ud800"',
    "not an object": b'["max_tokens","logprobs"]',
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
async def test_b08_hostile_json_is_the_engines_to_refuse(router: InProcess, upstream: Upstream, body: bytes) -> None:
    """B08, D9: whatever cannot be parsed passes untouched, quickly, and without a traceback."""
    began = perf_counter()
    assert not await sent(router, body) or body is HOSTILE["number"]
    assert perf_counter() - began < 0.5


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity"])
async def test_b09_literals_of_pythons_json_are_understood(
    router: InProcess, upstream: Upstream, literal: bytes
) -> None:
    """B09: what the engine's parser accepts is a read."""
    assert await sent(router, READ1_BODY[:-1] + b',"temperature":' + literal + b"}")


async def test_b10_large_bodies_pass_whole() -> None:
    """B10: a 40 MB chat and an upload of 400 MB arrive whole, in bounded memory (the case's 2 GB scaled)."""
    async with Upstream() as upstream, serving(upstream) as router:
        await router.ask(post("/v1/completions", READ1_BODY))
        before = peak = router.rss
        image = b'{"messages":[{"role":"user","content":"' + b"A" * (40 << 20) + b'"}]}'
        assert (await router.ask(post("/v1/chat/completions", image), 60)).status == 200
        assert upstream.requests[-1].digest == hashlib.sha256(image).hexdigest()
        piece, count = bytes(range(256)) * 4096, 400
        digest = hashlib.sha256()
        async with await Client.connect(router.port) as client:
            await client.send(
                request("POST", "/v1/files", None, f"Content-Length: {len(piece) * count}", "Content-Type: x/y")
            )
            for _ in range(count):
                digest.update(piece)
                await client.send(piece)
                peak = max(peak, router.rss)
            assert (await client.answer(60)).status == 200
        assert upstream.requests[-1].size == len(piece) * count
        assert upstream.requests[-1].digest == digest.hexdigest()
        assert peak - before < 2 * 64 + 64


async def test_b10_a_body_over_the_limit_streams_through_uninspected(upstream: Upstream) -> None:
    """B10, D6: a read above --max-inspect-bytes is relayed, counted and warned about."""
    async with serving(upstream, "--max-inspect-bytes", "1000") as router:
        body = READ1_BODY[:-1] + b',"user":"' + b"u" * 2000 + b'"}'
        assert not await sent(router, body)
        pieces = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (body[:900], body[900:])) + b"0\r\n\r\n"
        assert (await router.ask(chunked("/v1/completions", content_type="application/json") + pieces)).status == 200
        assert upstream.requests[-1].body == body
        assert not upstream.requests[-1].is_read
        assert (await router.metrics()).sum("unclassified_total", reason="too_large") == 2
        assert "without being inspected" in router.text


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("text/plain", False),
        ("application/json; charset=utf-8", True),
        ("Application/JSON", True),
        ("application/x-www-form-urlencoded", False),
        ("application/jsonx", False),
    ],
)
async def test_b11_only_json_is_inspected(router: InProcess, upstream: Upstream, kind: str, read: bool) -> None:
    """B11: the content type decides, its case and its parameters do not."""
    assert await sent(router, READ1_BODY, content_type=kind) is read
