"""A small strict HTTP/1.1 reader for the scripted upstream and the raw client: the ambiguous is a violation."""

from __future__ import annotations

import re

Fields = list[tuple[bytes, bytes]]

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*\Z")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])\Z")
_SIZE = re.compile(rb"[0-9a-fA-F]{1,16}\Z")


class Violation(Exception):
    """Bytes that are not strictly HTTP/1.1."""


def parse_fields(head: bytes) -> tuple[bytes, Fields]:
    """The start line and the header fields (names as they came) of a head that ends with an empty line."""
    start, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    fields: Fields = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.match(name):
            raise Violation(f"header line {line[:80]!r}")
        value = value.strip(b" \t")
        if not _VALUE.match(value):
            raise Violation(f"header value {value[:80]!r}")
        fields.append((name, value))
    return start, fields


def values(fields: Fields, name: str) -> list[bytes]:
    """All values of a field, in their order."""
    wanted = name.lower().encode()
    return [value for own, value in fields if own.lower() == wanted]


def request_line(line: bytes) -> tuple[bytes, bytes, bytes]:
    """Method, target and minor version."""
    match = _REQUEST_LINE.match(line)
    if match is None:
        raise Violation(f"request line {line[:80]!r}")
    return match[1], match[2], match[3]


def framing(fields: Fields) -> tuple[int | None, bool]:
    """Content-Length and whether the body is chunked. Both, doubled or odd ones are a violation."""
    lengths, codings = values(fields, "content-length"), values(fields, "transfer-encoding")
    if len(lengths) + len(codings) > 1:
        raise Violation(f"framing by {lengths} and {codings}")
    if codings and codings[0].lower() != b"chunked":
        raise Violation(f"transfer coding {codings[0]!r}")
    if lengths and not lengths[0].isdigit():
        raise Violation(f"content length {lengths[0]!r}")
    return (int(lengths[0]) if lengths else None), bool(codings)


class BodyReader:
    """Takes a body off the wire: `length` bytes, chunks, or (with neither) everything up to the close.

    Chunk extensions are a violation unless `extensions` says that the sender may use them.
    """

    def __init__(self, length: int | None, chunked: bool, *, extensions: bool = False) -> None:
        self.done = length == 0
        self.to_close = length is None and not chunked
        self.trailers = b""
        self._left = 0 if chunked else length
        self._chunked = chunked
        self._state = "size"
        self._held = b""
        self._extensions = extensions

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """The decoded bytes in `data`, and what is left of it behind the body's end."""
        if self.done:
            return b"", data
        if self.to_close:
            return data, b""
        if not self._chunked:
            assert self._left is not None
            body, rest = data[: self._left], data[self._left :]
            self._left -= len(body)
            self.done = self._left == 0
            return body, rest
        return self._feed_chunks(data)

    def _feed_chunks(self, data: bytes) -> tuple[bytes, bytes]:
        data = self._held + data if self._held else data
        self._held = b""
        at = 0
        out: list[bytes] = []
        while at < len(data):
            if self._state == "data":
                assert self._left is not None
                piece = data[at : at + self._left]
                out.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._state = "gap"
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                if len(data) - at > 4096:
                    raise Violation("a chunk line without an end")
                self._held = data[at:]
                break
            line = data[at:end]
            at = end + 2
            if self._state == "gap":
                if line:
                    raise Violation(f"{line[:40]!r} behind a chunk")
                self._state = "size"
            elif self._state == "size":
                if self._extensions:
                    line, _, extension = line.partition(b";")
                    if not _VALUE.match(extension):
                        raise Violation(f"chunk extension {extension[:40]!r}")
                if not _SIZE.match(line):
                    raise Violation(f"chunk size {line[:40]!r}")
                self._left = int(line, 16)
                self._state = "data" if self._left else "trailer"
            elif line:
                self.trailers += line + b"\r\n"
            else:
                self.done = True
                break
        return b"".join(out), data[at:] if self.done else b""
