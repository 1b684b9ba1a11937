"""Targets, methods and framing, F01-F15: one request in, the same request out, or nothing."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from time import perf_counter

import pytest

from tests.support.answers import STREAM_HEAD, chunk, engine, in_turn, json_message, message, play, silent, stream
from tests.support.client import GEN, GEN_BODY, STREAM_BODY, Client, get, post, request
from tests.support.routers import InProcess, assert_healthy, eventually
from tests.support.upstream import Connection, Request, Upstream

FRAME = b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"


async def refused(router: InProcess, data: bytes, *statuses: int) -> None:
    """The bytes get an error answer and the connection's end, and not a byte of them reaches the engine."""
    async with await router.connect() as client:
        await client.send(data)
        answer = await client.answer()
        assert answer.status in statuses, answer
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
        assert answer.get("content-type") == b"application/json"
        assert answer.get("connection") == b"close"
        assert await client.closed()
    assert router.upstream.connections == []


@pytest.mark.parametrize(
    "target",
    [
        b"/v1/models/org%2Fname%20x|y;v=1?q=a+b%20c&y=[1]&&z",
        b"/",
        b"/?",
        b"/a?b?c#not-a-fragment-to-us"[:7],
        b"/%",
        b"/%zz/%00/%2e%2e/%C3%A9",
        b'/"quoted"/<x>/{y}/^`|\\',
        b"/v1/completions/",
        b"/" + b"long/" * 2000,
    ],
)
async def test_f01_targets_are_not_decoded(router: InProcess, upstream: Upstream, target: bytes) -> None:
    """F01: the target's bytes arrive identical."""
    assert (await router.ask(get(target))).status == 200
    assert upstream.requests[0].target == target


@pytest.mark.parametrize("target", [b"//other.test/x", b"/a//b/../c/./d", b"/..", b"/../..//etc", b"///"])
async def test_f02_odd_targets_stay_odd(router: InProcess, upstream: Upstream, target: bytes) -> None:
    """F02: double slashes and dots neither choose a host nor are cleaned."""
    assert (await router.ask(get(target))).status == 200
    assert upstream.requests[0].target == target


async def test_f03_head_has_a_length_and_no_body(router: InProcess, upstream: Upstream) -> None:
    """F03: an answer to HEAD keeps its length and has no body; both connections serve a following GET."""
    upstream.handler = in_turn(play(b"HTTP/1.1 200 OK\r\nContent-Length: 123\r\n\r\n"), play(STREAM_HEAD), engine)
    async with await router.connect() as client:
        for _ in range(2):
            head = await client.ask(request("HEAD", "/v1/models"))
            assert (head.status, head.body) == (200, b"")
            if not _:
                assert head.get("content-length") == b"123"
        assert (await client.ask(get("/v1/models"))).json() == {"ok": True}
    assert len({id(r.connection) for r in upstream.requests}) == 1


async def test_f04_answers_without_a_body_have_none(router: InProcess, upstream: Upstream) -> None:
    """F04: 204, 304 and 205 have no body and no chunk framing, and the connection goes on."""
    upstream.handler = in_turn(
        play(b"HTTP/1.1 204 No Content\r\n\r\n"),
        play(b'HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\nETag: "x"\r\n\r\n'),
        play(b"HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n"),
        engine,
    )
    async with await router.connect() as client:
        for status in (204, 304, 205):
            answer = await client.ask(get("/v1/models"))
            assert (answer.status, answer.body) == (status, b"")
            assert answer.get("transfer-encoding") is None
            if status == 304:
                assert answer.get("etag") == b'"x"'
        assert (await client.ask(get("/v1/models"))).json() == {"ok": True}


