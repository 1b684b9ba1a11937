"""What is a read inside vLLM, and the mark that asks for its isolation.

The mark travels in `SamplingParams.extra_args`, where vLLM puts a request's `vllm_xargs`: so a client without our
middleware can set it too.
"""

from __future__ import annotations

from typing import Any

from router.engines.headers import truthy

MARK = "logprob_router_read"


def scores_one_token(request: Any) -> bool:
    """Whether a request (vLLM's `EngineCoreRequest` or `Request`) is of a read's shape.

    A read with images is none: what its encoder computed may come from another request's step.
    """
    params = request.sampling_params
    if params is None or params.max_tokens != 1 or request.resumable or request.mm_features:
        return False
    # logprob_token_ids alone is what vLLM's decision endpoints send to their own engine.
    return params.logprobs is not None or params.prompt_logprobs is not None or bool(params.logprob_token_ids)


def isolates(request: Any, isolate_all: bool) -> bool:
    """Whether a request is a read to be isolated. Its mark decides; without one, `isolate_all` does."""
    if not scores_one_token(request):
        return False
    mark = (request.sampling_params.extra_args or {}).get(MARK)
    return isolate_all if mark is None else truthy(str(mark))


def set_mark(request: Any, isolate: bool) -> None:
    """Mark a request that is of a read's shape."""
    params = request.sampling_params
    params.extra_args = {**(params.extra_args or {}), MARK: int(isolate)}
