"""Prompts made to measure, in tokens of the engine that is measured."""

from __future__ import annotations

import hashlib
import secrets

from router.verify.probe import CannotMeasure, Target

TEXT = """
the river carried old boats past quiet towns while children counted stones and traders argued about salt prices under
a pale morning sky near the mill where bread was made for all who came down from the hills
"""
WORDS = TEXT.split()

TRIES = 24
SHORT = 12


class PromptMaker:
    """Makes prompts of a wanted length. Each begins with words of its own, so that no two share a prefix.

    Lengths come from the engine's tokenizer, or, if it has no path for that, from `usage.prompt_tokens` of a read.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.nonce = secrets.token_hex(3)
        self._by_usage = False
        self._extra = 0
        self._a_word = 1.0

    async def prepare(self) -> None:
        """Learn what the engine adds to a text (a start token, a chat template)."""
        text = "one two three four five six"
        counted = await self.target.count(text)
        usage = (await self.target.read(text)).prompt_tokens
        if counted is None:
            self._by_usage = True
            if usage is None:
                raise CannotMeasure(f"{self.target.url} has no tokenizer path and reports no usage.prompt_tokens.")
        elif usage is not None:
            self._extra = usage - counted
        self._a_word = max((counted or usage or 0) / len(text.split()), 1.0)

    async def make(self, tokens: int, seed: int) -> str:
        """A prompt of `tokens` tokens, or as near as words and a few full stops allow."""
        a_word = self._a_word
        words = max(int((tokens - 12) / a_word), 1)
        best, best_off = "", tokens + 1
        for _ in range(TRIES):
            text = self._text(words, seed)
            length = await self._length(text)
            off = tokens - length
            if 0 <= off < best_off:
                best, best_off = text, off
            if off == 0 or (off > 0 and off < a_word):
                break
            a_word = max(length / (words + 8), 1.0)
            step = int(off / a_word)
            words = max(words + (step or (1 if off > 0 else -1)), 1)
        if 0 < best_off < SHORT:
            filled = best + "." * best_off
            if await self._length(filled) == tokens:
                return filled
        return best or text

    async def _length(self, text: str) -> int:
        if self._by_usage:
            return (await self.target.read(text)).prompt_tokens or 0
        return (await self.target.count(text) or 0) + self._extra

    def _text(self, words: int, seed: int) -> str:
        body = (WORDS[(i * 7 + seed * 3 + i // 5) % len(WORDS)] for i in range(words))
        own = hashlib.blake2s(f"{self.nonce} {seed}".encode(), digest_size=5).hexdigest()
        return f"{own}: " + " ".join(body) + " so the answer is"