async def test_f04_a_body_behind_204_never_reaches_anyone(router: InProcess, upstream: Upstream) -> None:
    """F04: bytes that an engine sends behind a 204 are not taken for the next answer."""
    upstream.handler = in_turn(play(b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello"), engine)
    async with await router.connect() as client:
        answer = await client.ask(get("/v1/models"))
        assert (answer.status, answer.body, answer.get("content-length")) == (204, b"", None)
        assert (await client.ask(get("/v1/models"))).json() == {"ok": True}
    assert upstream.requests[0].connection is not upstream.requests[1].connection


async def test_f05_the_engines_100_lets_the_body_go(router: InProcess, upstream: Upstream) -> None:
    """F05: a streamed upload with Expect waits for the engine's 100, and then arrives whole."""
    body = bytes(1 << 20)
    ready: list[float] = []

    async def careful(connection: Connection, request: Request) -> None:
        await asyncio.sleep(0.2)
        assert request.size == 0
        ready.append(perf_counter())
        await connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await request.whole.wait()
        await connection.send(json_message({"size": request.size}))

    upstream.on("/v1/files", careful, early=True)
    head = request("POST", "/v1/files", None, f"Content-Length: {len(body)}", "Expect: 100-continue")
    async with await router.connect() as client:
        await client.send(head)
        assert await client.receive() == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert perf_counter() - ready[0] < 0.1
        answer = await client.ask(body)
    assert (answer.status, answer.json()) == (200, {"size": len(body)})
    assert upstream.requests[0].get("expect") == b"100-continue"


@pytest.mark.parametrize("status", [401, 413])
async def test_f05_an_early_refusal_spares_the_body(router: InProcess, upstream: Upstream, status: int) -> None:
    """F05: an engine that refuses at the head is heard before the body is sent; its connection is not used again."""
    upstream.on("/v1/files", play(json_message({"no": 1}, status)), early=True)
    head = request("POST", "/v1/files", None, "Content-Length: 1000000", "Expect: 100-continue")
    async with await router.connect() as client:
        answer = await client.ask(head)
        assert (answer.status, answer.json(), answer.interim) == (status, {"no": 1}, [])
    assert upstream.requests[0].size == 0
    assert (await router.ask(get("/v1/models"))).status == 200
    assert upstream.requests[0].connection is not upstream.requests[1].connection


async def test_f05_an_inspected_body_is_called_for_here(router: InProcess, upstream: Upstream) -> None:
    """F05: a candidate's body is needed to classify it: the router says 100, and no Expect is left at the engine."""
    async with await router.connect() as client:
        head, _, body = post("/v1/completions", GEN_BODY, "Expect: 100-continue").partition(b"\r\n\r\n")
        began = perf_counter()
        await client.send(head + b"\r\n\r\n")
        assert await client.receive() == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert perf_counter() - began < 0.1
        assert (await client.ask(body)).status == 200
    assert upstream.requests[0].get("expect") is None
    assert upstream.requests[0].body == GEN_BODY


async def test_f05_an_early_answer_to_an_upload_is_passed_on(router: InProcess, upstream: Upstream) -> None:
    """The kind of F05: an engine answers before an upload has ended: the client gets it, and then the close."""
    upstream.on("/v1/files", play(json_message({"error": "too much"}, 413)), early=True)
    async with await router.connect() as client:
        await client.send(request("POST", "/v1/files", None, "Content-Length: 100000000") + bytes(100_000))
        answer = await client.answer()
        assert (answer.status, answer.json()) == (413, {"error": "too much"})
        assert answer.get("connection") == b"close"
    assert (await router.ask(get("/x"))).status == 200
    assert upstream.requests[0].connection is not upstream.requests[1].connection


async def test_f06_http_1_0_gets_no_chunks(router: InProcess, upstream: Upstream) -> None:
    """F06: an HTTP/1.0 client gets the stream's bytes bare, and the close as its end."""
    upstream.handler = stream(b"data: 1\n\n", 0.05, b"data: [DONE]\n\n")
    async with await router.connect() as client:
        answer = await client.ask(post("/v1/completions", STREAM_BODY, version="1.0"))
        assert answer.get("transfer-encoding") is None
        assert answer.get("content-length") is None
        assert answer.body == b"data: 1\n\ndata: [DONE]\n\n"
        assert answer.whole


async def test_f06_http_1_0_sees_a_broken_stream_as_broken(router: InProcess, upstream: Upstream) -> None:
    """F06, S03: where only the close ends a body, an abnormal end is a reset."""
    upstream.handler = play(STREAM_HEAD, chunk(b"data: 1\n\n"), 0.05, "close")
    async with await router.connect() as client:
        answer = await client.ask(post("/v1/completions", STREAM_BODY, version="1.0"))
        assert answer.reset
        assert not answer.whole


async def test_f06_http_1_0_without_a_host(router: InProcess, upstream: Upstream) -> None:
    """F06: HTTP/1.0 needs no Host; the engine gets one."""
    answer = await router.ask(b"GET /v1/models HTTP/1.0\r\n\r\n")
    assert answer.status == 200
    assert upstream.requests[0].get("host") == upstream.authority


async def test_f07_length_and_chunks_together_are_refused(router: InProcess, upstream: Upstream) -> None:
    """F07: Content-Length with Transfer-Encoding: 400 and close, and the hidden request is never served."""
    smuggled = b"0\r\n\r\nGET /smug HTTP/1.1\r\nHost: test\r\n\r\n"
    await refused(router, FRAME + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + smuggled, 400)
    await refused(router, FRAME + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + smuggled, 400)


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 4\r\nContent-Length: 5\r\n",
        b"Content-Length: 4\r\nContent-Length: 4\r\n",
        b"Content-Length: 4, 4\r\n",
        b"Content-Length: +4\r\n",
        b"Content-Length: -4\r\n",
        b"Content-Length: 0x4\r\n",
        b"Content-Length: 4 4\r\n",
        b"Content-Length:\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Content-Length : 4\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding: xchunked\r\nContent-Length: 4\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked, chunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n",
        b'Transfer-Encoding: "chunked"\r\n',
        b"Transfer_Encoding: chunked\r\nTransfer-Encoding:\r\n",
    ],
)
async def test_f08_doubtful_framing_is_refused(router: InProcess, upstream: Upstream, lines: bytes) -> None:
    """F08: two lengths, signs, spaces before the colon, any coding but one `chunked`: 400 and close."""
    await refused(router, FRAME + lines + b"\r\n4\r\nabcd\r\n0\r\n\r\n", 400)


