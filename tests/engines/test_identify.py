"""An engine is recognised by what it says of itself, and vouched for only on evidence."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from router.engines.adapters import ADAPTERS, EngineFacts
from router.engines.announce import announcement, read_announcement
from router.engines.identify import identify

Answers = dict[str, Any]


def speaking(answers: Answers, server: str = "x") -> httpx.AsyncClient:
    """A client of an engine that answers these paths; everything else is 404."""

    def answer(request: httpx.Request) -> httpx.Response:
        found = answers.get(request.url.path)
        if isinstance(found, Exception):
            raise found
        if found is None:
            return httpx.Response(404, headers={"server": server})
        text = found if isinstance(found, str) else json.dumps(found)
        return httpx.Response(200, text=text, headers={"server": server})

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def models(owner: str, *names: str, **extra: Any) -> Any:
    return {"data": [{"id": name, "owned_by": owner, **extra} for name in names]}


PROPS = {"build_info": "b1", "default_generation_settings": {"n_ctx": 512}}


@pytest.mark.parametrize(
    ("answers", "server", "kind", "version", "block", "names"),
    [
        ({"/v1/models": models("llamacpp", "m"), "/props": PROPS}, "x", "llamacpp", "b1", None, ("m",)),
        ({"/props": PROPS}, "llama.cpp", "llamacpp", "b1", None, ()),
        ({"/props": PROPS}, "x", "llamacpp", "b1", None, ()),
        (
            {
                "/v1/models": models("vllm", "a", "b"),
                "/version": {"version": "0.32.0"},
                "/metrics": 'vllm:cache_config_info{block_size="32",x="y"} 1\n',
            },
            "x",
            "vllm",
            "0.32.0",
            32,
            ("a", "b"),
        ),
        ({"/version": {"version": "0.9"}}, "x", "vllm", "0.9", None, ()),
        (
            {
                "/v1/models": models("sglang", "m"),
                "/get_server_info": {"tp_size": 1, "version": "0.5", "page_size": 64},
            },
            "x",
            "sglang",
            "0.5",
            64,
            ("m",),
        ),
        ({"/get_server_info": {"tp_size": 1}}, "x", "sglang", None, None, ()),
        ({"/v1/models": models("freetoken", "m")}, "x", "freetoken", None, None, ("m",)),
        ({"/v1/stats": {}}, "x", "freetoken", None, None, ()),
        ({"/v1/models": models("me", "m")}, "x", "generic", None, None, ("m",)),
        ({"/v1/models": "no json"}, "x", "generic", None, None, ()),
        ({"/v1/models": {"data": "odd"}, "/props": []}, "x", "generic", None, None, ()),
    ],
)
async def test_what_it_is(
    answers: Answers, server: str, kind: str, version: str | None, block: int | None, names: tuple[str, ...]
) -> None:
    async with speaking(answers, server) as client:
        facts = await identify(client, "http://engine")
    assert facts.reached
    assert (facts.kind, facts.version, facts.block_size, facts.models) == (kind, version, block, names)
    assert not facts.vouched


async def test_what_the_user_says_is_taken() -> None:
    async with speaking({"/v1/models": models("llamacpp", "m")}) as client:
        facts = await identify(client, "http://engine", "sglang")
    assert facts.kind == "sglang"
    assert facts.models == ("m",)


async def test_a_dead_engine_is_not_reached() -> None:
    dead = dict.fromkeys(
        ("/v1/models", "/props", "/get_server_info", "/v1/stats", "/version"), httpx.ConnectError("no")
    )
    async with speaking(dead) as client:
        facts = await identify(client, "http://engine")
    assert not facts.reached
    assert facts == EngineFacts()


async def test_a_dead_engine_of_a_given_kind_is_not_reached_either() -> None:
    async with speaking({"/v1/models": httpx.ConnectError("no"), "/props": PROPS}) as client:
        facts = await identify(client, "http://engine", "llamacpp")
    assert not facts.reached
    assert facts.kind == "llamacpp"


async def test_an_engine_that_stops_answering_midway_is_asked_again() -> None:
    answers = {"/v1/models": models("llamacpp", "m"), "/props": httpx.ReadError("gone")}
    async with speaking(answers) as client:
        assert not (await identify(client, "http://engine")).reached


async def test_a_silent_engine_takes_two_seconds_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    import anyio

    from router.engines import identify as module

    async def never(request: httpx.Request) -> httpx.Response:
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(module, "TIMEOUT", 0.05)
    async with httpx.AsyncClient(transport=httpx.MockTransport(never)) as client:
        assert not (await identify(client, "http://engine", "vllm")).reached


@pytest.mark.parametrize(
    ("tags", "context", "vouched"),
    [
        (announcement(split_kv=True, micro_batch=512), 512, True),
        (announcement(split_kv=True, micro_batch=512), 4096, False),
        (announcement(split_kv=False, micro_batch=512), 512, False),
        ({"logprob-router:split-kv"}, 512, False),
        (set(), 512, False),
    ],
)
async def test_only_settings_that_hold_are_vouched_for(tags: set[str], context: int, vouched: bool) -> None:
    props = {**PROPS, "default_generation_settings": {"n_ctx": context}}
    async with speaking({"/v1/models": models("llamacpp", "m", tags=sorted(tags)), "/props": props}) as client:
        facts = await identify(client, "http://engine")
    assert facts.vouched is vouched
    assert bool(facts.reason) is vouched
    assert facts.summary().startswith("llama.cpp b1, serving m")


def test_an_announcement_without_settings_says_nothing() -> None:
    assert read_announcement([{"tags": list(announcement(split_kv=True, micro_batch=8))}], {}) is None


@pytest.mark.parametrize(
    "tags", [5, "x", [None, 5], ["logprob-router:micro-batch=²"], ["logprob-router:micro-batch=" + "9" * 5000]]
)
def test_odd_tags_vouch_for_nothing(tags: Any) -> None:
    if isinstance(tags, list):
        tags = [*tags, "logprob-router:split-kv"]
    assert read_announcement([{"tags": tags}], PROPS) is None


def test_knobs_go_where_the_engine_reads_them() -> None:
    assert ADAPTERS["llamacpp"].knobs("/v1/completions") == b'"cache_prompt":false'
    assert ADAPTERS["llamacpp"].knobs("/generate") == b""
    assert ADAPTERS["sglang"].knobs("/generate") == b'"logprob_start_len":0'
    first, second = (ADAPTERS["vllm"].knobs("/v1/chat/completions") for _ in range(2))
    assert json.loads(b"{" + first + b"}").keys() == {"cache_salt"}
    assert first != second
    assert ADAPTERS["generic"].knobs("/v1/completions") == b""
