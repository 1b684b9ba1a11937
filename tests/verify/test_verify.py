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
from router.verify.load import ChatLoad
from router.verify.probe import CannotMeasure, Scores, Target, deviation, top_of
from router.verify.prompts import PromptMaker
from router.verify.report import as_json, cost_lines, table, total, verdict
from tests.support.answers import LAST_CHUNK, STREAM_HEAD, chunk, json_message, message, play
from tests.support.routers import running
from tests.support.upstream import Connection, Request, Upstream


class Moving:
    """An engine in miniature: a score is a hash of the prompt, and moves a little where a prefix is cached."""

    def __init__(self, shape: str = "completions", tokenizer: bool = True) -> None:
        self.shape = shape
        self.tokenizer = tokenizer
        self.seen: list[str] = []
        self.usage = True
        self.streams = True

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
            cached += len(text.split()) * hit
            choices.append(self.choice(index, text, 0.125 * hit))
        if body.get("stream") and self.streams:
            await connection.send(STREAM_HEAD)
            for _ in range(48):  # longer than any case: no gap between two chats
                await connection.send(chunk(b'data: {"choices":[]}\n\n'))
                await asyncio.sleep(0.02)
            await connection.send(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)
            return
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


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine in miniature forgets a cut chat at once."""
    monkeypatch.setattr("router.verify.load.QUIET", 0.0)


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
    assert f"{loaded} of {loaded} reads under load ran while a chat was producing text" in text
    assert "baselines came mostly" not in text
    assert total(bench.rows, "router").labels.keys() == {"engine"}
    printed = table(bench.rows, ["engine", "router"])
    assert max(len(line) for line in printed.splitlines()) <= 104
    assert "the same prompt again" in printed
    printed = cost_lines(bench.rows, costs, ["engine", "router"])
    assert "cached tokens" in printed
    assert "chat load while the reads ran" in printed
    assert (costs.rotation_moved, costs.rotation_deviation) == (0, 0.0)  # none of the orders is a prefix of another
    assert "scores of these that the engine moved               0 of 6, at most 0 nats" in printed
    assert as_json(bench.rows, ["engine"], costs, model="m")["rows"][0]["case"] == "3 prompts in one request"
    assert set(costs.rotation) == {"engine", "router"}


async def test_a_router_that_does_not_isolate_is_found_out(engine: Upstream) -> None:
    bench, costs = await measured({"engine": Target(engine.url), "router": Target(engine.url)})
    text, code = verdict(bench.rows, ["engine", "router"], costs)
    assert code == 1
    assert "Rows that moved: " in text
    assert "the same prompt again, 60 tokens, no chats" in text
    assert "baselines came mostly from a cache: the router's endpoint does not bypass it" in text


async def test_chat_only_engines_without_a_tokenizer_are_measured_too() -> None:
    async with Upstream(Moving("chat", tokenizer=False)) as upstream:
        bench, _ = await measured(
            {"engine": Target(upstream.url)}, Plan(lengths=(60,), chats=0, rotation=0, long_context=0)
        )
    assert bench.rows[0].case == "8 prompts in parallel"
    assert all(abs(row.tokens - 60) <= 2 for row in bench.rows if row.case == "the same prompt again")


def rows(engine_equal: int) -> list[Row]:
    return [
        Row("a", 60, 0, columns={"engine": Column(reads=2, equal=engine_equal), "router": Column(reads=2, equal=2)})
    ]


def test_an_engine_that_never_moves_proves_nothing() -> None:
    text, code = verdict(rows(2), ["engine", "router"], Costs(chat_same={"router": False}))
    assert code == 0
    assert "this run proves nothing" in text
    assert "was never hit" in text
    assert "Greedy chat changed its text while reads ran: router." in text


def test_without_an_engine_s_column_nothing_shows_that_it_moves() -> None:
    router = Column(reads=3, equal=3, labels={"serial": 1, "engine": 2})
    text, code = verdict([Row("a", 60, 0, columns={"router": router})], ["router"], Costs())
    assert code == 0
    assert "Without --engine nothing shows that this engine's scores move" in text
    assert "Labels of the router: engine 2, serial 1." in text


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


SCORING = "/v1/completions /v1/chat/completions"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["verify", *arguments])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give --engine URL, --router URL, or both"),
        (["--engine", "localhost:1"], "is not an http"),
        (["--engine", "http://h:1", "--lengths", "a,b"], "whole numbers separated by commas"),
        (["--engine", "http://h:1", "--lengths", "5"], "the shortest prompt is 20 tokens"),
        (["--engine", "http://h:1", "--json", "no/such/folder/x.json"], "there is no folder"),
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


async def test_the_command_names_what_moved(engine: Upstream, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    asked = ["--engine", engine.url, "--router", engine.url, "--quick", "--lengths", "60", "--json", str(figures)]
    result = await asyncio.to_thread(run, *asked)
    assert result.exit_code == 1, result.output
    assert "Rows that moved: " in result.output
    assert "the same prompt again, 60 tokens, 1 chats" in result.output.replace("\n", " ")
    found = json.loads(figures.read_text())
    assert (found["exit_code"], found["model"]) == (1, "m")
    assert found["chat_tokens_per_second"].keys() == {"engine", "router"}
    assert {row["case"] for row in found["rows"] if row["load"]} == {"8 prompts in parallel", "the same prompt again"}


async def test_interrupted_is_exit_2(engine: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("router.verify.command._run", interrupted)
    assert (await asyncio.to_thread(run, "--engine", engine.url)).exit_code == 2


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
        (SCORING, json_message({"error": "x"}, 400), "answered 400"),
        (SCORING, message(200, b"no json"), "what is no JSON"),
        (SCORING, message(200, b"[]"), "JSON of another shape"),
        (SCORING, json_message({"choices": []}), "without choices"),
        (SCORING, json_message({"choices": [{}]}), "without log-probabilities"),
    ],
)
async def test_what_cannot_be_measured_says_why(engine: Upstream, path: str, answer: bytes, says: str) -> None:
    async def handler(connection: Connection, request: Request) -> None:
        await connection.send(answer)

    for one in path.split():
        engine.on(one, handler)
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


async def answering(target: Target) -> Target:
    """Prepared, and closed: only what it found is wanted."""
    try:
        await target.prepare()
    finally:
        await target.close()
    return target


@pytest.mark.parametrize("answer", [json_message({"error": "no logprobs"}, 400), json_message({"choices": [{}]})])
async def test_scores_on_chat_are_found_where_completions_gives_none(engine: Upstream, answer: bytes) -> None:
    async def refusing(connection: Connection, request: Request) -> None:
        await connection.send(answer)

    engine.on("/v1/completions", refusing)
    assert (await answering(Target(engine.url))).api == "chat"


@pytest.mark.parametrize("status", [400, 404])
async def test_a_model_that_is_not_served_is_said_so(engine: Upstream, status: int) -> None:
    async def unknown(connection: Connection, request: Request) -> None:
        await connection.send(json_message({"error": {"message": "The model `x` does not exist."}}, status))

    for path in SCORING.split():
        engine.on(path, unknown)
    with pytest.raises(CannotMeasure, match=r"does not serve 'x'; it lists m\."):
        await answering(Target(engine.url, "x"))


async def test_a_model_without_a_chat_template_talks_on_completions(engine: Upstream) -> None:
    async def no_template(connection: Connection, request: Request) -> None:
        await connection.send(json_message({"error": "no chat template"}, 400))

    engine.on("/v1/chat/completions", no_template)
    target = Target(engine.url)
    try:
        await target.prepare()
        text, cached, _ = await target.chat([{"role": "user", "content": "Hello."}], 4)
        async with ChatLoad(target, 1) as load:
            scores = await target.read("one two")
            assert load.running_during(scores)
    finally:
        await target.close()
    assert (text, cached) == ("x", 0)
    assert engine.requests[-1].path == "/v1/completions"
    talk = next(request.json() for request in engine.requests if b'"stream"' in request.body)
    assert talk["prompt"].startswith("user: Tell me a long story")
    assert talk["prompt"].endswith("\nassistant:")


async def test_a_read_between_two_chats_does_not_count_as_under_load(engine: Upstream) -> None:
    target = Target(engine.url)
    try:
        before = await target.read("one")
        async with ChatLoad(target, 2) as load:
            during = await target.read("two")
        after = await target.read("three")
    finally:
        await target.close()
    assert [load.running_during(scores) for scores in (before, during, after)] == [False, True, False]


async def test_an_engine_that_does_not_stream_still_gives_load() -> None:
    whole = Moving()
    whole.streams = False
    async with Upstream(whole) as upstream:
        target = Target(upstream.url)
        try:
            async with ChatLoad(target, 1) as load:
                await upstream.arrival(len(upstream.requests) + 2)
        finally:
            await target.close()
    assert load.pieces >= 1


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([json_message({"error": "x"}, 500)], "/v1/chat/completions answered 500"),
        ([STREAM_HEAD, chunk(b"data: {}\n\n"), "reset"], "A streamed chat at .* failed"),
        (["forever"], "did not begin to answer 2 chats"),
    ],
)
async def test_load_that_fails_is_no_measurement(
    engine: Upstream, monkeypatch: pytest.MonkeyPatch, steps: list[Any], says: str
) -> None:
    monkeypatch.setattr("router.verify.load.START", 0.3)
    engine.on("/v1/chat/completions", play(*steps))
    target = Target(engine.url)
    try:
        with pytest.raises(CannotMeasure, match=says):
            async with ChatLoad(target, 2):
                await asyncio.sleep(5)
    finally:
        await target.close()


def test_load_that_never_overlapped_proves_nothing() -> None:
    row = Row("a", 60, 3, columns={"engine": Column(reads=2, equal=1), "router": Column(reads=2, equal=2)})
    assert "So the rows under load prove nothing." in verdict([row], ["engine", "router"], Costs())[0]
