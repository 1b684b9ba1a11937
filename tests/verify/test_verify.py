"""`verify` against an engine whose scores move when its cache is hit, straight and behind the router."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from router.cli import main
from router.verify.cases import Bench, Column, Plan, Row
from router.verify.costs import Costs
from router.verify.probe import CannotMeasure, Scores, Target, deviation, top_of
from router.verify.prompts import PromptMaker
from router.verify.report import as_json, cost_lines, table, total, verdict
from tests.support.answers import json_message, message
from tests.support.routers import running
from tests.support.upstream import Connection, Request, Upstream


class Moving:
    """An engine in miniature: a score is a hash of the prompt, and moves a little where a prefix is cached."""

    def __init__(self, shape: str = "completions", tokenizer: bool = True) -> None:
        self.shape = shape
        self.tokenizer = tokenizer
        self.seen: list[str] = []
        self.usage = True

    async def __call__(self, connection: Connection, request: Request) -> None:
        if request.path == "/v1/models":
            await connection.send(json_message({"data": [{"id": "m"}]}))
            return
        if request.path == "/tokenize" and self.tokenizer:
            body = request.json()
            text = body.get("content", body.get("prompt"))
            await connection.send(json_message({"tokens": text.split()} if "content" in body else {"count": 1}))
            return
        if request.path == "/v1/chat/completions" or (
            request.path == "/v1/completions" and self.shape == "completions"
        ):
            await self.answer(connection, request, request.json())
            return
        await connection.send(message(404, b"{}"))

    async def answer(self, connection: Connection, request: Request, body: dict[str, Any]) -> None:
        prompt = body["prompt"] if "prompt" in body else json.dumps(body["messages"])
        prompts = prompt if isinstance(prompt, list) else [prompt]
        bypassed = request.get("x-cache-bypass") is not None
        choices, cached = [], 0
        for index, text in enumerate(prompts):
            hit = not bypassed and any(text.startswith(seen) or seen.startswith(text) for seen in self.seen)
            if not bypassed:
                self.seen.append(text)
            cached += 5 * hit
            choices.append(self.choice(index, text, 0.125 * hit))
        if body.get("max_tokens") != 1:
            await asyncio.sleep(0.02)
        usage = {
            "prompt_tokens": sum(len(text.split()) + 1 for text in prompts),
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        acknowledged = [("X-Cache-Bypass", "applied")] if bypassed else []
        await connection.send(
            json_message({"choices": choices, **({"usage": usage} if self.usage else {})}, fields=acknowledged)
        )

    def choice(self, index: int, text: str, off: float) -> dict[str, Any]:
        first = -1.0 - len(text) % 7 + off
        if self.shape == "completions":
            logprobs: Any = {"top_logprobs": [{" a": first, " b": -9.5}]}
        else:
            logprobs = {
                "content": [{"token": "a", "logprob": first, "top_logprobs": [{"token": "a", "logprob": first}]}]
            }
        return {"index": index, "text": "x", "message": {"content": "greedy"}, "logprobs": logprobs}


SMALL = Plan(lengths=(60, 90), loaded_lengths=(60,), chats=2, rotation=50, long_context=60, burst=8)


@pytest.fixture
async def engine() -> AsyncIterator[Upstream]:
    async with Upstream(Moving()) as upstream:
        yield upstream


async def measured(targets: dict[str, Target], plan: Plan = SMALL) -> tuple[Bench, Costs]:
    from router.verify.costs import measure

    said: list[str] = []
    try:
        for target in targets.values():
            await target.prepare()
        prompts = PromptMaker(next(iter(targets.values())))
        await prompts.prepare()
        bench = Bench(targets, prompts, plan, said.append)
        await bench.run()
        costs = await measure(bench)
    finally:
        for target in targets.values():
            await target.close()
    assert any("router" in what or "engine" in what for what in said)
    return bench, costs


async def test_the_router_s_column_is_bitwise_and_the_engine_s_is_not(engine: Upstream) -> None:
    async with running(engine) as router:
        bench, costs = await measured(
            {"engine": Target(engine.url), "router": Target(f"http://127.0.0.1:{router.port}")}
        )
    text, code = verdict(bench.rows, ["engine", "router"], costs)
    assert code == 0
    assert "Through the router every read came back bit for bit" in text
    assert "moved, at most 0.12 nats" in text
    assert "The engine's cache was warm" in text
    assert "proves nothing" not in text
    loaded = sum(row.columns["router"].reads for row in bench.rows if row.load)
    assert f"{loaded} of {loaded} reads under load ran while a chat was being answered" in text
    assert total(bench.rows, "router").labels.keys() == {"engine"}
    printed = table(bench.rows, ["engine", "router"])
    assert max(len(line) for line in printed.splitlines()) <= 104
    assert "the same prompt again" in printed
    assert "cached tokens" in cost_lines(costs, ["engine", "router"])
    assert as_json(bench.rows, ["engine"], costs, model="m")["rows"][0]["case"] == "3 prompts in one request"
    assert set(costs.rotation) == {"engine", "router"}


async def test_a_router_that_does_not_isolate_is_found_out(engine: Upstream) -> None:
    bench, costs = await measured({"engine": Target(engine.url), "router": Target(engine.url)})
    text, code = verdict(bench.rows, ["engine", "router"], costs)
    assert code == 1
    assert "Rows that moved: " in text
    assert "the same prompt again, 60 tokens, no chats" in text


async def test_chat_only_engines_without_a_tokenizer_are_measured_too() -> None:
    async with Upstream(Moving("chat", tokenizer=False)) as upstream:
        bench, _ = await measured(
            {"engine": Target(upstream.url)}, Plan(lengths=(60,), chats=0, rotation=0, long_context=0)
        )
    assert bench.rows[0].case == "8 prompts in parallel"
    assert all(abs(row.tokens - 60) <= 2 for row in bench.rows if row.case == "the same prompt again")


def rows(engine_equal: int) -> list[Row]:
    return [Row("a", 60, 0, {"engine": Column(reads=2, equal=engine_equal), "router": Column(reads=2, equal=2)})]


def test_an_engine_that_never_moves_proves_nothing() -> None:
    text, code = verdict(rows(2), ["engine", "router"], Costs(chat_same={"router": False}))
    assert code == 0
    assert "this run proves nothing" in text
    assert "was never hit" in text
    assert "Greedy chat changed its text while reads ran: router." in text


def test_without_a_router_the_engine_is_judged() -> None:
    assert verdict(rows(1), ["engine"], Costs())[1] == 1
    assert verdict(rows(2), ["engine"], Costs())[1] == 0


@pytest.mark.parametrize(
    ("choice", "top"),
    [
        ({"logprobs": {"content": [{"id": 5, "token": "a", "logprob": -1.0}]}}, (("5", -1.0),)),
        ({"logprobs": {"top_logprobs": [{"a": -1.0, "b": -2}]}}, (("a", -1.0), ("b", -2.0))),
        ({"logprobs": {"tokens": ["a"], "token_logprobs": [-1.5], "top_logprobs": None}}, (("a", -1.5),)),
    ],
)
def test_each_shape_of_log_probabilities(choice: dict[str, Any], top: object) -> None:
    assert top_of(choice, "x") == top


def test_an_answer_without_scores_cannot_be_measured() -> None:
    with pytest.raises(CannotMeasure, match="without log-probabilities"):
        top_of({"logprobs": None}, "x")


def test_deviation_is_over_what_both_list() -> None:
    def scores(*top: tuple[str, float]) -> Scores:
        return Scores(top, None, None, 0.0, None, 0.0, 0.0)

    assert deviation(scores(("a", -1.0), ("b", -2.0)), scores(("b", -2.5), ("c", 0.0))) == 0.5
    assert deviation(scores(("a", -1.0)), scores(("b", -1.0))) == 0.0


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["verify", *arguments])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give --engine URL, --router URL, or both"),
        (["--engine", "localhost:1"], "is not an http"),
        (["--engine", "http://h:1", "--lengths", "a,b"], "whole numbers separated by commas"),
        (["--engine", "http://h:1", "--lengths", "5"], "the shortest prompt is 20 tokens"),
    ],
)
def test_bad_arguments_say_what_to_type(arguments: list[str], says: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.output


def test_nothing_there_is_exit_2_with_a_plain_sentence() -> None:
    result = run("--engine", "http://127.0.0.1:9")
    assert result.exit_code == 2
    assert "Could not measure: Nothing answers at http://127.0.0.1:9" in result.output


async def in_process(*arguments: str) -> tuple[int, str]:
    """The command as a user runs it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from router.cli import main; main()", "verify", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def test_the_command_as_a_whole(engine: Upstream, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    async with running(engine) as router:
        code, out = await in_process(
            "--engine", engine.url, "--router", f"http://127.0.0.1:{router.port}", "--json", str(figures),
            "--lengths", "60", "--chat-load", "1", "--rotation", "0", "--long-context", "0",
        )  # fmt: skip
    assert code == 0, out
    assert "Through the router every read came back bit for bit" in out
    found = json.loads(figures.read_text())
    assert found["exit_code"] == 0
    assert found["model"] == "m"


