"""The dialects: for each path that scores, where the request says that it wants log-probabilities of one token.

One row a path. `names` holds the member names without which the row cannot be a read, as alternatives of which one must
occur in the body (after the escapes are undone); `judge` decides on the decoded members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

from router.reads.values import as_int, is_set, is_true, positive

Members = Mapping[str, Any]
"""The decoded members that a row names. Absent ones are missing."""

Shape = Literal["choices", "array"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One row.

    Attributes:
        route: the path, which is also the metrics label.
        names: groups of member names; of each group one must be in the body.
        judge: whether these members make a read.
        prompts: members that may hold a list of prompts, each of which is a read of its own.
        per_prompt: members that may hold a list with one entry for each prompt.
        shape: how the engine answers a list: one object with `choices`, or an array.
        whole: several reads run inside one request, which takes a turn as it is.
        scores: whether it can be a read at all; other rows are chat that is looked at for its prefix.
        streams: whether the answer is a stream when the request does not say.
    """

    route: str
    names: tuple[tuple[bytes, ...], ...] = ()
    judge: Callable[[Members], bool] = lambda members: True
    fields: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    per_prompt: tuple[str, ...] = ()
    shape: Shape = "choices"
    whole: bool = False
    scores: bool = True
    streams: bool = False


def _completions(m: Members) -> bool:
    cap = as_int(m.get("max_tokens"))
    if not (is_set(m.get("logprobs")) or is_set(m.get("prompt_logprobs"))):
        return False
    return cap == 1 or (cap == 0 and is_true(m.get("echo")))


def _chat(m: Members) -> bool:
    cap = m.get("max_completion_tokens")
    if not is_set(cap):
        cap = m.get("max_tokens")
    return as_int(cap) == 1 and (is_true(m.get("logprobs")) or is_set(m.get("prompt_logprobs")))


def _invocations(m: Members) -> bool:
    """vLLM's `/invocations` dispatches by payload."""
    return _chat(m) if is_set(m.get("messages")) else _completions(m)


def _responses(m: Members) -> bool:
    include = m.get("include")
    asked = isinstance(include, list) and "message.output_text.logprobs" in include
    return as_int(m.get("max_output_tokens")) == 1 and (asked or is_set(m.get("top_logprobs")))


def _vllm_generate(m: Members) -> bool:
    params = m.get("sampling_params")
    if not isinstance(params, dict) or as_int(params.get("max_tokens")) != 1:
        return False
    return any(is_set(params.get(name)) for name in ("logprobs", "prompt_logprobs", "logprob_token_ids"))


def _generate(m: Members) -> bool:
    """SGLang's and TGI's paths are the same; their members are not."""
    wanted = m.get("return_logprob")
    if is_true(wanted) or (isinstance(wanted, list) and any(map(is_true, wanted))):
        params = m.get("sampling_params")
        each = params if isinstance(params, list) else [params]
        return bool(each) and all(isinstance(p, dict) and as_int(p.get("max_new_tokens")) in (0, 1) for p in each)
    params = m.get("parameters")
    if not isinstance(params, dict) or as_int(params.get("max_new_tokens")) != 1:
        return False
    return (
        is_true(params.get("details"))
        or is_true(params.get("decoder_input_details"))
        or positive(params.get("top_n_tokens"))
    )


def _llamacpp(m: Members) -> bool:
    return positive(m.get("n_probs")) and as_int(m.get("n_predict")) in (0, 1)


def _ollama(m: Members) -> bool:
    options = m.get("options")
    return is_true(m.get("logprobs")) and isinstance(options, dict) and as_int(options.get("num_predict")) == 1


_LOGPROBS = (b"logprobs",)
_OPENAI_CAPS = (b"max_tokens", b"max_completion_tokens")

_ROWS = (
    Dialect(
        "/v1/completions",
        names=(_LOGPROBS, (b"max_tokens",)),
        judge=_completions,
        fields=("logprobs", "prompt_logprobs", "max_tokens", "echo"),
        prompts=("prompt",),
    ),
    Dialect(
        "/v1/chat/completions",
        names=(_LOGPROBS, _OPENAI_CAPS),
        judge=_chat,
        fields=("logprobs", "prompt_logprobs", "max_tokens", "max_completion_tokens"),
    ),
    Dialect(
        "/invocations",
        names=(_LOGPROBS, _OPENAI_CAPS),
        judge=_invocations,
        fields=("logprobs", "prompt_logprobs", "max_tokens", "max_completion_tokens", "echo", "messages"),
        prompts=("prompt",),
    ),
    Dialect(
        "/v1/responses",
        names=(_LOGPROBS, (b"max_output_tokens",)),
        judge=_responses,
        fields=("include", "top_logprobs", "max_output_tokens"),
    ),
    Dialect(
        "/inference/v1/generate",
        names=((b"logprobs", b"logprob_token_ids"), (b"max_tokens",)),
        judge=_vllm_generate,
        fields=("sampling_params",),
    ),
    Dialect(
        "/generate",
        names=((b"return_logprob", b"details", b"top_n_tokens"), (b"max_new_tokens",)),
        judge=_generate,
        fields=("return_logprob", "sampling_params", "parameters"),
        prompts=("text", "input_ids"),
        per_prompt=(
            "sampling_params",
            "return_logprob",
            "logprob_start_len",
            "top_logprobs_num",
            "token_ids_logprob",
            "rid",
            "image_data",
            "lora_path",
        ),
        shape="array",
    ),
    *(
        Dialect(
            route,
            names=((b"n_probs",), (b"n_predict",)),
            judge=_llamacpp,
            fields=("n_probs", "n_predict"),
            prompts=("prompt",),
            shape="array",
        )
        for route in ("/completion", "/completions")
    ),
    *(
        Dialect(
            route, names=(_LOGPROBS, (b"num_predict",)), judge=_ollama, fields=("logprobs", "options"), streams=True
        )
        for route in ("/api/generate", "/api/chat")
    ),
    Dialect("/v1/messages", scores=False),
    *(Dialect(route, whole=True) for route in ("/v1/systemone", "/v1/decisions", "/generative_scoring", "/v1/score")),
)

ROUTES: Mapping[str, Dialect] = {row.route: row for row in _ROWS}
_BY_PATH = {row.route.encode(): row for row in _ROWS}


def find(method: str, raw_path: bytes, content_type: bytes | None) -> Dialect | None:
    """The dialect of a request whose body is to be inspected.

    Args:
        raw_path: the target without its query. It is percent-decoded once; slashes and dots stay as they are.
    """
    if method != "POST" or content_type is None:
        return None
    row = _BY_PATH.get(raw_path)
    if row is None and b"%" in raw_path:
        row = _BY_PATH.get(unquote_to_bytes(raw_path))
    if row is None or content_type.partition(b";")[0].strip().lower() != b"application/json":
        return None
    return row
