"""A list becomes single bodies, spliced; answers become one, each choice's text kept."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.reads.detect import Read, detect
from router.reads.dialects import ROUTES
from router.reads.jsonspan import append, members, replace, span, value_end
from router.reads.merge import sum_usage, with_index
from router.reads.split import MergeError, StreamMerger, append_members, merge, sub_bodies


def read_of(body: bytes, route: str = "/v1/completions") -> Read:
    read = detect(ROUTES[route], body)
    assert read is not None
    return read


TWO = read_of(b'{"prompt":["a","b"],"max_tokens":1,"logprobs":1}')
TWO_OF_TWO = read_of(b'{"prompt":["a","b"],"max_tokens":1,"logprobs":1,"n":2}')


def test_only_the_prompt_s_value_changes() -> None:
    body = (
        b'{ "seed":12345678901234567890,"prompt":["old"], "x":{"prompt":["a"]},"t":1.0, '
        b'"pr\\u006fmpt" : [ "a\\"b" , "\\u00e9]" ] ,"max_tokens":1,"logprobs":1e0 }'
    )
    first, second = sub_bodies(body, read_of(body))
    assert first == body.replace(b'[ "a\\"b" , "\\u00e9]" ]', b'"a\\"b"')
    assert second == body.replace(b'[ "a\\"b" , "\\u00e9]" ]', b'"\\u00e9]"')


def test_token_ids_are_spliced_as_they_stand() -> None:
    body = b'{"prompt":[[1, 2],[3]],"max_tokens":1,"logprobs":1}'
    assert list(sub_bodies(body, read_of(body))) == [
        b'{"prompt":[1, 2],"max_tokens":1,"logprobs":1}',
        b'{"prompt":[3],"max_tokens":1,"logprobs":1}',
    ]


def test_a_wide_encoding_is_sent_as_utf_8() -> None:
    body = '{"prompt":["é","b"],"max_tokens":1,"logprobs":1}'
    subs = list(sub_bodies(body.encode("utf-16"), read_of(body.encode("utf-16"))))
    assert subs[0] == '{"prompt":"é","max_tokens":1,"logprobs":1}'.encode()


def test_sglang_s_lists_go_to_their_prompts() -> None:
    body = (
        b'{"input_ids":[[1],[2]],"sampling_params":[{"max_new_tokens":1},{"max_new_tokens":0}],'
        b'"return_logprob":[true,false],"top_logprobs_num":5,"rid":["a","b","c"]}'
    )
    assert list(sub_bodies(body, read_of(body, "/generate"))) == [
        b'{"input_ids":[1],"sampling_params":{"max_new_tokens":1},"return_logprob":true,"top_logprobs_num":5,"rid":["a","b","c"]}',
        b'{"input_ids":[2],"sampling_params":{"max_new_tokens":0},"return_logprob":false,"top_logprobs_num":5,"rid":["a","b","c"]}',
    ]


def test_what_is_not_split_goes_as_it_came() -> None:
    body = b'{"prompt":"x","max_tokens":1,"logprobs":1}'
    assert list(sub_bodies(body, read_of(body))) == [body]


def test_choices_keep_their_text_and_are_counted_through() -> None:
    """L01, L05, L07, L09"""
    answers = [
        b'{"id":"r0","created":1,"choices":[{"text":"a","logprobs":{"text_offset":[0, 3],"token_logprobs":[null,-1.50]},'
        b'"index":0},{"index": 1}],"usage":{"prompt_tokens":3},"x":[1],"timings":{"a":1},"metrics":null}',
        b'{"id":"r1","choices":[{"index":0,"t":1e2},{"index":1}],"usage":{"prompt_tokens":5}}',
    ]
    assert merge(TWO_OF_TWO, answers) == (
        b'{"id":"r0","created":1,"choices":[{"text":"a","logprobs":{"text_offset":[0, 3],"token_logprobs":[null,-1.50]},'
        b'"index":0},{"index": 1},{"index":2,"t":1e2},{"index":3}],"usage":{"prompt_tokens":8},"x":[1]}'
    )


@pytest.mark.parametrize(
    ("usages", "total"),
    [
        (
            [
                {"prompt_tokens": 3, "total_tokens": 4, "prompt_tokens_details": {"cached_tokens": 0}},
                {"prompt_tokens": 5, "total_tokens": 6, "prompt_tokens_details": {"cached_tokens": 16}},
            ],
            {"prompt_tokens": 8, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 16}},
        ),
        ([{"d": None}, {"d": None}], {"d": None}),
        ([{"d": None}, {"d": {"c": 2}}], {"d": {"c": 2}}),
        ([{"d": {"c": 2}}, {}], {"d": {"c": 2}}),
        ([{"l": [1], "s": "x", "b": True}, {"l": [2], "s": "y", "b": True}], {"l": [1], "s": "x", "b": True}),
    ],
)
def test_usage_is_summed(usages: list[object], total: object) -> None:
    """L04"""
    assert json.loads(sum_usage([json.dumps(usage).encode() for usage in usages])) == total


def test_answers_without_usage_have_none() -> None:
    assert merge(TWO, [b'{"choices":[{"index":0}]}', b'{"choices":[{}]}']) == b'{"choices":[{"index":0},{"index":1}]}'


@pytest.mark.parametrize("answer", [b"[]", b"no json", b'{"id":1}', b'{"choices":{}}'])
def test_answers_of_another_shape_are_refused(answer: bytes) -> None:
    with pytest.raises(MergeError):
        merge(TWO, [b'{"choices":[{"index":0}]}', answer])


def test_arrays_are_joined() -> None:
    read = read_of(b'{"prompt":["a","b"],"n_predict":1,"n_probs":1}', "/completion")
    assert merge(read, [b'[{"index":0,"content":"a"}]', b' {"index":0,"content":"b"}']) == (
        b'[{"index":0,"content":"a"},{"index":1,"content":"b"}]'
    )
    with pytest.raises(MergeError):
        merge(read, [b"[1]"])


def joined(read: Read, streams: list[bytes], cut: Callable[[bytes], list[bytes]]) -> bytes:
    merger = StreamMerger(read)
    out = b""
    for stream in streams:
        for piece in cut(stream):
            out += merger.feed(piece)
        out += merger.next_answer()
    return out + merger.finish()


STREAMS = [
    b': hi\n\ndata: {"id":"a","created":7,"choices":[{"index":0,"text":"x \\" y"}],"usage":null}\n\n'
    b'data: {"id":"a","created":7,"choices":[{"index":1}]}\n\n'
    b'data: {"id":"a","created":7,"choices":[],"usage":{"prompt_tokens":3}}\n\ndata: [DONE]\n\n',
    b'data: {"id":"b","created":8,"choices":[{"index":0}]}\n\nevent: note\ndata: {"k":1}\n\ndata: {"error":{"code":1}}\n\n'
    b'data: {"id":"b","created":8,"choices":[],"usage":{"prompt_tokens":5}}\n\ndata: [DONE]\n\n',
]
JOINED = (
    b': hi\n\ndata: {"id":"a","created":7,"choices":[{"index":0,"text":"x \\" y"}],"usage":null}\n\n'
    b'data: {"id":"a","created":7,"choices":[{"index":1}]}\n\n'
    b'data: {"id":"a","created":7,"choices":[{"index":2}]}\n\nevent: note\ndata: {"k":1}\n\ndata: {"error":{"code":1}}\n\n'
    b'data: {"id":"a","created":7,"choices":[],"usage":{"prompt_tokens":8}}\n\ndata: [DONE]\n\n'
)


@given(st.lists(st.integers(1, 300), max_size=12))
def test_streams_are_joined_wherever_they_are_cut(cuts: list[int]) -> None:
    """L10, S01"""
    places = sorted(cuts)

    def cut(stream: bytes) -> list[bytes]:
        edges = [0, *(at for at in places if at < len(stream)), len(stream)]
        return [stream[a:b] for a, b in itertools.pairwise(edges)]

    assert joined(TWO_OF_TWO, STREAMS, cut) == JOINED


def test_a_stream_s_own_framing_is_kept() -> None:
    crlf = [stream.replace(b"\n", b"\r\n") for stream in STREAMS]
    assert joined(TWO_OF_TWO, crlf, lambda stream: [stream]) == JOINED.replace(b"\n", b"\r\n")


def test_a_stream_without_done_gets_none_and_a_torn_event_passes() -> None:
    streams = [b'data:{"choices":[{"index":0}]}\n\ndata: {"cho', b"data: [DONE]"]
    assert joined(TWO, streams, lambda s: [s]) == b'data:{"choices":[{"index":0}]}\n\ndata: {"chodata: [DONE]\n\n'


def test_array_streams_count_the_prompts() -> None:
    read = read_of(b'{"prompt":["a","b"],"n_predict":1,"n_probs":1,"stream":true}', "/completion")
    streams = [b'data: {"index":0,"content":"x"}\n\n', b'data: {"index":0}\n\ndata: {"content":"y"}\n\n']
    assert joined(read, streams, lambda s: [s]) == (
        b'data: {"index":0,"content":"x"}\n\ndata: {"index":1}\n\ndata: {"content":"y"}\n\n'
    )


@pytest.mark.parametrize(
    ("body", "after"),
    [
        (b'{"a":1}', b'{"a":1,"k":false}'),
        (b'{"a":1 } \r\n', b'{"a":1 ,"k":false} \r\n'),
        (b"{}", b'{"k":false}'),
        (b"{ }", b'{ "k":false}'),
        (b'\xef\xbb\xbf{"a":1}', b'\xef\xbb\xbf{"a":1,"k":false}'),
        ('{"a":1}'.encode("utf-16"), '{"a":1}'.encode("utf-16")),
        (b"[1]", b"[1]"),
        (b"", b""),
    ],
)
def test_members_are_spliced_before_the_last_brace(body: bytes, after: bytes) -> None:
    assert append_members(body, b'"k":false') == after
    assert append(body, b"") is body


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=6), json_values, max_size=6), st.booleans(), st.sampled_from([None, 1]))
def test_spans_are_those_of_the_members(found: dict[str, object], ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(found, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    assert {name: json.loads(text[start:end]) for name, start, end in members(text)} == found
    for name in found:
        changed = replace(text, {name: b'"new"'})
        assert json.loads(changed) == {**found, name: "new"}


def test_spans_at_the_edges() -> None:
    assert span(b'{"a":1,"a":2}', "a") == (11, 12)
    assert span(b"{}", "a") is None
    assert list(members(b'{"a"}')) == []
    assert value_end(b'"open', 0) == 5
    assert value_end(b"  ", 0) == 0
    assert with_index(b'{"x":1}', 3) == b'{"x":1,"index":3}'
