"""Chats that run as load beside the reads, as streams, so that one can tell when the engine really produced text."""

from __future__ import annotations

import asyncio
import contextlib
import time

from router.verify.probe import CannotMeasure, Scores, Target

START = 60.0
"""Seconds until every lane of load must have had its first piece of text."""


QUIET = 1.2
"""Seconds until an engine has noticed that the chats were cut: a baseline read before that would not be alone."""


class ChatLoad:
    """Chats that run one after another in each of `lanes`, while the block is entered; it is entered once all talk.

    Attributes:
        pieces: pieces of text that arrived while the block was entered, which on most engines is one for each token.

    Raises:
        CannotMeasure: a chat failed, or none began.
    """

    def __init__(self, target: Target, lanes: int, max_tokens: int = 48) -> None:
        self.target = target
        self.lanes = lanes
        self.max_tokens = max_tokens
        self.pieces = 0
        self._spans: list[tuple[float, float]] = []
        self._open: dict[int, float] = {}
        self._talking = [asyncio.Event() for _ in range(lanes)]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> ChatLoad:
        self._tasks = [asyncio.create_task(self._lane(number)) for number in range(self.lanes)]
        talking = asyncio.create_task(self._all_talk())
        await asyncio.wait([talking, *self._tasks], timeout=START, return_when=asyncio.FIRST_COMPLETED)
        talking.cancel()
        if not all(event.is_set() for event in self._talking):
            await self.__aexit__()
            raise CannotMeasure(f"{self.target.url} did not begin to answer {self.lanes} chats within {START:.0f} s.")
        self.pieces = 0
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        if self._tasks:
            await asyncio.sleep(QUIET)

    async def _all_talk(self) -> None:
        for event in self._talking:
            await event.wait()

    async def _lane(self, number: int) -> None:
        turn = 0
        while True:
            question = f"Tell me a long story, number {number}.{turn}, about a harbour and its lighthouse."
            try:
                async with contextlib.aclosing(
                    self.target.stream([{"role": "user", "content": question}], self.max_tokens)
                ) as pieces:
                    async for _ in pieces:
                        self._open.setdefault(number, time.perf_counter())
                        self.pieces += 1
                        self._talking[number].set()
            finally:
                if number in self._open:
                    self._spans.append((self._open.pop(number), time.perf_counter()))
            turn += 1
            await asyncio.sleep(0)

    def running_during(self, scores: Scores) -> bool:
        """Whether a chat was between its first piece of text and its end at some moment of this read."""
        spans = [*self._spans, *((first, float("inf")) for first in self._open.values())]
        return any(first < scores.ended and last > scores.began for first, last in spans)
