"""Content codings are undone within a limit."""

from __future__ import annotations

import gzip
import resource
import zlib

import brotli
import pytest
import zstandard

from router.reads.coding import CodingError, decode

BODY = b'{"prompt":"' + b"word " * 4000 + b'"}'
LIMIT = 64 * 1024 * 1024


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        (b"gzip", gzip.compress(BODY)),
        (b"X-Gzip", gzip.compress(BODY)),
        (b"gzip", gzip.compress(BODY[:100]) + gzip.compress(BODY[100:])),
        (b"deflate", zlib.compress(BODY)),
        (b"deflate", zlib.compress(BODY, wbits=-15)),
        (b"br", brotli.compress(BODY)),
        (b"zstd", zstandard.compress(BODY)),
        (b"identity", BODY),
        (b"gzip, br", brotli.compress(gzip.compress(BODY))),
    ],
)
def test_each_coding(coding: bytes, packed: bytes) -> None:
    assert decode(packed, coding, LIMIT) == BODY


def test_a_body_larger_than_is_trusted_is_unpacked_whole() -> None:
    body = bytes(range(256)) * 40_000
    assert decode(gzip.compress(body, 1), b"gzip", LIMIT) == body


@pytest.mark.parametrize(
    ("coding", "packed", "reason"),
    [
        (b"compress", b"x", "encoding"),
        (b"gzip, snappy", b"x", "encoding"),
        (b"gzip", b"no gzip", "corrupt"),
        (b"gzip", gzip.compress(BODY)[:-20], "corrupt"),
        (b"deflate", b"\x00", "corrupt"),
        (b"br", brotli.compress(BODY)[:-5], "corrupt"),
        (b"br", b"\xff\xff\xff", "corrupt"),
        (b"zstd", b"no zstd frame", "corrupt"),
    ],
)
def test_what_cannot_be_undone_says_why(coding: bytes, packed: bytes, reason: str) -> None:
    with pytest.raises(CodingError) as caught:
        decode(packed, coding, LIMIT)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "pack", [lambda b: (b"gzip", gzip.compress(b)), lambda b: (b"br", brotli.compress(b, quality=1))]
)
def test_a_bomb_stops_at_the_limit_and_costs_no_memory(pack: object) -> None:
    """B03"""
    coding, bomb = pack(bytes(256 * 1024 * 1024))  # type: ignore[operator]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CodingError) as caught:
        decode(bomb, coding, LIMIT)
    assert caught.value.reason == "too_large"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_a_small_limit_holds_for_small_bodies() -> None:
    with pytest.raises(CodingError, match="more than 10 bytes"):
        decode(gzip.compress(BODY), b"gzip", 10)
