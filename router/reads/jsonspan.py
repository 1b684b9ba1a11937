"""Where the members of a JSON object stand in its bytes, so that one value can be replaced and the rest left alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_COLON = re.compile(rb"\s*:\s*")
_SCALAR = re.compile(rb"[^\s,}\]]+")


def members(text: bytes) -> Iterator[tuple[str, int, int]]:
    """The top-level members of a well-formed JSON object in UTF-8: name, and start and end of the value's text."""
    at = text.find(b"{") + 1
    while True:
        key = _TOKEN.search(text, at)
        if key is None or text[key.start()] != 0x22:
            return
        colon = _COLON.match(text, key.end())
        if colon is None:
            return
        start = colon.end()
        end = value_end(text, start)
        raw = text[key.start() : key.end()]
        name = json.loads(raw) if b"\\" in raw else raw[1:-1].decode("utf-8", "surrogatepass")
        yield name, start, end
        at = end


def value_end(text: bytes, start: int) -> int:
    """Where the JSON value that begins at `start` ends."""
    first = text[start]
    if first not in b'{["':
        scalar = _SCALAR.match(text, start)
        return scalar.end() if scalar is not None else start
    depth = 0
    for token in _TOKEN.finditer(text, start):
        mark = text[token.start()]
        if mark in b"{[":
            depth += 1
        elif mark in b"}]":
            depth -= 1
        if depth <= 0:
            return token.end()
    return len(text)


def span(text: bytes, name: str) -> tuple[int, int] | None:
    """The value of the last member of that name: start and end."""
    found = None
    for key, start, end in members(text):
        if key == name:
            found = (start, end)
    return found


def replace(text: bytes, values: dict[str, bytes]) -> bytes:
    """The object with the (last) values of these members replaced, every other byte kept. Absent ones are not added."""
    spans = {key: (start, end) for key, start, end in members(text) if key in values}
    out: list[bytes] = []
    at = 0
    for key, (start, end) in sorted(spans.items(), key=lambda item: item[1]):
        out += (text[at:start], values[key])
        at = end
    out.append(text[at:])
    return b"".join(out)


def append(text: bytes, added: bytes) -> bytes:
    """Put members before the final brace. Text that is not a plain UTF-8 object is given back as it is.

    Args:
        added: `"name":value`, several separated by commas.
    """
    end = len(text.rstrip(b" \t\r\n"))
    if not added or not end or text[end - 1] != 0x7D or b"\0" in text[:4]:
        return text
    before = text[: end - 1].rstrip(b" \t\r\n")
    comma = b"" if before.endswith(b"{") and before.lstrip(b"\xef\xbb\xbf \t\r\n") == b"{" else b","
    return text[: end - 1] + comma + added + text[end - 1 :]
