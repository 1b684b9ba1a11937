"""One question, its options in every order: the scores straight at an engine and through the router.

    python examples/option_orders.py [--engine http://127.0.0.1:8001] [--router http://127.0.0.1:9000]

A classifier that asks in all orders compares these numbers. Each order is asked twice; where the two differ, the engine
answered the same question with other numbers, and the comparison was of noise.
"""

from __future__ import annotations

import argparse
import itertools
from concurrent.futures import ThreadPoolExecutor

import httpx

OPTIONS = ("positive", "negative", "neutral")
REVIEW = "The boat was late and the coffee cold, but the crew sang all the way and the children loved it."


def prompt(order: tuple[str, ...]) -> str:
    listed = "\n".join(f"{letter}. {option}" for letter, option in zip("ABC", order, strict=True))
    return f"Review: {REVIEW}\nWhat is its sentiment?\n{listed}\nAnswer:"


def score(client: httpx.Client, order: tuple[str, ...]) -> dict[str, float]:
    """Log-probability of each option's letter, where it is among the first 20."""
    body = {"prompt": prompt(order), "max_tokens": 1, "logprobs": 20, "temperature": 0}
    answer = client.post("/v1/completions", json=body).raise_for_status().json()
    logprobs = answer["choices"][0]["logprobs"]
    if "content" in logprobs:  # llama.cpp answers in the chat shape
        top = {entry["token"].strip(): entry["logprob"] for entry in reversed(logprobs["content"][0]["top_logprobs"])}
    else:
        top = {token.strip(): value for token, value in reversed(logprobs["top_logprobs"][0].items())}
    return {option: top.get(letter, float("nan")) for letter, option in zip("ABC", order, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="http://127.0.0.1:8001")
    parser.add_argument("--router", default="http://127.0.0.1:9000")
    arguments = parser.parse_args()
    orders = list(itertools.permutations(OPTIONS))
    for name, url in (("engine", arguments.engine), ("router", arguments.router)):
        with httpx.Client(base_url=url, trust_env=False, timeout=300) as client, ThreadPoolExecutor(6) as pool:
            twice = [list(pool.map(lambda order: score(client, order), orders)) for _ in range(2)]
        print(f"\n{name}: log-probability of {', '.join(OPTIONS)} by the order in which they were offered")
        worst = 0.0
        for order, first, second in zip(orders, *twice, strict=True):
            cells = "  ".join(f"{first[option]:>9.5f} {second[option]:>9.5f}" for option in OPTIONS)
            same = all(first[o] == second[o] or first[o] != first[o] for o in OPTIONS)
            worst = max([worst, *(abs(first[o] - second[o]) for o in OPTIONS if first[o] == first[o])])
            print(f"  {' '.join(o[:3] for o in order)}  {cells}  {'same' if same else 'MOVED'}")
        print(f"  asked twice, the scores differ by at most {worst:.3g} nats")


if __name__ == "__main__":
    main()
