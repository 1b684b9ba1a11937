"""The counters' file: seen by other processes of the same user, gone with its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from router.engines.vllm.counters import CELLS, Counters, EngineSeries, read_totals


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"logprob-router-{os.getuid()}"


def test_what_is_counted_is_seen(folder: Path) -> None:
    counters = Counters.create("a1b2c")
    counters.add("reads")
    counters.add("evicted_tokens.read", 640)
    expected = {**dict.fromkeys(CELLS, 0), "reads": 1, "evicted_tokens.read": 640}
    assert counters.totals() == expected
    assert read_totals("a1b2c") == expected
    assert read_totals("other") is None
    assert folder.stat().st_mode & 0o777 == 0o700
    counters.remove()
    assert list(folder.iterdir()) == []
    assert read_totals("a1b2c") is None
    counters.add("reads")  # it goes on for itself


COUNT = """
import sys
from router.engines.vllm.counters import Counters
counters = Counters.create("dp")
counters.add("reads", 5)
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_schedulers_of_one_engine_are_summed(folder: Path) -> None:
    mine = Counters.create("dp")
    mine.add("reads", 2)
    other = subprocess.Popen(
        [sys.executable, "-c", COUNT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder.parent)},
    )
    assert other.stdin is not None
    assert other.stdout is not None
    with other:
        assert other.stdout.readline() == b"ready\n"
        assert (read_totals("dp") or {})["reads"] == 7
        other.kill()
        other.wait()
        assert (read_totals("dp") or {})["reads"] == 2, "what a killed process left does not count"
        assert len(list(folder.iterdir())) == 2
    Counters.create("next").remove()
    assert [path.name for path in folder.iterdir()] == [f"dp.{os.getpid()}.counters"], "the next one sweeps"
    mine.remove()


def test_nobody_else_s_folder_is_trusted(folder: Path) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="not this user's alone"):
        Counters.create("x")
    assert read_totals("x") is None


def test_a_file_that_is_not_whole_yet_does_not_count(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / f"x.{os.getpid()}.counters").write_bytes(b"")
    (folder / "notes").write_text("not ours")
    assert read_totals("x") is None


def test_private_counters_are_seen_by_nobody() -> None:
    counters = Counters.private()
    counters.add("chat_steps", 3)
    counters.remove()
    assert counters.totals()["chat_steps"] == 3


def test_the_series() -> None:
    counters = Counters.create("s")
    counters.add("read_steps", 2)
    counters.add("evicted_blocks.chat", 4)
    registry = CollectorRegistry()
    registry.register(EngineSeries("s", "0.32.0", "marked"))
    text = generate_latest(registry).decode()
    assert 'logprob_router_engine_info{engine="vllm",isolates="marked",version="0.32.0"} 1.0' in text
    assert "logprob_router_engine_read_steps_total 2.0" in text
    assert 'logprob_router_engine_evicted_blocks_total{cause="chat"} 4.0' in text
    counters.remove()
    assert "read_steps" not in generate_latest(registry).decode()