async def test_f08_chunks_from_an_http_1_0_client_are_refused(router: InProcess, upstream: Upstream) -> None:
    """F08: HTTP/1.0 has no chunks."""
    data = FRAME.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    await refused(router, data, 400)


@pytest.mark.parametrize(
    "body",
    [
        b"x\r\n",
        b"4\r\nabcdef\r\n0\r\n\r\n",
        b"-1\r\n",
        b"4\nabcd\n0\n\n",
        b"4 \r\nabcd\r\n",
        b"0x4\r\nabcd\r\n0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("path", [b"/v1/completions", b"/v1/files"])
async def test_f08_a_bad_chunk_completes_no_request(
    router: InProcess, upstream: Upstream, path: bytes, body: bytes
) -> None:
    """F08: a bad chunk, late in an upload too: 400 and close, and no complete request reaches the engine."""
    head = FRAME.replace(b"/v1/completions", path) + b"Transfer-Encoding: chunked\r\n\r\n"
    async with await router.connect() as client:
        await client.send(head + b"5\r\nfirst\r\n")
        if path == b"/v1/files":
            await upstream.arrival(1)
        await client.send(body)
        answer = await client.answer()
        assert answer.status == 400
        assert await client.closed()
    assert all(r.whole_at is None for r in upstream.requests)
    await eventually(lambda: upstream.open_connections == 0)
    await router.settled()


async def test_f09_one_framing_goes_out(router: InProcess, upstream: Upstream) -> None:
    """F09: a chunked generation, inspected or streamed, reaches the engine under exactly one framing field."""
    data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(GEN_BODY), GEN_BODY)
    for path in ("/v1/completions", "/v1/files"):
        head = request("POST", path, None, "Content-Type: application/json", "Transfer-Encoding: chunked")
        assert (await router.ask(head + data)).status == 200
    inspected, streamed = upstream.requests
    assert (inspected.length, inspected.chunked) == (len(GEN_BODY), False)
    assert (streamed.length, streamed.chunked) == (None, True)
    assert inspected.body == streamed.body == GEN_BODY


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n\tfolded: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\r\nHost: a\nX: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\n\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX\x00: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\rY: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n: empty name\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
        b"GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /caf\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET models HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET * HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET ftp://x/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_f10_malformed_heads_are_refused(router: InProcess, upstream: Upstream, head: bytes) -> None:
    """F10: folded lines, a missing or second Host, bare LF and other ambiguities: 400 and close."""
    await refused(router, head, 400)


@pytest.mark.parametrize("version", [b" HTTP/0.9", b" HTTP/2.0", b" HTTP/1.2", b" HTTP/3.1", b" HTTP/11.1", b""])
async def test_f10_other_versions_are_refused(router: InProcess, upstream: Upstream, version: bytes) -> None:
    """The kind of F10: only HTTP/1.0 and HTTP/1.1 are spoken."""
    await refused(router, b"GET /" + version + b"\r\nHost: a\r\n\r\n", 400, 505)


async def test_f11_an_absolute_target_chooses_no_host(router: InProcess, upstream: Upstream) -> None:
    """F11: of an absolute URL only path and query are used; the host that it names is never connected to."""
    async with Upstream() as decoy:
        for tail, arrives in (("/latest?x=1", b"/latest?x=1"), ("", b"/"), ("?q", b"/?q"), ("//x/../y", b"//x/../y")):
            answer = await router.ask(get(f"{decoy.url}{tail}"))
            assert answer.status == 200
            assert upstream.requests[-1].target == arrives
            assert upstream.requests[-1].get("host") == upstream.authority
        assert decoy.all_connections == []


async def test_f12_a_websocket_is_tunnelled(router: InProcess, upstream: Upstream) -> None:
    """F12: the handshake and then every byte pass in both directions, until either side closes."""
    key = base64.b64encode(b"0123456789abcdef").decode()
    accept = base64.b64encode(hashlib.sha1(key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()).decode()
    asked = get("/v1/realtime?model=m", "Connection: Upgrade", "Upgrade: websocket", f"Sec-WebSocket-Key: {key}")
    said: list[bytes] = []

    async def socket(connection: Connection, request: Request) -> None:
        assert request.get("connection") == b"Upgrade"
        assert request.get("upgrade") == b"websocket"
        assert request.get("sec-websocket-key") == key.encode()
        connection.tunnel = asyncio.Queue()
        lines = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        await connection.send(b"HTTP/1.1 101 Switching Protocols\r\n" + lines.encode() + b"\x81\x02hi")
        while data := await connection.tunnel.get():
            said.append(data)
            await connection.send(data[::-1])

    upstream.on("/v1/realtime", socket)
    async with await router.connect() as client:
        await client.send(asked)
        answer = await client.head()
        assert (answer.status, answer.get("sec-websocket-accept")) == (101, accept.encode())
        assert (answer.get("upgrade"), answer.get("connection")) == (b"websocket", b"Upgrade")
        seen = bytes(client._buffer)
        while len(seen) < 4:
            seen += await client.receive()
        assert seen == b"\x81\x02hi"
        for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256))):
            await client.send(data)
            back = b""
            while len(back) < len(data):
                back += await client.receive()
            assert back == data[::-1]
    await eventually(lambda: upstream.requests[0].connection.closed_at is not None, 1.0)
    await router.settled()


