"""What it costs to tell whether a body is a read.

python benchmarks/detection.py
"""

from __future__ import annotations

import json
import timeit
from collections.abc import Callable
from statistics import median

from router.reads.detect import detect
from router.reads.dialects import ROUTES

TEXT = "the river carried old boats past quiet towns while children counted stones "


def body(route: str, size: int, read: bool) -> bytes:
    text = (TEXT * (size // len(TEXT) + 1))[: size - 100]
    if route == "/v1/completions":
        found = {"model": "m", "prompt": text, "max_tokens": 1 if read else 200, "temperature": 0}
        extra = {"logprobs": 5}
    else:
        found = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 1 if read else 200}
        extra = {"logprobs": True}
    return json.dumps({**found, **(extra if read else {})}).encode()


def microseconds(work: Callable[[], object], number: int) -> float:
    return median(timeit.repeat(work, number=number, repeat=15)) / number * 1e6


def main() -> None:
    print(f"{'route':<22}{'body':>8}{'kind':>10}{'us, median':>12}")
    for route in ("/v1/completions", "/v1/chat/completions"):
        for size, label, number in ((4_096, "4 KB", 500), (1_048_576, "1 MB", 10)):
            for read in (True, False):
                data = body(route, size, read)
                spent = microseconds(lambda d=data, r=route: detect(ROUTES[r], d), number)  # type: ignore[misc]
                print(f"{route:<22}{label:>8}{'read' if read else 'no read':>10}{spent:>12.1f}")


if __name__ == "__main__":
    main()
