"""Logs that say what happened and never what was said; a screen that fits a terminal."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from router.cli import main
from router.observe.logs import JsonFormatter, TextFormatter, configure_logging
from router.observe.top import Reading, render
from tests.support.answers import held, json_message, play
from tests.support.client import GEN, READ1, post
from tests.support.routers import running
from tests.support.upstream import Upstream


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger("router")
    before = root.handlers[:], root.level, root.propagate
    yield
    root.handlers[:], root.level, root.propagate = before[0], before[1], before[2]


def record(**fields: object) -> logging.LogRecord:
    made = logging.LogRecord("router.x", logging.INFO, "", 1, "it %s", ("ran",), None)
    if fields:
        made.fields = fields
    return made


def test_a_line_for_people_and_one_for_machines() -> None:
    assert TextFormatter().format(record(kind="read", gone=None)).endswith("INFO    it ran kind=read")
    line = json.loads(JsonFormatter().format(record(kind="read")))
    assert (line["level"], line["logger"], line["message"], line["kind"]) == ("info", "router.x", "it ran", "read")
    failed = record()
    try:
        raise ValueError("why")
    except ValueError as error:
        failed.exc_info = (ValueError, error, error.__traceback__)
    assert "ValueError: why" in json.loads(JsonFormatter().format(failed))["exception"]


@pytest.mark.parametrize("format", ["text", "json"])
def test_logging_is_configured_once(format: str) -> None:
    for _ in range(2):
        configure_logging("warning", format)  # type: ignore[arg-type]
    root = logging.getLogger("router")
    assert len(root.handlers) == 1
    assert root.level == logging.WARNING
    assert not root.propagate


async def test_a_request_is_one_line_without_its_content(upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 3}}
    upstream.handler = play(json_message({"choices": [{"index": 0}], "usage": usage}))
    with caplog.at_level(logging.INFO, "router.access"):
        async with running(upstream, access_log=True) as router:
            secret = b'{"model":"m","messages":[{"role":"user","content":"SECRET"}],"max_tokens":9}'
            await router.ask(READ1)
            await router.ask(post("/v1/chat/completions", secret, "Authorization: Bearer SECRET"))
    lines = [r.fields for r in caplog.records if r.name == "router.access"]  # type: ignore[attr-defined]
    assert [(line["kind"], line["route"], line["status"], line["outcome"]) for line in lines] == [
        ("read", "/v1/completions", 200, "ok"),
        ("chat", "/v1/chat/completions", 200, "ok"),
    ]
    assert (lines[1]["prompt_tokens"], lines[1]["cached_tokens"], lines[1]["completion_tokens"]) == (7, 3, 1)
    assert lines[0]["queue_ms"] >= 0
    assert lines[0]["engine_ms"] > 0
    assert "SECRET" not in caplog.text + json.dumps(lines)


async def test_top_shows_the_lane_at_80_columns(upstream: Upstream) -> None:
    upstream.handler = held(0.6)
    async with running(upstream, isolation="exclusive") as router:
        requests = [asyncio.create_task(router.ask(READ1)) for _ in range(3)]
        requests.append(asyncio.create_task(router.ask(GEN)))
        await asyncio.sleep(0.1)
        arguments = ["top", "--once", "--interval", "0.1", "--admin", f"http://127.0.0.1:{router.admin_port}"]
        result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
        await asyncio.gather(*requests)
    assert result.exit_code == 0, result.output
    assert "isolation exclusive" in result.output
    assert "waiting, oldest" in result.output
    assert "gate    holding" in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines())


def test_top_without_a_router_says_so() -> None:
    result = CliRunner().invoke(main, ["top", "--admin", "http://127.0.0.1:9"])
    assert result.exit_code == 1
    assert "Give its URL with --admin" in result.output


def test_rates_are_between_two_looks() -> None:
    lane = {
        "isolation": "engine",
        "draining": True,
        "ready": False,
        "lane": {"queued": 50, "ages": [], "running": [1], "up": [False], "turns": 1, "expired": 0, "full": 0},
        "gate": None,
        "endpoints": [
            {"name": "0-a", "up": False, "takes_reads": True, "engine": "vllm", "version": None},
            {"name": "1-b", "up": True, "takes_reads": False, "engine": "vllm", "version": "1"},
        ],
    }
    before = Reading(0.0, lane, {("requests_total", "read"): 10.0})
    now = Reading(
        2.0,
        lane,
        {
            ("requests_total", "read"): 30.0,
            ("request_duration_seconds_sum", "read"): 1.0,
            ("request_duration_seconds_count", "read"): 10.0,
            **{
                (name, ""): 1.0
                for name in ("engine_running", "engine_waiting", "engine_kv_usage_ratio", "engine_evicted_tokens_total")
            },
        },
    )
    screen = render(now, before)
    assert "stopping" in screen
    assert "[####################] 50 waiting" in screen
    assert "10.0" in screen
    assert "100.0 ms" in screen
    assert "NO" in screen
    assert "engine: kv_usage_ratio 1" in screen
    lane["draining"] = False
    assert "engine down" in render(before, None)