async def test_f12_a_refused_websocket_is_an_answer(router: InProcess, upstream: Upstream) -> None:
    """F12: an engine without websockets says so, and the client hears it."""
    upstream.handler = play(json_message({"detail": "Not Found"}, 404))
    answer = await router.ask(get("/v1/realtime", "Connection: Upgrade", "Upgrade: websocket"))
    assert (answer.status, answer.json()) == (404, {"detail": "Not Found"})


async def test_f12_an_offer_of_h2c_loses_no_body(router: InProcess, upstream: Upstream) -> None:
    """The kind of F12: a client that offers h2c, as every stock JDK client does, is served in HTTP/1.1."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA", "Upgrade: h2c")
    for data in (post("/v1/completions", GEN_BODY, *offer), post("/v1/files", GEN_BODY, *offer), get("/x", *offer)):
        async with await router.connect() as client:
            answer = await client.ask(data)
            assert answer.status == 200
            assert (await client.ask(get("/v1/models"))).status == 200
    assert [r.body for r in upstream.requests[::2]] == [GEN_BODY, GEN_BODY, b""]
    for arrived in upstream.requests:
        assert {"upgrade", "http2-settings", "connection"}.isdisjoint(arrived.names())


async def test_f12_an_upgrade_that_nobody_asked_for_is_refused(router: InProcess, upstream: Upstream) -> None:
    """The kind of F12: an engine that switches protocols unasked gets no tunnel."""
    upstream.handler = in_turn(
        play(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nraw"), engine
    )
    assert (await router.ask(GEN)).status == 502
    await assert_healthy(router)


async def test_f13_interim_answers_are_not_final(router: InProcess, upstream: Upstream) -> None:
    """F13: 103 and 100 before the answer do not count as the answer."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
    upstream.handler = play(hints, 0.05, b"HTTP/1.1 100 Continue\r\n\r\n" + json_message({"n": 1}))
    async with await router.connect() as client:
        for _ in range(2):
            answer = await client.ask(GEN)
            assert (answer.status, answer.json(), answer.get("link")) == (200, {"n": 1}, None)


