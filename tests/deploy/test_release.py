"""`make dist`: what it builds installs and runs where nothing else is."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import router
from tests.support.deploy import ROOT

pytestmark = pytest.mark.engines


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_runs_in_a_bare_environment(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT)
    [wheel] = tmp_path.glob("*.whl")
    assert f"-{router.__version__}-" in wheel.name
    run(sys.executable, "-m", "venv", tmp_path / "bare")
    bin = tmp_path / "bare/bin"
    run(bin / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel)
    assert router.__version__ in run(bin / "logprob-router", "version", cwd=tmp_path)
    assert "--upstream" in run(bin / "logprob-router", "serve", "--help", cwd=tmp_path)
    assert "llamacpp" in run(bin / "logprob-router", "engine", "--help", cwd=tmp_path)


def test_the_source_has_what_its_tests_and_deployments_need(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "install", "-q", "--target", tmp_path / "tools", "hatchling")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'tools')!r}); import hatchling.build as b; b.build_sdist({str(tmp_path)!r})"
    run(sys.executable, "-c", code)
    [source] = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for path in (
        "Makefile",
        "deploy/docker/Dockerfile",
        "deploy/kubernetes/component/sidecar.yaml",
        "tests/conftest.py",
    ):
        assert path in names
