"""Real clients, unmodified: what they get through the router is what they get straight from the engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import requests
import websockets

from tests.support.answers import LAST_CHUNK, STREAM_HEAD, chunk, completion, engine, json_message
from tests.support.client import GEN_BODY, READ1_BODY
from tests.support.routers import InProcess, running
from tests.support.tools import output_of
from tests.support.upstream import Connection, Request, Upstream

TEXT = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m"}
MESSAGES: Any = [{"role": "user", "content": "日本"}]


async def chat(connection: Connection, request: Request) -> None:
    """An engine's chat endpoint, streaming or not; everything else as `engine`."""
    if request.path != "/v1/chat/completions":
        await engine(connection, request)
    elif not request.json().get("stream"):
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "日本"}}
        await connection.send(json_message({**TEXT, "choices": [choice]}))
    else:
        await connection.send(STREAM_HEAD)
        for piece in ("日", "本", " ok"):
            delta = {"index": 0, "delta": {"content": piece}, "finish_reason": None}
            data = json.dumps({**TEXT, "object": "chat.completion.chunk", "choices": [delta]}, ensure_ascii=False)
            await connection.send(chunk(f"data: {data}\n\n".encode()))
            await asyncio.sleep(0.01)
        await connection.send(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)


@pytest.fixture
def upstream_handler(upstream: Upstream) -> None:
    upstream.handler = chat


pytestmark = pytest.mark.usefixtures("upstream_handler")


def url_of(router: InProcess) -> str:
    return f"http://127.0.0.1:{router.port}"


@pytest.mark.programs
@pytest.mark.parametrize("version", ["--http1.0", "--http1.1"])
@pytest.mark.parametrize("expect", [[], ["-H", "Expect: 100-continue"]])
async def test_curl(router: InProcess, upstream: Upstream, tmp_path: Path, version: str, expect: list[str]) -> None:
    """curl in HTTP/1.0 and 1.1, with a large upload that waits for 100 Continue, a stream, a HEAD."""
    big = tmp_path / "big"
    big.write_bytes(bytes(range(256)) * 8000)
    base = ("-sS", "--fail-with-body", version, *expect, "--max-time", "20")
    url = url_of(router)
    await output_of("curl", *base, "--data-binary", f"@{big}", "-H", "Content-Type: x/y", f"{url}/v1/files")
    assert upstream.requests[-1].body == big.read_bytes()
    said = await output_of("curl", *base, "--json", READ1_BODY.decode(), "-i", f"{url}/v1/completions")
    assert "X-Read-Isolation: serial" in said
    assert upstream.requests[-1].body == READ1_BODY
    body = json.dumps({"messages": MESSAGES, "stream": True})
    said = await output_of("curl", *base, "-N", "--json", body, f"{url}/v1/chat/completions")
    assert said.endswith("data: [DONE]\n\n")
    assert "日" in said
    assert "200 OK" in await output_of("curl", *base, "-I", f"{url}/v1/models")


@pytest.mark.programs
async def test_curl_sees_an_abnormal_end(router: InProcess, upstream: Upstream) -> None:
    """curl's exit code for a stream that broke at the engine is 18, as it would be without the router."""

    async def breaking(connection: Connection, request: Request) -> None:
        await connection.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        connection.close()

    upstream.handler = breaking
    with pytest.raises(AssertionError, match=r"data: 1[\s\S]*curl: \(18\)"):
        await output_of("curl", "-sS", "-N", "--max-time", "10", f"{url_of(router)}/v1/models")


async def test_the_openai_sdk(router: InProcess, upstream: Upstream) -> None:
    """Sync, async and streaming; a read and a list of prompts; an error of the engine's."""

    def sync() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=url_of(router) + "/v1", api_key="k", max_retries=0) as client:
            whole = client.chat.completions.create(model="m", messages=MESSAGES).choices[0].message.content
            stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            return whole, "".join(event.choices[0].delta.content or "" for event in stream)

    assert await asyncio.to_thread(sync) == ("日本", "日本 ok")
    async with openai.AsyncOpenAI(base_url=url_of(router) + "/v1", api_key="k", max_retries=0) as client:
        answer = await client.chat.completions.create(model="m", messages=MESSAGES)
        assert answer.choices[0].message.content == "日本"
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        pieces = [event.choices[0].delta.content async for event in stream]
        assert pieces == ["日", "本", " ok"]
        read = await client.completions.create(model="m", prompt=["a", "b"], max_tokens=1, logprobs=1)
        assert [(c.index, c.text) for c in read.choices] == [(0, "a"), (1, "b")]

        async def refusing(connection: Connection, request: Request) -> None:
            await connection.send(json_message({"error": {"message": "no", "code": 7}}, 400))

        upstream.handler = refusing
        with pytest.raises(openai.BadRequestError, match="no"):
            await client.chat.completions.create(model="m", messages=MESSAGES)
    assert all(r.get("authorization") == b"Bearer k" for r in upstream.requests)


