"""Log-probabilities out of the scheduler process: computed where FreeToken samples, sent with its own reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from freetoken.message.tokenizer import DetokenizeMsg, PromptAdmittedMsg

from router.engines.freetoken import wire
from router.engines.freetoken.checks import Hook
from router.engines.freetoken.counters import Counters
from router.engines.freetoken.isolation import is_read
from router.engines.targets import Target

PREPARE = Target("freetoken.engine.sample:Sampler.prepare", ("self", "batch"))
SAMPLE = Target("freetoken.engine.sample:Sampler.sample", ("self", "logits", "args"))
PROCESS = Target("freetoken.scheduler.scheduler:Scheduler._process_last_data", ("self", "last_data"))
REPLY = Target("freetoken.scheduler.io:SchedulerIOMixin._reply_tokenizer_rank0", ("self", "reply"))


def _prepare(original: Callable[..., Any]) -> Callable[..., Any]:
    """Note which rows of a pass are reads, and whether an isolated one really has the pass to itself."""

    def prepare(self: Any, batch: Any) -> Any:
        args = original(self, batch)
        if batch.is_prefill:
            rows = []
            for row, req in enumerate(batch.reqs):
                params = req.sampling_params
                if not isinstance(params, wire.ReadSamplingParams):
                    continue
                if is_read(req) and (len(batch.reqs) > 1 or req.cache_handle.cached_len):
                    params.read_mixed = True
                if req.can_decode:  # its last chunk
                    isolated = params.read_isolate and not params.read_mixed
                    rows.append((row, req.uid, params.read_top, req.cache_handle.cached_len, isolated))
            if rows:
                args.read_rows = rows
        return args

    return prepare


def _sample(original: Callable[..., Any]) -> Callable[..., Any]:
    """Row by row in float32, from the logits before penalties and temperature; ties in the order of token ids."""

    def sample(self: Any, logits: torch.Tensor, args: Any) -> torch.Tensor:
        rows = getattr(args, "read_rows", None)
        if rows is None:
            tokens: torch.Tensor = original(self, logits, args)
            return tokens
        raw = [logits[row].float() for row, *_ in rows]
        tokens = original(self, logits, args)
        args.read_scores = [
            (uid, cached, isolated, *_scores(values, tokens[row].long(), top))
            for values, (row, uid, top, cached, isolated) in zip(raw, rows, strict=True)
        ]
        return tokens

    return sample


def _scores(logits: torch.Tensor, sampled: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The sampled token's id and log-probability, then those of the `top` best.

    Args:
        logits: float32, shape (vocabulary,).
        sampled: int64, shape ().
    Returns:
        ids (int64) and log-probabilities (float32), shape (1 + top,), in host memory once the pass is drained.
    """
    scores = torch.log_softmax(logits, dim=-1)
    ids = sampled.reshape(1)
    if top:
        ids = torch.cat([ids, torch.sort(scores, descending=True, stable=True).indices[:top]])
    return _to_host(ids), _to_host(scores[ids])


def _to_host(values: torch.Tensor) -> torch.Tensor:
    """Copied without waiting for the GPU; FreeToken waits for the pass's own event before it looks at results."""
    if not values.is_cuda:
        return values
    return torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)


def _process(original: Callable[..., Any]) -> Callable[..., Any]:
    def _process_last_data(self: Any, last_data: Any) -> None:
        scores = [] if last_data is None else getattr(last_data[0].sample_args, "read_scores", [])
        self.read_scores = {score[0]: score for score in scores}
        try:
            original(self, last_data)
        finally:
            self.read_scores = {}

    return _process_last_data


def _reply(counters: Counters) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put the scores and the counters on the messages that leave anyway."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _reply_tokenizer_rank0(self: Any, reply: list[Any]) -> None:
            scores = getattr(self, "read_scores", {})
            original(self, [_dress(message, scores, counters) for message in reply])

        return _reply_tokenizer_rank0

    return make


def _dress(message: Any, scores: dict[int, Any], counters: Counters) -> Any:
    if type(message) is PromptAdmittedMsg:
        return wire.upgrade(message, wire.ReadPromptAdmittedMsg, counters=counters.snapshot())
    if type(message) is DetokenizeMsg and message.finished:
        read = None
        if message.uid in scores:
            _, cached, isolated, ids, values = scores[message.uid]
            read = {"ids": ids.tolist(), "scores": values.tolist(), "cached": cached, "isolated": isolated}
        return wire.upgrade(message, wire.ReadDetokenizeMsg, read=read, counters=counters.snapshot())
    return message


def hooks(counters: Counters) -> list[Hook]:
    return [
        Hook("mark-rows", PREPARE, _prepare),
        Hook("score-rows", SAMPLE, _sample),
        Hook("collect-scores", PROCESS, _process),
        Hook("send-scores", REPLY, _reply(counters)),
    ]
