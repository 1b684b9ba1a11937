"""The middleware around an application that tells vLLM's real output processor what it asks the engine core for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor

from router.engines.vllm import ReadIsolationMiddleware, ReadIsolationScheduler
from router.engines.vllm.counters import Counters
from router.engines.vllm.marks import MARK
from router.engines.vllm.options import PREFIX
from tests.engines.vllm.asking import ON

pytestmark = pytest.mark.engines

SENT: list[EngineCoreRequest] = []


PROCESSOR = OutputProcessor(tokenizer=None, log_stats=False)


async def ask(**params: Any) -> None:
    """As vLLM's endpoints do: its output processor hears of a request right before the engine core gets it."""
    request = EngineCoreRequest(
        request_id=f"x{len(SENT)}",
        prompt_token_ids=[1],
        mm_features=None,
        sampling_params=SamplingParams(detokenize=False, **params),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
        external_req_id=f"x{len(SENT)}",
    )
    PROCESSOR.add_request(request, None)
    SENT.append(request)


async def reads(request: Request) -> Response:
    await asyncio.gather(*(asyncio.create_task(ask(max_tokens=1, logprobs=1)) for _ in range(2)))
    return PlainTextResponse("read")


async def streamed(request: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        yield b""
        await ask(max_tokens=1, logprobs=1)
        yield b"one"
        yield b"two"

    return StreamingResponse(pieces())


async def chat(request: Request) -> Response:
    await ask(max_tokens=9)
    return PlainTextResponse("chat")


async def both(request: Request) -> Response:
    await ask(max_tokens=1, logprobs=1)
    await ask(max_tokens=9)
    return PlainTextResponse("both")


async def fails(request: Request) -> Response:
    await ask(max_tokens=1, logprobs=1)
    return PlainTextResponse("no", 400)


async def metrics(request: Request) -> Response:
    assert request.method == "POST" or "accept-encoding" not in request.headers
    return PlainTextResponse("vllm:one 1\n")


@pytest.fixture
def counters() -> Any:
    made = Counters.create("middleware")
    yield made
    made.remove()


Client = Callable[[], Any]


@pytest.fixture
async def client(counters: Counters) -> Any:
    async with serving() as client:
        yield client


class serving:
    """The application with the middleware, as vLLM makes it: its state first, then lifespan, then requests."""

    def __init__(self, scheduler: type = ReadIsolationScheduler) -> None:
        endpoints = (reads, streamed, chat, both, fails, metrics)
        self.app = Starlette(routes=[Route(f"/{one.__name__}", one, methods=["GET", "POST"]) for one in endpoints])
        self.app.add_middleware(ReadIsolationMiddleware)
        self.app.state.vllm_config = SimpleNamespace(
            scheduler_config=SimpleNamespace(get_scheduler_cls=lambda: scheduler), instance_id="middleware"
        )
        SENT.clear()
        PROCESSOR.request_states.clear()

    async def __aenter__(self) -> httpx.AsyncClient:
        await self.app({"type": "lifespan", "state": {}}, self._receive, self._send)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://engine")
        return self.client

    async def __aexit__(self, *error: object) -> None:
        await self.client.aclose()

    def _begin(self) -> Any:
        yield {"type": "lifespan.startup"}
        yield {"type": "lifespan.shutdown"}

    async def _receive(self) -> Any:
        if not hasattr(self, "_messages"):
            self._messages = self._begin()
        return next(self._messages)

    async def _send(self, message: Any) -> None:
        if message["type"] == "lifespan.startup.failed":
            raise RuntimeError(message["message"])


def marks() -> list[Any]:
    return [(request.sampling_params.extra_args or {}).get(MARK) for request in SENT]


async def test_marked_and_acknowledged(client: httpx.AsyncClient) -> None:
    answer = await client.post("/reads", headers=ON)
    assert answer.headers["x-cache-bypass"] == "applied"
    assert marks() == [1, 1]


async def test_a_stream_is_acknowledged_in_its_head(client: httpx.AsyncClient) -> None:
    answer = await client.post("/streamed", headers=ON)
    assert answer.headers["x-cache-bypass"] == "applied"
    assert answer.text == "onetwo"
    assert marks() == [1]


async def test_without_the_header_nothing_happens(client: httpx.AsyncClient) -> None:
    for path in ("/reads", "/streamed", "/chat"):
        assert "x-cache-bypass" not in (await client.post(path)).headers
    assert marks() == [None] * 4


@pytest.mark.parametrize(("path", "marked"), [("/chat", [None]), ("/both", [1, None]), ("/fails", [1])])
async def test_what_is_not_acknowledged(client: httpx.AsyncClient, path: str, marked: list[Any]) -> None:
    assert "x-cache-bypass" not in (await client.post(path, headers=ON)).headers
    assert marks() == marked


async def test_no_acknowledgement_once_a_read_was_not_isolated(client: httpx.AsyncClient, counters: Counters) -> None:
    counters.add("reads_not_isolated")
    assert "x-cache-bypass" not in (await client.post("/reads", headers=ON)).headers


async def test_no_acknowledgement_without_a_scheduler_to_be_seen(client: httpx.AsyncClient, counters: Counters) -> None:
    counters.remove()
    assert "x-cache-bypass" not in (await client.post("/reads", headers=ON)).headers


async def test_every_read_if_asked(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "LOGPROB_READ_ISOLATE", "1")
    async with serving() as client:
        assert (await client.post("/reads")).headers["x-cache-bypass"] == "applied"
        assert "x-cache-bypass" not in (await client.post("/reads", headers={"X-Cache-Bypass": "off"})).headers
        assert "x-cache-bypass" not in (await client.post("/chat")).headers
        assert (await client.post("/streamed")).text == "onetwo"
    assert marks() == [1, 1, 0, 0, None, 1]


async def test_another_header(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "BYPASS_HEADER", "X-Alone")
    async with serving() as client:
        assert (await client.post("/reads", headers={"x-alone": "yes"})).headers["x-alone"] == "applied"
        await client.post("/reads", headers=ON)
    assert marks() == [1, 1, None, None]


async def test_our_series_after_vllm_s(client: httpx.AsyncClient, counters: Counters) -> None:
    counters.add("read_steps", 7)
    answer = await client.get("/metrics", headers={"Accept-Encoding": "gzip"})
    assert answer.text.startswith("vllm:one 1\n")
    assert "logprob_router_engine_read_steps_total 7.0" in answer.text
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert "logprob_router" not in (await client.post("/metrics")).text


async def test_without_our_scheduler_vllm_does_not_start() -> None:
    with pytest.raises(RuntimeError, match=r"this vLLM runs Scheduler. Start it with --scheduler-cls"):
        async with serving(Scheduler):
            pass
