"""All hooks of the API process: what is a read, its mark on the way in, its log-probabilities on the way out.

FreeToken's own handlers do the work (validation, templates, usage, errors); we run them with the read in a context
variable, and hooks further down put the mark where they build the sampling parameters.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import freetoken.server.api_server as server
from freetoken.server import openai_api
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from router.engines.freetoken import answers, checks, counters, wire
from router.engines.freetoken.checks import Hook
from router.engines.freetoken.options import Options
from router.engines.headers import APPLIED, truthy
from router.engines.targets import Target

METRICS_PATH = "/logprob-router/metrics"
MAX_TOP = 256
"""Most alternatives that one read may ask for."""

_HANDLER = ("req", "request", "state", "model_sampling")
COMPLETION = Target("freetoken.server.openai_api:handle_completion", _HANDLER)
CHAT = Target("freetoken.server.openai_api:handle_chat_completion", _HANDLER)
GENSPEC = Target("freetoken.server.openai_api:chat_request_to_genspec", ("req", "model_sampling", "default_max_tokens"))
SAMPLING = Target("freetoken.server.openai_api:_resolve_sampling", ("req", "model_sampling", "default_max_tokens"))
REFUSE = Target(
    "freetoken.server.openai_api:create_error_response", ("message", "status_code", "err_type", "param", "code")
)
NEW_USER = Target("freetoken.server.api_server:FrontendManager.new_user", ("self",))
ABORT_USER = Target("freetoken.server.api_server:FrontendManager.abort_user", ("self", "uid"))
OBSERVE = Target("freetoken.server.stats:StatsTracker.observe", ("self", "reply", "now"))


@dataclass
class Read:
    """One prompt's read while it is in FreeToken."""

    top: int
    isolate: bool
    uids: list[int] = field(default_factory=list)
    scores: dict[str, Any] | None = None


_current: ContextVar[Read | None] = ContextVar("read", default=None)