@pytest.mark.parametrize(
    ("path", "answer", "says"),
    [
        (
            "/v1/models",
            json_message({"data": [{"id": "a"}, {"id": "b"}]}),
            "several models; name one with --model: a, b",
        ),
        ("/v1/completions", json_message({"error": "x"}, 400), "answered 400"),
        ("/v1/completions", message(200, b"no json"), "what is no JSON"),
        ("/v1/completions", message(200, b"[]"), "JSON of another shape"),
        ("/v1/completions", json_message({"choices": []}), "without choices"),
        ("/v1/completions", json_message({"choices": [{}]}), "without log-probabilities"),
    ],
)
async def test_what_cannot_be_measured_says_why(engine: Upstream, path: str, answer: bytes, says: str) -> None:
    async def handler(connection: Connection, request: Request) -> None:
        await connection.send(answer)

    engine.on(path, handler)
    target = Target(engine.url)
    try:
        with pytest.raises(CannotMeasure, match=says):
            await target.prepare()
    finally:
        await target.close()


async def test_an_engine_without_models_or_usage() -> None:
    engine = Moving(tokenizer=False)
    engine.usage = False
    async with Upstream(engine) as upstream:

        async def none(connection: Connection, request: Request) -> None:
            await connection.send(message(200, b"{}"))

        upstream.on("/v1/models", none)
        target = Target(upstream.url)
        try:
            await target.prepare()
            assert target.model is None
            with pytest.raises(CannotMeasure, match="no tokenizer path and reports no usage"):
                await PromptMaker(target).prepare()
        finally:
            await target.close()


async def test_an_engine_that_scores_nowhere_is_said_so(engine: Upstream) -> None:
    async def missing(connection: Connection, request: Request) -> None:
        await connection.send(message(404, b"{}"))

    for path in ("/v1/completions", "/v1/chat/completions", "/v1/models"):
        engine.on(path, missing)
    target = Target(engine.url)
    try:
        with pytest.raises(CannotMeasure, match="serves neither"):
            await target.prepare()
    finally:
        await target.close()
