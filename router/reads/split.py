"""A list read becomes single reads, and their answers one answer. Nothing is re-serialised: values are spliced in.

`sub_bodies` makes the requests, `merge` (merge.py) and `StreamMerger` (stream_merge.py) the answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from router.reads.detect import Read
from router.reads.jsonspan import append, replace
from router.reads.merge import MergeError, merge
from router.reads.stream_merge import StreamMerger

__all__ = ["MergeError", "StreamMerger", "append_members", "merge", "sub_bodies"]


def sub_bodies(body: bytes, read: Read) -> Iterator[bytes]:
    """One body for each prompt: the original bytes (in UTF-8) with only the prompt's value replaced.

    Args:
        body: the request as it came; the read already holds what is needed of it.
    """
    prompts = read.prompts
    if prompts is None:
        yield body
        return
    for number, item in enumerate(prompts.items):
        values = {prompts.key: item}
        for name, items in prompts.per_prompt.items():
            values[name] = items[number]
        yield replace(prompts.text, values)


def append_members(body: bytes, members: bytes) -> bytes:
    """Splice `"name":value` members before the final brace; a body that is no UTF-8 object stays as it is."""
    return append(body, members)