class Reads:
    """The reads in flight, and the scheduler's latest counters."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.by_uid: dict[int, Read] = {}
        self.totals: dict[str, int] = {}

    # -- handlers

    def completion(self, original: Callable[..., Any]) -> Callable[..., Any]:
        async def handle_completion(req: Any, request: Any, state: Any, model_sampling: Any) -> Any:
            if req.logprobs is None or req.max_tokens != 1:
                return await original(req, request, state, model_sampling)
            if problem := _bad_top("logprobs", req.logprobs) or _one_choice(req.n):
                return problem
            prompts = req.prompt if isinstance(req.prompt, list) and _texts(req.prompt) else [req.prompt]
            isolate = self.isolates(request)
            plain = [req.model_copy(update={"prompt": prompt, "logprobs": None, "stream": False}) for prompt in prompts]
            reads = [Read(req.logprobs, isolate) for _ in prompts]
            parts = await self.run(
                [
                    self.part(read, original(one, request, state, model_sampling))
                    for read, one in zip(reads, plain, strict=True)
                ],
                reads,
                request,
                state,
            )
            if parts is None:
                return _nobody()
            if failed := _failed(parts, reads):
                return failed
            as_ids = truthy(str((req.model_extra or {}).get("return_tokens_as_token_ids") or ""))
            choices = [
                {**part["choices"][0], "index": place, "logprobs": answers.completion_logprobs(scores, as_ids=as_ids)}
                for place, (part, scores) in enumerate(zip(parts, _scores(reads), strict=True))
            ]
            usage = answers.usage((part["usage"] for part in parts), _scores(reads))
            body = {**parts[0], "choices": choices, "usage": usage}
            return self.answer(req, body, "text_completion.chunk", choices, reads)

        return handle_completion

    def chat(self, original: Callable[..., Any]) -> Callable[..., Any]:
        async def handle_chat_completion(req: Any, request: Any, state: Any, model_sampling: Any) -> Any:
            extra = req.model_extra or {}
            wanted = extra.get("logprobs")
            if wanted is None or not truthy(str(wanted)) or req.max_tokens != 1:
                return await original(req, request, state, model_sampling)
            top = extra.get("top_logprobs") or 0
            if problem := _bad_top("top_logprobs", top):
                return problem
            read = Read(int(top), self.isolates(request))
            plain = req.model_copy(update={"stream": False})
            parts = await self.run(
                [self.part(read, original(plain, request, state, model_sampling))], [read], request, state
            )
            if parts is None:
                return _nobody()
            if failed := _failed(parts, [read]):
                return failed
            (part,), (scores,) = parts, _scores([read])
            choice = {**part["choices"][0], "logprobs": answers.chat_logprobs(scores)}
            body = {**part, "choices": [choice], "usage": answers.usage([part["usage"]], [scores])}
            delta = {**{k: v for k, v in choice.items() if k != "message"}, "delta": choice["message"]}
            return self.answer(req, body, "chat.completion.chunk", [delta], [read])

        return handle_chat_completion

    def isolates(self, request: Any) -> bool:
        return self.options.isolates(None if request is None else request.headers.get(self.options.bypass_header))

    async def part(self, read: Read, call: Coroutine[Any, Any, Any]) -> Any:
        """FreeToken's own handler, for one prompt."""
        _current.set(read)  # this task's own context
        return await call

    async def run(
        self, calls: Iterable[Coroutine[Any, Any, Any]], reads: list[Read], request: Any, state: Any
    ) -> list[Any] | None:
        """Run the parts of one request together.

        Returns:
            FreeToken's answers; None if the client left, and what the scheduler had of the reads is aborted.
        """
        tasks = [asyncio.ensure_future(call) for call in calls]
        left = asyncio.ensure_future(_left(request))
        pending: set[asyncio.Future[Any]] = set(tasks)
        try:
            while pending:
                done, pending = await asyncio.wait({left, *pending}, return_when=asyncio.FIRST_COMPLETED)
                pending.discard(left)
                if left in done and pending:
                    await self.abort(reads, state)
                    return None
            return [task.result() for task in tasks]
        except asyncio.CancelledError:
            await asyncio.shield(self.abort(reads, state))
            raise
        finally:
            for task in (left, *tasks):
                task.cancel()
            for read in reads:
                for uid in read.uids:
                    self.by_uid.pop(uid, None)

    async def abort(self, reads: Iterable[Read], state: Any) -> None:
        unfinished = [uid for read in reads if read.scores is None for uid in read.uids]
        await asyncio.gather(*(state.abort_user(uid) for uid in unfinished))

    def answer(
        self, req: Any, body: dict[str, Any], chunk_object: str, deltas: list[dict[str, Any]], reads: list[Read]
    ) -> Response:
        """The whole body, or the same as one event for a client that asked for a stream.

        Acknowledged only if the scheduler reports every part as isolated.
        """
        headers = {}
        if all(scores["isolated"] for scores in _scores(reads)):
            headers[self.options.bypass_header] = APPLIED
        if not req.stream:
            return JSONResponse(body, headers=headers)
        usage = body.pop("usage")
        events = [{**body, "object": chunk_object, "choices": deltas}]
        if req.stream_options and req.stream_options.include_usage:
            events.append({**body, "object": chunk_object, "choices": [], "usage": usage})
        lines = [json.dumps(event, ensure_ascii=False, allow_nan=False) for event in events]
        text = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
        return StreamingResponse(iter([text.encode()]), media_type="text/event-stream", headers=headers)

    # -- further down

    def mark(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _resolve_sampling(req: Any, *args: Any, **kwargs: Any) -> Any:
            return _marked(original(req, *args, **kwargs))

        return _resolve_sampling

    def mark_chat(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def chat_request_to_genspec(req: Any, *args: Any, **kwargs: Any) -> Any:
            spec = original(req, *args, **kwargs)
            if _current.get() is not None:
                if any(_has_image(message) for message in spec.messages):
                    raise ValueError("images are not supported in reads (logprobs with max_tokens 1)")
                spec.sampling_params = _marked(spec.sampling_params)
            return spec

        return chat_request_to_genspec

    def note_uid(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def new_user(manager: Any) -> Any:
            uid = original(manager)
            if (read := _current.get()) is not None:
                read.uids.append(uid)
                self.by_uid[uid] = read
            return uid

        return new_user

    def observe(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """FreeToken shows every reply to its statistics before it wakes the handler that waits for it."""

        def observe(tracker: Any, reply: Any, now: float | None = None) -> None:
            if isinstance(reply, wire.ReadUserReply):
                if reply.counters is not None:
                    self.totals = reply.counters
                if reply.read is not None and reply.uid in self.by_uid:
                    self.by_uid[reply.uid].scores = reply.read
            original(tracker, reply, now)

        return observe

    def metrics(self) -> Response:
        stats = server.get_global_state().stats
        gauges = {"active_requests": stats.active}
        if stats.kv_total_pages:
            gauges["kv_used_ratio"] = round(stats.kv_used_pages / stats.kv_total_pages, 6)
        isolates = "reads" if self.options.isolate_all else "header"
        text = counters.exposition(self.totals, gauges, server.__version__, isolates)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _marked(params: Any) -> Any:
    read = _current.get()
    if read is None:
        return params
    return wire.upgrade(params, wire.ReadSamplingParams, read_top=read.top, read_isolate=read.isolate)


def _scores(reads: Iterable[Read]) -> list[dict[str, Any]]:
    return [read.scores for read in reads if read.scores is not None]


async def _left(request: Any) -> None:
    """Returns when the client leaves. (Asking now and then whether it has left finds out nothing behind middleware.)"""
    if request is None:
        await asyncio.Event().wait()
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _nobody() -> Response:
    """For a client that left; nginx's code for it, in FreeToken's request log."""
    return Response(status_code=499)


def _failed(parts: list[Any], reads: list[Read]) -> Any:
    """The first part that FreeToken answered with an error, if one did."""
    for part, read in zip(parts, reads, strict=True):
        if not isinstance(part, dict):
            return part
        if read.scores is None:
            return openai_api.create_error_response(
                "the engine returned no log-probabilities", status_code=500, err_type="server_error"
            )
    return None


def _bad_top(name: str, value: Any) -> Any:
    if isinstance(value, int) and 0 <= value <= MAX_TOP:
        return None
    return openai_api.create_error_response(f"{name} must be between 0 and {MAX_TOP}", param=name)


def _one_choice(n: int) -> Any:
    return None if n == 1 else openai_api.create_error_response("Only n=1 is supported", param="n")


def _texts(prompt: list[Any]) -> bool:
    return bool(prompt) and all(isinstance(one, str) for one in prompt)


def _has_image(message: dict[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") not in (None, "text") for part in content
    )


def hooks(reads: Reads) -> list[Hook]:
    return [
        Hook("completion-reads", COMPLETION, reads.completion, uses=(REFUSE, ABORT_USER)),
        Hook("chat-reads", CHAT, reads.chat),
        Hook("mark-completion", SAMPLING, reads.mark),
        Hook("mark-chat", GENSPEC, reads.mark_chat),
        Hook("note-uid", NEW_USER, reads.note_uid),
        Hook("receive-scores", OBSERVE, reads.observe),
    ]


def install(options: Options) -> None:
    """Raises: HookError."""
    wire.register()
    reads = Reads(options)
    checks.install(hooks(reads))

    async def metrics() -> Response:
        return reads.metrics()

    server.app.add_api_route(METRICS_PATH, metrics, methods=["GET"], include_in_schema=False)
