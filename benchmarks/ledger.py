"""What the prefix ledger costs for a chat of 16 KB: remembering it, and reading its answer's usage.

python benchmarks/ledger.py
"""

from __future__ import annotations

import json
import timeit
from statistics import median

from router.observe.metrics import Metrics
from router.observe.prefixes import PrefixLedger

ANSWER = json.dumps(
    {
        "id": "c",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "It is so. " * 40}}],
        "usage": {"prompt_tokens": 4000, "completion_tokens": 90, "prompt_tokens_details": {"cached_tokens": 3984}},
    }
).encode()


def main() -> None:
    turn = "the river carried old boats past quiet towns while children counted stones " * 10
    messages = [{"role": ("user", "assistant")[n % 2], "content": turn} for n in range(21)]
    body = json.dumps({"model": "m", "messages": messages, "temperature": 0, "stream": False}).encode()
    ledger = PrefixLedger(Metrics())

    def one() -> None:
        watch = ledger.begin("/v1/chat/completions", body)
        assert watch is not None
        watch.feed(ANSWER)
        watch.end(True)

    spent = median(timeit.repeat(one, number=500, repeat=15)) / 500 * 1e6
    print(f"{len(body)} bytes, {len(messages)} messages: {spent:.1f} us, median (budget: 50)")


if __name__ == "__main__":
    main()
