"""Is this body a read? Bytes in, a `Read` or None out; it never raises.

Cheap first: a body that holds none of the names that its dialect needs cannot be a read. Only then it is parsed, and of
the parse only the few members that decide are kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from router.reads.dialects import Dialect, Shape
from router.reads.jsonspan import members as spans
from router.reads.values import as_int, is_true

_LONGEST_NUMBER = 4300
"""Digits above which the engines' parser (CPython's) refuses an integer."""

ENDS = 2048

_COMMON = ("model", "stream", "n")


@dataclass(frozen=True, slots=True)
class Prompts:
    """A list of prompts that is to be split.

    Attributes:
        text: the body in UTF-8, in which the values stand.
        key: the member that holds the list.
        items: each prompt's own JSON text.
        per_prompt: further members with a list of as many entries, each as JSON text.
        shape: how the engine answers a list.
    """

    text: bytes
    key: str
    items: tuple[bytes, ...]
    per_prompt: Mapping[str, tuple[bytes, ...]]
    shape: Shape

    @property
    def count(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class Read:
    """A scoring request.

    Attributes:
        route: the dialect's path.
        stream: the answer is a stream of events.
        whole: it runs several engine reads inside and cannot be split.
        prompts: set only when there are at least two, each to be sent alone.
        n: choices for each prompt.
    """

    route: str
    model: str | None
    stream: bool
    whole: bool = False
    prompts: Prompts | None = None
    n: int = 1


class _Model(msgspec.Struct):
    model: Any = None


_model_decoder = msgspec.json.Decoder(_Model)
_any_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decoders: dict[str, msgspec.json.Decoder[Any]] = {}
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_ids_decoder = msgspec.json.Decoder(list[int])


def detect(dialect: Dialect, body: bytes) -> Read | None:
    """The read that this body asks for, or None: not a read, or not to be parsed (the engine will say why)."""
    if not dialect.scores or (not dialect.whole and not _may_be_read(dialect, body)):
        return None
    try:
        return _parse(dialect, body)
    except (ValueError, RecursionError, LookupError):  # all that parsers of JSON and of Unicode raise
        return None


def model_of(body: bytes) -> str | None:
    """The body's `model`, or None where it is missing or unreadable."""
    try:
        model = _model_decoder.decode(body).model
    except (ValueError, RecursionError):
        return None
    return model if isinstance(model, str) else None


def _may_be_read(dialect: Dialect, body: bytes) -> bool:
    # Members stand before or behind a long prompt, so the ends are searched first.
    ends = body[:ENDS] + body[-ENDS:] if len(body) > 4 * ENDS else body
    for group in dialect.names:
        for name in group:
            if name in ends or (ends is not body and name in body):
                break
        else:
            # An escaped name, or one in a wide encoding, hides from a search. (One byte is found far faster than two.)
            return (b"\\" in body and b"\\u" in body) or b"\0" in body[:4]
    return True


def _parse(dialect: Dialect, body: bytes) -> Read | None:
    text = body
    try:
        fields = _decode(dialect, text)
    except msgspec.ValidationError:
        return None  # well-formed, but no object
    except msgspec.DecodeError:
        text = _utf8(body)
        try:
            fields = _decode(dialect, text)
        except msgspec.DecodeError:
            fields = _decode_leniently(text)
    if not dialect.whole:
        if not dialect.judge(fields):
            return None
        _refuse_what_engines_refuse(text)
    model = fields.get("model")
    stream = fields.get("stream")
    return Read(
        route=dialect.route,
        model=model if isinstance(model, str) else None,
        stream=dialect.streams if stream is None else is_true(stream),
        whole=dialect.whole,
        prompts=_prompts(dialect, fields, text) if dialect.prompts else None,
        n=max(as_int(fields.get("n")) or 1, 1),
    )


def _decode(dialect: Dialect, text: bytes) -> dict[str, Any]:
    decoder = _decoders.get(dialect.route)
    if decoder is None:
        plain = {*_COMMON, *dialect.fields} - set(dialect.prompts)
        raw = {*dialect.prompts, *dialect.per_prompt} - plain
        struct = msgspec.defstruct(
            "Fields",
            [(name, Any, msgspec.UNSET) for name in sorted(plain)]
            + [(name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in sorted(raw)],
        )
        decoder = _decoders[dialect.route] = msgspec.json.Decoder(struct)
    found = decoder.decode(text)
    return {name: value for name in found.__struct_fields__ if (value := getattr(found, name)) is not msgspec.UNSET}


def _decode_leniently(text: bytes) -> dict[str, Any]:
    """What the engines' parser takes and msgspec does not: NaN and Infinity, lone surrogates."""
    found = json.loads(text.decode("utf-8", "surrogatepass"))
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _utf8(body: bytes) -> bytes:
    """The body in UTF-8 without a byte order mark, as Python's `json` would read it."""
    encoding = json.detect_encoding(body)
    if encoding == "utf-8":
        return body
    return body.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")


def _refuse_what_engines_refuse(text: bytes) -> None:
    """Bad UTF-8 and endless numbers in members that the partial parse skipped: the engine answers those with 400.

    Raises:
        ValueError
    """
    if not text.isascii():
        text.decode("utf-8", "surrogatepass")
    for at in range(_LONGEST_NUMBER - 1, len(text), _LONGEST_NUMBER):  # a longer run of digits covers one of these
        if 0x30 <= text[at] <= 0x39:
            start = end = at
            while start > 0 and 0x30 <= text[start - 1] <= 0x39:
                start -= 1
            while end < len(text) and 0x30 <= text[end] <= 0x39:
                end += 1
            if end - start > _LONGEST_NUMBER:
                json.loads(text)
                return


def _prompts(dialect: Dialect, fields: Mapping[str, Any], text: bytes) -> Prompts | None:
    for key in dialect.prompts:
        value = fields.get(key)
        if value is None:
            continue
        if not isinstance(value, msgspec.Raw):
            value = _raw_value(text, key)
        items = _list_items(bytes(value))
        if items is None or len(items) < 2:
            return None
        return Prompts(text, key, items, _per_prompt(dialect, fields, text, len(items)), dialect.shape)
    return None


def _list_items(value: bytes) -> tuple[bytes, ...] | None:
    """Each prompt's JSON text if all are strings, or all are non-empty lists of integers."""
    if not value.startswith(b"[") or value[1:50].lstrip()[:1] not in (b'"', b"["):
        return None  # not a list, or one prompt as token ids
    try:
        items = tuple(bytes(item) for item in _items_decoder.decode(value))
        if all(item.startswith(b'"') for item in items):
            return items
        if all(item.startswith(b"[") and _ids_decoder.decode(item) for item in items):
            return items
    except msgspec.DecodeError:
        pass
    return None


def _per_prompt(dialect: Dialect, fields: Mapping[str, Any], text: bytes, count: int) -> dict[str, tuple[bytes, ...]]:
    found: dict[str, tuple[bytes, ...]] = {}
    for name in dialect.per_prompt:
        value = fields.get(name)
        if isinstance(value, msgspec.Raw):
            raw = bytes(value)
        elif isinstance(value, list):
            raw = _raw_value(text, name)
        else:
            continue
        if raw.startswith(b"["):
            items = tuple(bytes(item) for item in _items_decoder.decode(raw))
            if len(items) == count:
                found[name] = items
    return found


def _raw_value(text: bytes, name: str) -> bytes:
    value = b""
    for key, start, end in spans(text):
        if key == name:
            value = text[start:end]
    return value