async def test_f14_redirects_are_the_clients_business(router: InProcess, upstream: Upstream) -> None:
    """F14: a 307 is passed with its Location, and not followed."""
    upstream.handler = play(message(307, b"", [("Location", "http://10.0.0.9/x")], reason="Temporary Redirect"))
    answer = await router.ask(GEN)
    assert (answer.status, answer.reason) == (307, b"Temporary Redirect")
    assert answer.get("location") == b"http://10.0.0.9/x"
    assert len(upstream.requests) == 1


async def test_f15_methods_pass(router: InProcess, upstream: Upstream) -> None:
    """F15: any registered method passes; the router answers no CORS preflight of its own."""
    cors = ("Origin: http://a.example", "Access-Control-Request-Method: POST")
    for data in (
        *(request("PROPFIND", "/x"), request("OPTIONS", "*"), request("OPTIONS", "/v1/completions", None, *cors)),
        *(request("DELETE", "/v1/files/a"), request("PATCH", "/x", b"{}"), request("PUT", "/x", b"")),
    ):
        assert (await router.ask(data)).status == 200
    arrived = [(r.method, r.target) for r in upstream.requests]
    assert arrived == [
        *((b"PROPFIND", b"/x"), (b"OPTIONS", b"*"), (b"OPTIONS", b"/v1/completions")),
        *((b"DELETE", b"/v1/files/a"), (b"PATCH", b"/x"), (b"PUT", b"/x")),
    ]
    assert upstream.requests[2].get("origin") == b"http://a.example"


@pytest.mark.parametrize("line", [b"TRACE / HTTP/1.1", b"CONNECT other.test:443 HTTP/1.1", b"CONNECT / HTTP/1.1"])
async def test_f15_trace_and_connect_are_refused(router: InProcess, upstream: Upstream, line: bytes) -> None:
    """F15: TRACE would show a caller's secrets and CONNECT would be an open proxy."""
    await refused(router, line + b"\r\nHost: other.test:443\r\n\r\n", 400, 405)


async def test_pipelined_requests_are_answered_in_order(router: InProcess, upstream: Upstream) -> None:
    """The kind of F07: what follows a request on its connection is a request of its own, served in its turn."""
    async with await Client.connect(router.port) as client:
        await client.send(get("/1") + post("/v1/completions", GEN_BODY) + get("/3"))
        for _ in range(3):
            assert (await client.answer()).status == 200
    assert [r.target for r in upstream.requests] == [b"/1", b"/v1/completions", b"/3"]


async def test_a_broken_follower_does_not_hurt_its_forerunner(router: InProcess, upstream: Upstream) -> None:
    """The kind of F08: a good request is answered though the next one on the connection is malformed."""
    async with await router.connect() as client:
        await client.send(get("/1") + b"GET / HTTP/1.1\r\nHost : x\r\n\r\n")
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 400
        assert await client.closed()
    assert len(upstream.requests) == 1


async def test_a_silent_engine_leaves_later_connections_alone(router: InProcess, upstream: Upstream) -> None:
    """The kind of F03: a request that waits holds nobody else up."""
    upstream.on("/slow", silent)
    async with await router.connect() as slow:
        await slow.send(get("/slow"))
        await upstream.arrival(1)
        assert (await router.ask(get("/fast"))).status == 200
