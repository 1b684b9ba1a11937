"""Headers, H01-H11: values cross as they are; only what belongs to one hop ends here."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.support.answers import engine, in_turn, json_message, message, play
from tests.support.client import GEN, GEN_BODY, READ1, READ1_BODY, completions, get, post, request
from tests.support.routers import InProcess, running, serving
from tests.support.upstream import Upstream


async def test_h01_compressed_answers_stay_compressed(router: InProcess, upstream: Upstream) -> None:
    """H01: a gzip answer arrives as the same bytes under the same Content-Encoding and Content-Length."""
    packed = gzip.compress(b'{"choices":[]}' * 100)
    fields = [("Content-Type", "application/json"), ("Content-Encoding", "gzip")]
    upstream.handler = play(message(200, packed, fields))
    for body in (GEN_BODY, READ1_BODY):
        answer = await router.ask(post("/v1/completions", body, "Accept-Encoding: gzip"))
        assert answer.body == packed
        assert answer.get("content-encoding") == b"gzip"
        assert answer.get("content-length") == str(len(packed)).encode()
    assert [r.get("accept-encoding") for r in upstream.requests] == [b"gzip", b"gzip"]


async def test_h02_no_header_is_invented(router: InProcess, upstream: Upstream) -> None:
    """H02: a GET with Host and X-A reaches the engine with those, and the documented X-Forwarded fields."""
    await router.ask(get("/v1/models", "X-A: 1"))
    assert upstream.requests[0].names() == ["host", "x-a", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"]


async def test_h03_hop_by_hop_fields_end_here(router: InProcess, upstream: Upstream) -> None:
    """H03: nothing that belongs to one hop, or that Connection names, crosses in either direction."""
    reply = [("Connection", "X-Up"), ("X-Up", "1"), ("Keep-Alive", "timeout=1"), ("X-Stays", "1")]
    upstream.handler = play(json_message({}, fields=reply))
    fields = (
        *("Connection: keep-alive, X-Secret", "X-Secret: 1", "Keep-Alive: timeout=9", "TE: trailers"),
        *("Proxy-Connection: x", "Upgrade: foo", "X-Stays: 1"),
    )
    for data in (get("/v1/models", *fields), post("/v1/completions", GEN_BODY, *fields), completions(*fields)):
        answer = await router.ask(data)
        assert answer.status == 200
        assert {name.lower() for name, _ in answer.fields} & {b"connection", b"x-up", b"keep-alive"} == set()
        assert answer.get("x-stays") == b"1"
    for arrived in upstream.requests:
        ended = {"connection", "x-secret", "keep-alive", "te", "proxy-connection", "upgrade"}
        assert ended.isdisjoint(arrived.names())
        assert arrived.get("x-stays") == b"1"
    assert upstream.requests[1].body == GEN_BODY


@pytest.mark.parametrize("name", ["Authorization", "Content-Type", "Host", "cookie", "content-length"])
async def test_h03_connection_cannot_strip_what_matters(router: InProcess, upstream: Upstream, name: str) -> None:
    """H03: `Connection: Authorization` and the like are refused, not obeyed and not ignored."""
    answer = await router.ask(post("/v1/completions", GEN_BODY, f"Connection: {name}", "X-Y: 1"))
    assert answer.status == 400
    assert answer.json()["error"]["type"] == "router_error"
    assert upstream.requests == []


async def test_h04_cookies_belong_to_their_callers(upstream: Upstream) -> None:
    """H04: a cookie set for one caller is never sent for another, by host name too; two stay two, in order."""
    upstream.handler = play(json_message({}, fields=[("Set-Cookie", "sid=A; Path=/"), ("Set-Cookie", "b=2; Path=/")]))
    async with running(upstream, url=f"http://localhost:{upstream.port}") as router:
        for data in (GEN, READ1, get("/v1/models"), completions(prompt=["a"])):
            answer = await router.ask(data)
            assert answer.all("set-cookie") == [b"sid=A; Path=/", b"b=2; Path=/"]
    assert all("cookie" not in r.names() for r in upstream.requests)


async def test_h05_bytes_that_are_not_ascii_cross(router: InProcess, upstream: Upstream) -> None:
    """H05: header values of any bytes arrive unchanged in both directions."""
    value = b"caf\xc3\xa9\xff"
    upstream.handler = play(b"HTTP/1.1 200 OK\r\nX-N: " + value + b"\r\nContent-Length: 2\r\n\r\n{}")
    for data in (GEN_BODY, READ1_BODY):
        answer = await router.ask(post("/v1/completions", data, b"X-N: " + value))
        assert (answer.status, answer.get("x-n")) == (200, value)
    assert [r.get("x-n") for r in upstream.requests] == [value, value]


@pytest.mark.parametrize("preserve", [False, True])
async def test_h06_one_policy_for_host(upstream: Upstream, preserve: bool) -> None:
    """H06: Host is the engine's authority (or the client's, with --preserve-host) on every kind of request."""
    public = "pub.example:8443"
    async with running(upstream, preserve_host=preserve) as router:
        for method, target, body in (
            ("POST", "/v1/completions", READ1_BODY),
            ("POST", "/v1/completions", GEN_BODY),
            ("POST", "/v1/completions", b'{"prompt":["a","b"],"max_tokens":1,"logprobs":1}'),
            ("GET", "/v1/models", None),
            ("PUT", "/v1/files/x", b"data"),
        ):
            assert (await router.ask(request(method, target, body, host=public))).status == 200
    assert len(upstream.requests) == 6
    for arrived in upstream.requests:
        assert arrived.get("host") == (public.encode() if preserve else upstream.authority)
        assert arrived.get("x-forwarded-host") == public.encode()
        assert arrived.get("x-forwarded-for") == b"127.0.0.1"
        assert arrived.get("x-forwarded-proto") == b"http"


async def test_h06_forwarded_fields_are_appended_to(router: InProcess, upstream: Upstream) -> None:
    """H06: behind another proxy, its X-Forwarded fields are kept; our peer is appended."""
    fields = ("X-Forwarded-For: 10.1.2.3", "X-Forwarded-Proto: https", "X-Forwarded-Host: a.example")
    for data in (get("/v1/models", *fields), completions(*fields)):
        await router.ask(data)
    for arrived in upstream.requests:
        assert arrived.get("x-forwarded-for") == b"10.1.2.3, 127.0.0.1"
        assert arrived.get("x-forwarded-proto") == b"https"
        assert arrived.get("x-forwarded-host") == b"a.example"


async def test_h07_the_engines_fields_arrive_once(router: InProcess, upstream: Upstream) -> None:
    """H07: ids, timings, Server, Date and doubled fields arrive as sent, in order; none is added."""
    fields = [
        *(("X-Request-Id", "r"), ("openai-processing-ms", "5"), ("Server", "eng"), ("Date", "D")),
        *(("X-Dup", "1"), ("x-dup", "2")),
    ]
    upstream.handler = play(json_message({}, fields=fields))
    sent = [(name.encode(), value.encode()) for name, value in fields]
    expected = [(b"Content-Type", b"application/json"), *sent, (b"Content-Length", b"2")]
    assert (await router.ask(GEN)).fields == expected
    read = await router.ask(READ1)
    assert read.fields[: len(expected)] == expected
    assert [name for name, _ in read.fields[len(expected) :]] == [b"X-Read-Isolation", b"Server-Timing"]
    upstream.handler = play(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    assert (await router.ask(GEN)).fields == [(b"Content-Length", b"2")]


async def test_h08_authorization_reaches_every_request(router: InProcess, upstream: Upstream) -> None:
    """H08: Authorization crosses on every route and on each sub-read; a 401 comes back unchanged."""
    bearer = "Authorization: Bearer k"
    multipart = post("/v1/audio/transcriptions", b"--x--", bearer, content_type="multipart/form-data; boundary=x")
    chat = post("/v1/chat/completions", b'{"messages":[]}', bearer)
    for data in (
        *(completions(bearer), completions(bearer, prompt=["a", "b", "c"]), completions(bearer, max_tokens=9)),
        *(chat, multipart, get("/v1/models", bearer)),
    ):
        assert (await router.ask(data)).status == 200
    assert [r.get("authorization") for r in upstream.requests] == [b"Bearer k"] * 8
    refusal = json_message({"error": "no"}, 401, [("WWW-Authenticate", 'Bearer realm="x"')])
    upstream.handler = play(refusal)
    for data in (GEN, READ1, completions(prompt=["a", "b"])):
        answer = await router.ask(data)
        assert (answer.status, answer.json()) == (401, {"error": "no"})
        assert answer.get("www-authenticate") == b'Bearer realm="x"'


async def test_h09_retry_hints_cross_and_nobody_retries(router: InProcess, upstream: Upstream) -> None:
    """H09: 429 with its hints and its body arrives unchanged, for reads too; the next read is sent."""
    body = {"error": {"message": "slow down"}}
    busy = play(json_message(body, 429, [("Retry-After", "30"), ("x-should-retry", "false")]))
    for data in (READ1, GEN, completions(prompt=["a", "b"])):
        upstream.handler = in_turn(busy, engine)
        before = len(upstream.requests)
        answer = await router.ask(data)
        assert (answer.status, answer.body) == (429, json.dumps(body).encode())
        assert (answer.get("retry-after"), answer.get("x-should-retry")) == (b"30", b"false")
        assert len(upstream.requests) == before + 1
        assert (await router.ask(READ1)).status == 200


async def test_h10_nothing_is_taken_from_the_environment(upstream: Upstream, tmp_path: Path) -> None:
    """H10: proxies and credentials of the environment are not used, for data and for probes."""
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login u password p\nmachine localhost login u password p\n")
    netrc.chmod(0o600)
    dead = "http://127.0.0.1:9"
    env = {"HTTP_PROXY": dead, "http_proxy": dead, "ALL_PROXY": dead, "all_proxy": dead}
    async with serving(upstream, env={**env, "HOME": str(tmp_path), "NETRC": str(netrc)}) as router:
        assert (await router.ask(GEN)).status == 200
        assert (await router.ask(READ1)).status == 200
        assert (await router.admin("/readyz")).status == 200
    assert all("authorization" not in r.names() for r in [*upstream.requests, *upstream.probes])


async def test_h11_a_merged_answer_has_a_head_of_its_own(router: InProcess, upstream: Upstream) -> None:
    """H11: the length is the merged body's, once, with no coding and no other framing; reads carry one length too."""
    answer = await router.ask(completions("Accept-Encoding: gzip", prompt=["a", "bb", "ccc"]))
    assert answer.get("content-length") == str(len(answer.body)).encode()
    assert answer.get("content-encoding") is None
    assert answer.get("transfer-encoding") is None
    assert [c["text"] for c in answer.json()["choices"]] == ["a", "bb", "ccc"]
    for arrived in upstream.requests:
        assert arrived.get("content-length") == str(len(arrived.body)).encode()
