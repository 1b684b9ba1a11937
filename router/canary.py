"""The canary: one stored read is replayed now and then and must come back bit for bit.

It takes a turn in the lane like any read, but only when nothing waits. The first answer after start, after the engine
came back, or after its models changed, is the baseline.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Literal

import anyio
import msgspec

logger = logging.getLogger("router.canary")

RETRY = 0.25

Result = Literal["baseline", "same", "different", "failed"]

BODY = {
    "prompt": "A reader asks the same question twice and compares the answers. The second answer is",
    "max_tokens": 1,
    "logprobs": 5,
    "temperature": 0,
}


class Canary:
    """Compares a read's log-probabilities with those it had before.

    Args:
        ask: sends the stored read and gives its answer's status and body.
        era: what must stay the same for answers to be comparable: the engine's process and its models.
        report: told each result, and the largest deviation in nats.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[tuple[int, bytes]]],
        era: Callable[[], Hashable],
        report: Callable[[Result, float], None],
    ) -> None:
        self._ask = ask
        self._era = era
        self._report = report
        self._baseline: list[tuple[str, float]] | None = None
        self._of: Hashable = None

    async def run(self, interval: float, may_run: Callable[[], bool]) -> None:
        """Replay every `interval` seconds, but never while `may_run` says no: then as soon as it says yes."""
        while True:
            pause = min(interval, RETRY)
            if may_run():
                await self.check()
                pause = interval
            await anyio.sleep(pause)

    async def check(self) -> Result:
        """Replay once."""
        era = self._era()
        status, body = await self._ask()
        scores = scores_of(body) if status == 200 else None
        if scores is None:
            return self._tell("failed", 0.0)
        if self._baseline is None or era != self._of:
            self._baseline, self._of = scores, era
            return self._tell("baseline", 0.0)
        if scores == self._baseline:
            return self._tell("same", 0.0)
        deviation = _deviation(scores, self._baseline)
        logger.error("the canary's read moved by %.3g nats: it was %s and is %s", deviation, self._baseline, scores)
        return self._tell("different", deviation)

    def _tell(self, result: Result, deviation: float) -> Result:
        self._report(result, deviation)
        return result


def scores_of(body: bytes) -> list[tuple[str, float]] | None:
    """Every number under the first choice's `logprobs`, with its path; None where there is none."""
    try:
        logprobs = msgspec.json.decode(body)["choices"][0]["logprobs"]
    except (msgspec.DecodeError, KeyError, IndexError, TypeError):
        return None
    return list(_numbers("", logprobs)) or None


def _numbers(path: str, value: Any) -> list[tuple[str, float]]:
    if isinstance(value, dict):
        token = value.get("id", value.get("token", ""))
        return [n for key, inner in value.items() for n in _numbers(f"{path}/{token}{key}", inner)]
    if isinstance(value, list):
        return [n for inner in value for n in _numbers(path, inner)]
    return [(path, float(value))] if isinstance(value, float) else []


def _deviation(a: list[tuple[str, float]], b: list[tuple[str, float]]) -> float:
    left, right = dict(a), dict(b)
    return max((abs(left[key] - right[key]) for key in left.keys() & right.keys()), default=0.0)
