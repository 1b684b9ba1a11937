"""The middleware: it sees the bypass header, marks the reads that vLLM makes of the request, and acknowledges them.

One HTTP request may become many requests to the engine: a list of prompts, `n`, the questions of a decision. They are
marked where all of them pass on their way to the engine core; a context variable says whose they are. So no body is
parsed or changed, and every endpoint is covered, those included that ask their own engine.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from router.engines.headers import APPLIED, truthy
from router.engines.targets import HookError
from router.engines.vllm import checks, marks
from router.engines.vllm.counters import EngineSeries, read_totals
from router.engines.vllm.options import Options

logger = logging.getLogger("vllm.logprob_router")

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_current: ContextVar[Marking | None] = ContextVar("logprob_router_marking", default=None)
_DONE = "_logprob_router_marks"


class Marking:
    """What becomes of one HTTP request: whether its reads are to be isolated, and what the engine got of it."""

    __slots__ = ("isolate", "others", "reads")

    def __init__(self, isolate: bool) -> None:
        self.isolate = isolate
        self.reads = 0
        self.others = 0

    def see(self, request: Any) -> None:
        """A request on its way to the engine core (`EngineCoreRequest`)."""
        if marks.scores_one_token(request):
            marks.set_mark(request, self.isolate)
            self.reads += 1
        else:
            self.others += 1

    @property
    def all_isolated(self) -> bool:
        return self.isolate and self.reads > 0 and self.others == 0


def _hook_output_processor() -> None:
    """Let every engine request pass by its marking.

    vLLM's output processor is told of each right before the engine core gets it, of each of `n` too; it runs in the
    API server, in the task that asks.
    """
    (target,) = checks.ENTRY_TARGETS
    holder, name = target.owner()
    original = getattr(holder, name)
    if getattr(original, _DONE, False):
        return

    @functools.wraps(original)
    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        marking = _current.get()
        if marking is not None:
            marking.see(request)
        return original(self, request, *args, **kwargs)

    setattr(add_request, _DONE, True)
    setattr(holder, name, add_request)


class ReadIsolationMiddleware:
    """ASGI middleware for vLLM's API server: `--middleware router.engines.vllm.ReadIsolationMiddleware`.

    A request with the bypass header has its reads isolated, and with `LOGPROB_ROUTER_ENGINE_VLLM_LOGPROB_READ_ISOLATE`
    every request has. The answer carries the header with the value `applied` if all that the engine computed for it
    were isolated reads, and the scheduler's counters show no read that was not. GET /metrics has our series after
    vLLM's. Everything else passes untouched.

    vLLM does not start if its insides moved (`HookError`), or without our scheduler.
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self.options = Options.from_environ()
        self.version = checks.check_version()
        self._header = self.options.bypass_header.lower().encode("latin-1")
        self._instance = ""
        self._registry = CollectorRegistry()
        _hook_output_processor()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["type"] != "http":
            await self.app(scope, receive, send)
        elif scope["path"] == "/metrics" and scope["method"] == "GET":
            await self._metrics(scope, receive, send)
        else:
            await self._pass(scope, receive, send)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._start(scope["app"].state)
        except HookError as error:
            # Said as ASGI says it: uvicorn takes an exception for an application without lifespan, and serves.
            await receive()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await self.app(scope, receive, send)

    def _start(self, state: Any) -> None:
        """Look at what the API server is in front of, before it serves."""
        config = state.vllm_config
        scheduler = config.scheduler_config.get_scheduler_cls()
        if not issubclass(scheduler, _our_scheduler()):
            raise HookError(
                f"the middleware works with our scheduler only, and this vLLM runs {scheduler.__name__}. Start it with "
                "--scheduler-cls router.engines.vllm.ReadIsolationScheduler as well."
            )
        self._instance = config.instance_id
        isolates = "reads" if self.options.isolate_all else "marked"
        self._registry.register(EngineSeries(self._instance, self.version, isolates))

    def _asked(self, headers: list[tuple[bytes, bytes]]) -> bool | None:
        """What the bypass header says; None if it is absent."""
        for name, value in headers:
            if name == self._header:
                return truthy(value.decode("latin-1"))
        return None

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = self._asked(scope["headers"])
        isolate = self.options.isolate_all if asked is None else asked
        if not isolate and not self.options.isolate_all:
            await self.app(scope, receive, send)
            return
        marking = Marking(isolate)
        answer = _Answer(send, marking, self._acknowledgement, hold=asked is not None)
        token = _current.set(marking)
        try:
            await self.app(scope, receive, answer)
        finally:
            _current.reset(token)

    def _acknowledgement(self) -> tuple[bytes, bytes] | None:
        """The header that says so, while the scheduler can be seen and has isolated all that it took."""
        totals = read_totals(self._instance)
        if totals is None or totals["reads_not_isolated"]:
            return None
        return self._header, APPLIED.encode("ascii")

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """vLLM's metrics, and ours after them. Asked for plainly, so that they are text in both cases."""
        plain = [(name, value) for name, value in scope["headers"] if name not in (b"accept", b"accept-encoding")]
        ours = generate_latest(self._registry)

        async def with_ours(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    (name, str(int(value) + len(ours)).encode("ascii") if name == b"content-length" else value)
                    for name, value in message.get("headers", [])
                ]
            elif message["type"] == "http.response.body" and not message.get("more_body", False):
                message["body"] = message.get("body", b"") + ours
            await send(message)

        await self.app({**scope, "headers": plain}, receive, with_ours)


class _Answer:
    """The way back to the client, with the acknowledgement in its head.

    A stream's head is ready before the engine has seen the request. Where the client asked, it is held until the
    first bytes of the body, when it is known what the engine got.
    """

    def __init__(
        self, send: Send, marking: Marking, acknowledgement: Callable[[], tuple[bytes, bytes] | None], hold: bool
    ) -> None:
        self._send = send
        self._marking = marking
        self._acknowledgement = acknowledgement
        self._hold = hold
        self._head: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message
            if self._hold and not (self._marking.reads or self._marking.others):
                return
            await self._send_head()
            return
        if message["type"] == "http.response.body" and not message.get("body") and message.get("more_body"):
            return  # an empty piece says nothing, and would let the head go too early
        await self._send_head()
        await self._send(message)

    async def _send_head(self) -> None:
        head, self._head = self._head, None
        if head is None:
            return
        if self._marking.all_isolated and head["status"] < 400 and (field := self._acknowledgement()):
            head["headers"] = [*head.get("headers", []), field]
        await self._send(head)


def _our_scheduler() -> type:
    from router.engines.vllm.scheduler import ReadIsolationScheduler

    return ReadIsolationScheduler
