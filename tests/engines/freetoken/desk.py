"""FreeToken's API in this process, on its own tokenizer functions and message encoding; the scheduler is a few lines.

What the API sends goes through FreeToken's encoder and decoder, is answered from the stand-in's scores by way of the
scheduler's own sending method, and comes back through the detokenizer's functions, encoded and decoded again.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import freetoken.server.api_server as server
import freetoken.tokenizer.server as worker
import httpx
from freetoken.core import Batch
from freetoken.engine.sample import Sampler
from freetoken.message.backend import BaseBackendMsg, UserMsg
from freetoken.message.frontend import BaseFrontendMsg
from freetoken.message.tokenizer import AbortMsg, BaseTokenizerMsg, DetokenizeMsg, PromptAdmittedMsg, TokenizeMsg
from freetoken.scheduler.scheduler import Scheduler
from freetoken.tokenizer.detokenize import DetokenizeManager
from freetoken.tokenizer.tokenize import TokenizeManager

from router.engines.freetoken import isolation
from tests.engines.freetoken import hooked
from tests.engines.freetoken.rig import CPU
from tests.engines.freetoken.standin.checkpoint import write
from tests.engines.freetoken.standin.model import VOCABULARY, scores


@cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    folder = Path(tempfile.mkdtemp(prefix="freetoken-"))
    write(folder)
    return AutoTokenizer.from_pretrained(folder)


class Sending(Scheduler):  # type: ignore[misc]
    """A scheduler with nothing in it but the way to the detokenizer."""

    def __init__(self, desk: Desk) -> None:
        self._send_into_tokenizer = SimpleNamespace(put=desk.from_scheduler)


class Desk:
    """Both ends of FreeToken's queues."""

    def __init__(self) -> None:
        self.replies: asyncio.Queue[Any] = asyncio.Queue()
        self.aborted: list[int] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.tokenize = TokenizeManager(tokenizer(), None)
        self.detokenize = DetokenizeManager(tokenizer(), frozenset({2}))
        self.sampler = Sampler(CPU, VOCABULARY)
        self.scheduler = Sending(self)
        self.tasks: set[asyncio.Task[None]] = set()

    # -- the API's queues

    async def put(self, message: Any) -> None:
        message = BaseTokenizerMsg.decoder(BaseTokenizerMsg.encoder(message))
        if isinstance(message, AbortMsg):
            self.aborted.append(message.uid)
        elif isinstance(message, TokenizeMsg):
            self.tasks.add(asyncio.create_task(self.schedule(message)))

    async def get(self) -> Any:
        return await self.replies.get()

    # -- the other processes

    async def schedule(self, message: TokenizeMsg) -> None:
        (user,) = self.tokenize.tokenize([message])
        user = BaseBackendMsg.decoder(UserMsg.encoder(user))
        await self.hold.wait()
        ids = user.input_ids.tolist()
        self.scheduler._reply_tokenizer_rank0([PromptAdmittedMsg(uid=user.uid, prompt_tokens=len(ids))])
        req = SimpleNamespace(
            uid=user.uid,
            sampling_params=user.sampling_params,
            can_decode=True,
            cache_handle=SimpleNamespace(cached_len=0),
        )
        batch = Batch(reqs=[req], phase="prefill")
        args = self.sampler.prepare(batch)
        token = self.sampler.sample(scores(ids, len(ids), 0)[None], args)
        self.scheduler.read_scores = {score[0]: score for score in getattr(args, "read_scores", [])}
        assert isolation.is_read(req) or not getattr(user.sampling_params, "read_isolate", False)
        for number in range(user.sampling_params.max_tokens):
            last = number + 1 == user.sampling_params.max_tokens
            self.scheduler._reply_tokenizer_rank0(
                [DetokenizeMsg(uid=user.uid, next_token=int(token[0]), finished=last, finish_reason="length")]
            )

    def from_scheduler(self, message: Any) -> None:
        message = BaseTokenizerMsg.decoder(BaseTokenizerMsg.encoder(message))
        front = SimpleNamespace(put=self.to_api)
        if isinstance(message, PromptAdmittedMsg):
            worker._put_user_replies(front, [worker._prompt_admitted_reply(message)])
            return
        (text,) = self.detokenize.detokenize([message])
        reply = worker.UserReply(
            uid=message.uid,
            incremental_output=text,
            finished=message.finished,
            finish_reason=message.finish_reason,
            completion_tokens_delta=1,
        )
        worker._put_user_replies(front, [reply])

    def to_api(self, message: Any) -> None:
        self.replies.put_nowait(BaseFrontendMsg.decoder(BaseFrontendMsg.encoder(message)))


@asynccontextmanager
async def open_desk() -> AsyncIterator[tuple[httpx.AsyncClient, Desk]]:
    """A client of FreeToken's API, and what stands behind it."""
    desk = Desk()
    config = SimpleNamespace(
        enable_cache_report=True,
        max_output_tokens=None,
        served_model_name="m",
        model_path="m",
        reasoning_parser=None,
        tool_call_parser="llama3",
        served_modalities=frozenset(),
    )
    manager = server.FrontendManager(config=config, send_tokenizer=desk, recv_tokenizer=desk)
    manager.maintenance_state = "serving"
    before, server._GLOBAL_STATE = server._GLOBAL_STATE, manager
    hooked.READS.by_uid.clear()
    hooked.READS.totals = {}
    transport = httpx.ASGITransport(app=server.app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=30) as client:
            yield client, desk
    finally:
        server._GLOBAL_STATE = before
