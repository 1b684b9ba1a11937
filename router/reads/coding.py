"""Content codings of request bodies, undone within a limit, for inspection only."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from typing import Literal

import brotli
import zstandard

STEP = 64 * 1024
TRUSTED = 4 * 1024 * 1024

Unpack = Callable[[bytes], Iterator[bytes]]


class CodingError(ValueError):
    """The body cannot be inspected.

    Attributes:
        reason: `encoding` (a coding that is not known), `too_large` (over the limit once unpacked), `corrupt`.
    """

    def __init__(self, reason: Literal["encoding", "too_large", "corrupt"], message: str) -> None:
        super().__init__(message)
        self.reason = reason


def decode(body: bytes, coding: bytes, limit: int) -> bytes:
    """The body without its codings (`gzip`, `deflate`, `br`, `zstd`, `identity`, also several in a row).

    Args:
        limit: bytes of output; a bomb stops there.

    Raises:
        CodingError
    """
    names = [name.strip().lower() for name in coding.split(b",")]
    if any(name not in _CODINGS for name in names):
        raise CodingError("encoding", f"content coding {coding.decode('latin-1')!r} is not known")
    try:
        for name in reversed(names):
            body = _bounded(_CODINGS[name], body, limit)
    except (zlib.error, brotli.error, zstandard.ZstdError, EOFError) as error:
        raise CodingError("corrupt", str(error)) from None
    return body


def _bounded(unpack: Unpack, body: bytes, limit: int) -> bytes:
    """Unpack; what grows large is first only measured, so that a bomb costs no memory."""
    out, size = [], 0
    pieces = unpack(body)
    for piece in pieces:
        size += len(piece)
        out.append(piece)
        if size > TRUSTED:
            break
    else:
        if size <= limit:
            return b"".join(out)
    out.clear()
    for piece in pieces:
        size += len(piece)
        if size > limit:
            break
    if size > limit:
        raise CodingError("too_large", f"the body unpacks to more than {limit} bytes")
    return b"".join(unpack(body))


def _zlib(body: bytes, window: int) -> Iterator[bytes]:
    while body:  # gzip members may follow one another
        unpacker = zlib.decompressobj(window)
        yield unpacker.decompress(body, STEP)
        while not unpacker.eof:
            if not unpacker.unconsumed_tail:
                raise EOFError("the compressed body is cut short")
            yield unpacker.decompress(unpacker.unconsumed_tail, STEP)
        body = unpacker.unused_data if window > 15 else b""


def _gzip(body: bytes) -> Iterator[bytes]:
    return _zlib(body, 31)


def _deflate(body: bytes) -> Iterator[bytes]:
    """With zlib's wrapper as the standard says, or bare as some clients send it."""
    wrapped = len(body) >= 2 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return _zlib(body, 15 if wrapped else -15)


def _brotli(body: bytes) -> Iterator[bytes]:
    unpacker = brotli.Decompressor()
    yield unpacker.process(body, output_buffer_limit=STEP)
    while not unpacker.is_finished():
        if unpacker.can_accept_more_data():
            raise EOFError("the compressed body is cut short")
        yield unpacker.process(b"", output_buffer_limit=STEP)


def _zstd(body: bytes) -> Iterator[bytes]:
    with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
        io.BytesIO(body), read_across_frames=True
    ) as reader:
        while piece := reader.read(STEP):
            yield piece


def _identity(body: bytes) -> Iterator[bytes]:
    yield body


_CODINGS: dict[bytes, Unpack] = {
    b"gzip": _gzip,
    b"x-gzip": _gzip,
    b"deflate": _deflate,
    b"br": _brotli,
    b"zstd": _zstd,
    b"identity": _identity,
}
