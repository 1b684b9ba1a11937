"""What an answer says of its tokens, read from its bytes as they pass.

Only the beginning and the end are kept, a few kilobytes each: usage stands in the last members of a JSON answer and in
the last events of a stream, and, in Anthropic's streams, in the first.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import msgspec

from router.reads.jsonspan import value_end

HEAD = 4 * 1024
TAIL = 16 * 1024

_decoder = msgspec.json.Decoder(dict[str, Any])


class Usage(NamedTuple):
    """Token counts; None is what the engine did not say."""

    prompt: int | None
    cached: int | None
    completion: int | None


class UsageReader:
    """Collects the ends of one answer."""

    __slots__ = ("_head", "_pieces", "_size")

    def __init__(self) -> None:
        self._head = b""
        self._pieces: deque[bytes] = deque()
        self._size = 0

    def feed(self, data: bytes) -> None:
        """The next bytes of the answer."""
        if len(self._head) < HEAD:
            self._head += data[: HEAD - len(self._head)]
        self._pieces.append(data)
        self._size += len(data)
        while self._size - len(self._pieces[0]) >= TAIL:
            self._size -= len(self._pieces.popleft())

    def usage(self) -> Usage | None:
        """The last usage object of the answer, completed from the first."""
        last = _last_usage(b"".join(self._pieces)[-TAIL:])
        first = _last_usage(self._head)
        if last is None or (last.prompt is None and first is not None):
            return first if last is None else Usage(first.prompt, first.cached, last.completion) if first else last
        return last


def _last_usage(text: bytes) -> Usage | None:
    at = len(text)
    while (at := text.rfind(b'"usage"', 0, at)) >= 0:
        start = at + 7
        while start < len(text) and text[start] in b" \t\r\n:":
            start += 1
        if text[start : start + 1] == b"{":
            try:
                return _usage(_decoder.decode(text[start : value_end(text, start)]))
            except msgspec.DecodeError:
                pass
    return None


def _usage(found: dict[str, Any]) -> Usage:
    """OpenAI's names, the Responses', or Anthropic's (whose input tokens leave out the cached ones)."""
    completion = _int(found.get("completion_tokens", found.get("output_tokens")))
    if "cache_read_input_tokens" in found:
        read = _int(found["cache_read_input_tokens"])
        parts = [_int(found.get(name)) or 0 for name in ("input_tokens", "cache_creation_input_tokens")]
        return Usage(sum(parts) + (read or 0), read, completion)
    prompt = _int(found.get("prompt_tokens", found.get("input_tokens")))
    details = found.get("prompt_tokens_details", found.get("input_tokens_details"))
    return Usage(prompt, _int(details.get("cached_tokens")) if isinstance(details, dict) else None, completion)


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
