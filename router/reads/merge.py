"""Answers to single reads become the answer to their list. Each choice keeps its JSON text; only `index` changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from router.reads.detect import Read
from router.reads.jsonspan import append, replace, span

PER_REQUEST = frozenset({"metrics", "timings", "time_info", "timing"})
"""Members that describe one request; of several they would describe none."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array = msgspec.json.Decoder(list[msgspec.Raw])


class MergeError(ValueError):
    """An answer is not what an engine answers to a read."""


def merge(read: Read, answers: Sequence[bytes]) -> bytes:
    """One answer: choices in the prompts' order with `index` counted through, `usage` summed, the rest from the first.

    Raises:
        MergeError
    """
    try:
        if read.prompts is not None and read.prompts.shape == "array":
            return _merge_array(answers)
        return _merge_choices(answers)
    except msgspec.DecodeError as error:
        raise MergeError(f"an answer is not the JSON that was expected: {error}") from None


def _merge_choices(answers: Sequence[bytes]) -> bytes:
    envelopes = [_object.decode(answer) for answer in answers]
    choices: list[bytes] = []
    for envelope in envelopes:
        if "choices" not in envelope:
            raise MergeError("an answer has no choices")
        for choice in _array.decode(envelope["choices"]):
            choices.append(with_index(bytes(choice), len(choices)))
    out: list[bytes] = []
    for name, raw in envelopes[0].items():
        if name in PER_REQUEST:
            continue
        if name == "choices":
            value = b"[" + b",".join(choices) + b"]"
        elif name == "usage":
            value = sum_usage([bytes(envelope["usage"]) for envelope in envelopes if "usage" in envelope])
        else:
            value = bytes(raw)
        out.append(msgspec.json.encode(name) + b":" + value)
    return b"{" + b",".join(out) + b"}"


def _merge_array(answers: Sequence[bytes]) -> bytes:
    items: list[bytes] = []
    for answer in answers:
        answer = answer.strip()
        each = [bytes(item) for item in _array.decode(answer)] if answer.startswith(b"[") else [answer]
        for item in each:
            _object.decode(item)
            items.append(replace(item, {"index": b"%d" % len(items)}))
    return b"[" + b",".join(items) + b"]"


def with_index(choice: bytes, index: int) -> bytes:
    """The choice's text with another `index`."""
    text = b"%d" % index
    return replace(choice, {"index": text}) if span(choice, "index") else append(choice, b'"index":' + text)


def sum_usage(usages: Sequence[bytes]) -> bytes:
    """The sum of usage objects: numbers added, nested details too; what is null or missing in all stays so."""
    total: Any = None
    for usage in usages:
        total = _add(total, msgspec.json.decode(usage))
    return msgspec.json.encode(total)


def _add(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, dict) and isinstance(b, dict):
        return {key: _add(a.get(key), b.get(key)) for key in {**a, **b}}
    if isinstance(a, list) and isinstance(b, list):
        return a
    if isinstance(a, int | float) and isinstance(b, int | float) and not isinstance(a, bool):
        return a + b
    return a
