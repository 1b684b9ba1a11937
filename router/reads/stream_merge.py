"""The streams of a list's single reads become one stream: one id, indices counted through, one usage, one `[DONE]`."""

from __future__ import annotations

import re

import msgspec

from router.reads.detect import Read
from router.reads.jsonspan import replace
from router.reads.merge import sum_usage, with_index

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DATA = re.compile(rb"^data: ?")


class _Event(msgspec.Struct):
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    created: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    index: int | None = None


class _Choice(msgspec.Struct):
    index: int = 0


_event = msgspec.json.Decoder(_Event)
_choice = msgspec.json.Decoder(_Choice)


class StreamMerger:
    """Takes the bytes of one sub-stream after another, cut anywhere, and gives the bytes of the joined stream.

    Events other than the ones it must change pass as they are, each as soon as it is complete.
    """

    def __init__(self, read: Read) -> None:
        self._n = read.n
        self._array = read.prompts is not None and read.prompts.shape == "array"
        self._answer = 0
        self._pending = b""
        self._same: dict[str, bytes] = {}
        self._usages: list[bytes] = []
        self._usage_event: tuple[bytes, bytes] | None = None
        self._done: bytes | None = None

    def feed(self, data: bytes) -> bytes:
        """Bytes of the current sub-stream; what of the joined stream is ready."""
        self._pending += data
        out, at = [], 0
        for end in _END.finditer(self._pending):
            out.append(self._event(self._pending[at : end.start()], end.group()))
            at = end.end()
        self._pending = self._pending[at:]
        return b"".join(out)

    def next_answer(self) -> bytes:
        """The sub-stream ended, the next one begins."""
        rest, self._pending = self._pending, b""
        self._answer += 1
        return self._event(rest, b"") if rest else b""

    def finish(self) -> bytes:
        """All have ended: the summed usage and the one `[DONE]`, where the engine sends them."""
        out = b""
        if self._usage_event is not None:
            before, end = self._usage_event
            out += b"data: " + replace(before, {"usage": sum_usage(self._usages)}) + end
        if self._done is not None:
            out += self._done
        return out

    def _event(self, event: bytes, end: bytes) -> bytes:
        prefix = _DATA.match(event)
        if prefix is None:
            return event + end
        payload = event[prefix.end() :]
        if payload.strip() == b"[DONE]":
            self._done = event + (end or b"\n\n")
            return b""
        try:
            found = _event.decode(payload)
        except msgspec.DecodeError:
            return event + end
        if self._array:
            if found.index is not None:
                payload = replace(payload, {"index": b"%d" % self._answer})
            return prefix.group() + payload + end
        if found.choices is None:
            return event + end
        for name, value in (("id", found.id), ("created", found.created)):
            if value is not msgspec.UNSET:
                self._same.setdefault(name, bytes(value))
        values = dict(self._same)
        if not found.choices and found.usage is not msgspec.UNSET:
            self._usages.append(bytes(found.usage))
            self._usage_event = (replace(payload, values), end)
            return b""
        choices = []
        for raw in found.choices:
            text = bytes(raw)
            choices.append(with_index(text, self._answer * self._n + _choice.decode(text).index))
        values["choices"] = b"[" + b",".join(choices) + b"]"
        return prefix.group() + replace(payload, values) + end