async def test_httpx(router: InProcess, upstream: Upstream) -> None:
    """httpx: a pooled client, a streamed upload, a streamed answer."""
    async with httpx.AsyncClient(base_url=url_of(router)) as client:
        for _ in range(3):
            answer = await client.post("/v1/completions", json=json.loads(READ1_BODY))
            assert answer.headers["x-read-isolation"] == "serial"

        async def pieces() -> Any:
            for _ in range(10):
                yield b"x" * 10_000

        assert (await client.post("/v1/files", content=pieces())).status_code == 200
        assert upstream.requests[-1].body == b"x" * 100_000
        async with client.stream("POST", "/v1/chat/completions", json={"stream": True}) as streamed:
            lines = [line async for line in streamed.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"


async def test_aiohttp(router: InProcess, upstream: Upstream) -> None:
    """aiohttp: a session with a compressed upload and a streamed answer."""
    async with aiohttp.ClientSession(url_of(router)) as session:
        async with session.post("/v1/completions", json=json.loads(READ1_BODY)) as answer:
            assert answer.headers["x-read-isolation"] == "serial"
        async with session.post("/v1/completions", json=json.loads(READ1_BODY), compress="deflate") as answer:
            assert answer.headers["x-read-isolation"] == "serial"
        assert upstream.requests[-1].get("content-encoding") == b"deflate"
        async with session.post("/v1/chat/completions", json={"stream": True}) as answer:
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")


async def test_requests(router: InProcess, upstream: Upstream) -> None:
    """requests: a session with a multipart upload and a streamed answer."""

    def work() -> None:
        with requests.Session() as session:
            answer = session.post(url_of(router) + "/v1/completions", json=json.loads(GEN_BODY), timeout=10)
            assert answer.json() == completion(json.loads(GEN_BODY), 1)
            files = {"file": ("a.wav", bytes(range(256)) * 100, "audio/wav")}
            assert session.post(url_of(router) + "/v1/audio/transcriptions", files=files, timeout=10).ok
            streamed = session.post(
                url_of(router) + "/v1/chat/completions", json={"stream": True}, stream=True, timeout=10
            )
            assert list(streamed.iter_lines())[-2] == b"data: [DONE]"

    await asyncio.to_thread(work)
    assert bytes(range(256)) * 100 in upstream.requests[1].body


NODE = """
const url = process.argv[1];
const post = (path, body) => fetch(url + path, {method: "POST", headers: {"content-type": "application/json"}, body});
const read = await post("/v1/completions", process.argv[2]);
console.log(read.status, read.headers.get("x-read-isolation"), (await read.json()).choices[0].text);
const stream = await post("/v1/chat/completions", '{"stream":true}');
let text = "";
const decoder = new TextDecoder();
for await (const piece of stream.body) text += decoder.decode(piece, {stream: true});
console.log(text.trim().split("\\n\\n").length, text.trim().endsWith("[DONE]"));
const many = await Promise.all([...Array(20).keys()].map(() => post("/v1/completions", process.argv[2])));
console.log(many.every((answer) => answer.status === 200));
"""


@pytest.mark.programs
async def test_node(router: InProcess, upstream: Upstream) -> None:
    """node's fetch: a read, a stream, twenty reads at once."""
    said = await output_of("node", "--input-type=module", "-e", NODE, url_of(router), READ1_BODY.decode())
    assert said.splitlines() == ["200 serial hi", "4 true", "true"]
    assert upstream.max_reads_overlap == 1


@pytest.mark.programs
async def test_java(router: InProcess, upstream: Upstream) -> None:
    """The JDK's client, which offers h2c: it is served in HTTP/1.1 and loses no body."""
    source = str(Path(__file__).with_name("Client.java"))
    said = await output_of("java", source, url_of(router), READ1_BODY.decode(), GEN_BODY.decode())
    lines = [line.split(" ", 3) for line in said.splitlines()]
    assert [line[:3] for line in lines] == [["200", "HTTP_1_1", label] for label in ("serial", "-", "serial")]
    assert [r.body for r in upstream.requests] == [READ1_BODY, GEN_BODY, READ1_BODY]
    assert all("upgrade" not in r.names() for r in upstream.requests)


@pytest.mark.programs
async def test_wrk(router: InProcess, upstream: Upstream) -> None:
    """wrk, which keeps its connections busy: no socket error, no answer but 200."""
    said = await output_of("wrk", "-t1", "-c8", "-d1s", "--latency", f"{url_of(router)}/v1/models")
    assert "Requests/sec" in said
    assert "Socket errors" not in said
    assert "Non-2xx" not in said


async def test_websockets() -> None:
    """A real websocket client and server: text, large binary frames, pings, and the closing handshake."""

    async def echo(socket: websockets.ServerConnection) -> None:
        async for message in socket:
            await socket.send(message)
        assert socket.request is not None
        assert socket.request.path == "/v1/realtime?model=m"

    async with (
        websockets.serve(echo, "127.0.0.1", 0) as server,
        Upstream() as unused,
        running(unused, url=f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}") as router,
    ):
        uri = f"ws://127.0.0.1:{router.port}/v1/realtime?model=m"
        async with websockets.connect(uri, compression="deflate") as socket:
            for message in ("日本", bytes(range(256)) * 2000, ""):
                await socket.send(message)
                assert await socket.recv() == message
            await (await socket.ping())
        assert socket.close_code == 1000
        samples = await router.settled()
        assert samples.sum("requests_total", kind="other", outcome="ok") == 1
