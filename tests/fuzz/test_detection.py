"""Detection against the engine's own eyes: Python's json and pydantic in its lax mode, as vLLM reads a body."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.reads.detect import detect
from router.reads.dialects import find
from router.reads.split import sub_bodies

EXAMPLES = 1500
JSON = b"application/json"


class Completions(pydantic.BaseModel):
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool | None = False

    @property
    def is_read(self) -> bool:
        scores = self.logprobs is not None or self.prompt_logprobs is not None
        return scores and (self.max_tokens == 1 or (self.max_tokens == 0 and bool(self.echo)))


class Chat(pydantic.BaseModel):
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    prompt_logprobs: int | None = None

    @property
    def is_read(self) -> bool:
        cap = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return cap == 1 and (bool(self.logprobs) or self.prompt_logprobs is not None)


ENGINES: dict[str, type[Completions | Chat]] = {"/v1/completions": Completions, "/v1/chat/completions": Chat}

KEYS = ("max_tokens", "max_completion_tokens", "logprobs", "prompt_logprobs", "echo", "model", "prompt", "n", "stream")
VALUES = (
    *("0", "1", "1", "1", "2", "50", "-1", "1.0", "1e0", "10e-1", "1.5", "-0", "0.0", "1E0", "1.0000000000000000001"),
    *("true", "false", "null", '"1"', '"1.0"', '" 1 "', '"1e0"', '"01"', '"+1"', '"1_0"', '"true"', '"yes"', '"off"'),
    *('""', "[]", "{}", "[1]", "NaN", "Infinity", "-Infinity", "12345678901234567890", '"\\u0031"', '"on"', '"t"'),
)
NOISE = (
    *('{"logprobs":1,"max_tokens":1}', '[{"max_tokens":1}]', '"logprobs max_tokens"', '"a\\"logprobs\\":1"', '"\\\\"'),
    *(
        '"\\ud83d\\ude00"',
        '"\\ud800"',
        '"日本"',
        "[[[]]]",
        "1e400",
        '{"a":{"b":[1,2,{"c":null}]}}',
        '"x' + "y" * 300 + '"',
    ),
)
PROMPTS = (
    *('"hi"', '["a","b"]', '["a", "b" ,"c"]', "[[1,2],[3]]", "[1,2]", '["a",[1]]', "[]", '["x"]', '["\\u0061","]"]'),
    *('["a","b",1]', "[[1],[]]", "[true,false]", '["日","\\"]"]', "null"),
)
SPACES = ("", "", "", " ", "\n", "\t", "\r\n ")
ENCODINGS = ("utf-8", "utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le")
TAILS = ("", "", "", "", "", " ", "\n", "x", "}", ",", "\x00")


@st.composite
def keys(draw: st.DrawFn) -> str:
    """A member's name as JSON text, now and then with escapes."""
    key = draw(st.sampled_from(KEYS))
    if draw(st.integers(0, 4)):
        return json.dumps(key)
    escaped = draw(st.sets(st.integers(0, len(key) - 1), min_size=1, max_size=3))
    form = draw(st.sampled_from(["\\u{:04x}", "\\u{:04X}"]))
    return '"' + "".join(form.format(ord(c)) if at in escaped else c for at, c in enumerate(key)) + '"'


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A request body: a few members, doubled and escaped ones among them, in any encoding."""
    space = draw(st.sampled_from(SPACES))
    members = []
    for _ in range(draw(st.integers(0, 7))):
        key = draw(keys())
        pool = PROMPTS if "prompt" in key and draw(st.booleans()) else VALUES
        members.append(key + space + ":" + space + draw(st.sampled_from(pool)))
    for value in draw(st.lists(st.sampled_from(NOISE), max_size=2)):
        members.insert(draw(st.integers(0, len(members))), f'"vendor{len(members)}":{value}')
    if draw(st.integers(0, 2)):
        members = members[: draw(st.integers(0, 3))]
        members += ['"logprobs":1', f'"max_tokens":{draw(st.sampled_from(["1", "1.0", "2"]))}']
        members += [f'"prompt":{draw(st.sampled_from(PROMPTS))}']
        members = draw(st.permutations(members))
    text = space + "{" + space + ("," + space).join(members) + space + "}" + draw(st.sampled_from(TAILS))
    return text.encode(draw(st.sampled_from(ENCODINGS)), "surrogatepass")


def as_the_engine_reads(path: str, body: bytes) -> bool | None:
    """Whether the engine would score; None if it refuses the body."""
    try:
        members = json.loads(body)
        return ENGINES[path].model_validate(members).is_read
    except (ValueError, RecursionError):
        return None


@pytest.fixture(scope="module")
def tally() -> Iterator[Counter[str]]:
    """What the examples were, so that the fuzz is seen to prove something."""
    tally: Counter[str] = Counter()
    yield tally
    assert min(tally["read"], tally["other"], tally["refused"], tally["list"]) > EXAMPLES // 100, tally


@given(body=bodies(), path=st.sampled_from(sorted(ENGINES)))
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_a_read_is_what_the_engine_would_score(tally: Counter[str], body: bytes, path: str) -> None:
    """Detection agrees with the engine's parser on every body that the engine takes, and never raises."""
    dialect = find("POST", path.encode(), JSON)
    assert dialect is not None
    read = detect(dialect, body)
    truth = as_the_engine_reads(path, body)
    tally["refused" if truth is None else "read" if truth else "other"] += 1
    if truth is not None:
        assert (read is not None) is truth
    if read is not None and read.prompts is not None:
        tally["list"] += 1
        check_split(body, list(sub_bodies(body, read)))


def check_split(body: bytes, subs: list[bytes]) -> None:
    """Each sub-read means the same as the whole with one prompt."""
    whole = json.loads(body)
    expected: list[Any] = [{**whole, "prompt": prompt} for prompt in whole["prompt"]]
    assert [json.dumps(json.loads(sub)) for sub in subs] == [json.dumps(members) for members in expected]
