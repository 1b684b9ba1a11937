from __future__ import annotations

import os
from typing import Any

import pytest
from click.testing import CliRunner

from router.cli import main
from router.engines.freetoken import command as module
from router.engines.freetoken import launch
from router.engines.freetoken.options import PREFIX, Options
from router.engines.targets import HookError


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Options]]:
    """What was started, with the options that its processes would find."""
    started: list[tuple[list[str], Options]] = []
    for name in ("LOGPROB_READ_ISOLATE", "READ_DECODE_YIELD", "BYPASS_HEADER"):
        monkeypatch.setenv(PREFIX + name, "x")
        monkeypatch.delenv(PREFIX + name)
    monkeypatch.setattr(module, "check_version", lambda: "0.2.1")
    monkeypatch.setattr(launch, "serve", lambda arguments: started.append((arguments, Options.from_environ())))
    return started


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["engine", "freetoken", *arguments])


def test_freetokens_arguments_go_on_as_they_are(served: list[Any]) -> None:
    result = run("--", "serve", "--model", "m", "--port", "1")
    assert result.exit_code == 0, result.output
    assert served == [(["--model", "m", "--port", "1"], Options())]


def test_our_own_flags(served: list[Any]) -> None:
    run("--logprob-read-isolate", "--read-decode-yield", "2", "--bypass-header", "X-Alone: 1", "--", "serve")
    assert served == [([], Options(isolate_all=True, decode_yield=2, bypass_header="X-Alone"))]


def test_flags_from_the_environment(served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "LOGPROB_READ_ISOLATE", "1")
    monkeypatch.setenv(PREFIX + "READ_DECODE_YIELD", "0")
    run("--", "serve")
    assert served[0][1] == Options(isolate_all=True, decode_yield=0)


@pytest.mark.parametrize("arguments", [(), ("--", "daemon"), ("--bypass-header", ":", "--", "serve")])
def test_wrong_use(served: list[Any], arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert served == []


def test_check(served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "problems", list)
    assert run("--check").output == "FreeToken 0.2.1: every hook fits.\n"
    monkeypatch.setattr(launch, "problems", lambda: ["a:b is missing", "c:d is missing"])
    result = run("--check")
    assert result.exit_code == 1
    assert "a:b is missing\nc:d is missing" in result.output


def test_a_refusal_is_one_line(served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(arguments: list[str]) -> None:
        raise HookError("it moved")

    monkeypatch.setattr(launch, "serve", refuse)
    result = run("--", "serve")
    assert (result.exit_code, result.output) == (1, "Error: it moved\n")
    assert os.environ[PREFIX + "READ_DECODE_YIELD"] == "1"
