"""Images and compose files, as far as they can be checked where no engine for containers runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import router
from tests.support.deploy import DEPLOY, ROOT, run, settings_of
from tests.support.tools import tool

DOCKER = DEPLOY / "docker"
IMAGES = sorted(DOCKER.glob("*Dockerfile"))
COMPOSE = sorted(DOCKER.glob("compose.*.yaml"))


def instructions(path: Path) -> list[tuple[str, str]]:
    """Instructions and their arguments, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", path.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def stages(path: Path) -> list[str]:
    return [arguments.split()[-1] for name, arguments in instructions(path) if name == "FROM"]


def services(*paths: Path) -> dict[str, Any]:
    return {name: each for path in paths for name, each in yaml.safe_load(path.read_text())["services"].items()}


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
class TestImage:
    def test_hadolint_finds_nothing(self, image: Path) -> None:
        assert run("hadolint", image) == ""

    def test_what_it_copies_is_there(self, image: Path) -> None:
        kept = {line[1:] for line in Path(f"{image}.dockerignore").read_text().splitlines() if line.startswith("!")}
        copied = {
            source
            for name, arguments in instructions(image)
            if name == "COPY" and "--from" not in arguments
            for source in arguments.split()[:-1]
        }
        assert copied == kept
        assert all((ROOT / source).exists() for source in copied)

    def test_it_runs_as_nobody_in_particular(self, image: Path) -> None:
        found = instructions(image)
        [user] = [arguments for name, arguments in found if name == "USER"]
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
        [entry] = [arguments for name, arguments in found if name == "ENTRYPOINT"]
        assert json.loads(entry)[0] == "logprob-router", "no shell between it and SIGTERM"
        [base] = [arguments for name, arguments in found if name == "ARG"]
        assert re.search(r":\d+\.\d+\.\d+", base), "the base is pinned"

    def test_what_it_copies_is_enough_to_install(self, image: Path, tmp_path: Path) -> None:
        if "router" not in stages(image):
            assert image.name == "freetoken.Dockerfile", "the same files; once is enough"
            return
        source = tmp_path / "src"
        source.mkdir()
        for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source)
        shutil.copytree(ROOT / "router", source / "router", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, source], check=True, timeout=120
        )
        assert (tmp_path / f"logprob_router-{router.__version__}-py3-none-any.whl").exists()


def test_the_default_image_is_the_router_and_is_watched() -> None:
    found = instructions(DOCKER / "Dockerfile")
    assert stages(DOCKER / "Dockerfile")[-1] == "router"
    [check] = [arguments for name, arguments in found if name == "HEALTHCHECK"]
    assert "http://127.0.0.1:9091/livez" in check


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_compose_files_follow_the_specification(path: Path) -> None:
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", path)


def test_compose_files_name_what_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in COMPOSE:
        for name, service in services(path).items():
            if build := service.get("build"):
                context = (DOCKER / build["context"]).resolve()
                assert context == ROOT
                assert build["target"] in stages(context / build["dockerfile"])
            for volume in service.get("volumes", ()):
                source = volume.split(":")[0]
                assert not source.startswith(".") or (DOCKER / source).exists(), source
            for port in service.get("ports", ()):
                assert port.startswith("127.0.0.1:"), "nothing is open to the network by default"
            if name == "router":
                settings = settings_of({"args": service["command"]}, monkeypatch)
                assert settings.upstream == "http://engine:8000"
                assert int(service["stop_grace_period"].removesuffix("s")) > settings.grace
                assert "ports" not in services(path)["engine"], "the engine is reached through the router alone"


@pytest.mark.programs
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    config = yaml.safe_load((DOCKER / "prometheus.yml").read_text())
    mount = "../prometheus:/etc/prometheus/rules:ro"
    assert mount in services(DOCKER / "compose.monitoring.yaml")["prometheus"]["volumes"]
    [pattern] = config["rule_files"]
    config["rule_files"] = [pattern.replace("/etc/prometheus/rules", str(DEPLOY / "prometheus"))]
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    said = subprocess.run([tool("promtool"), "check", "config", path], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stdout + said.stderr


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    grafana = services(DOCKER / "compose.monitoring.yaml")["grafana"]
    mounts = {volume.split(":")[1] for volume in grafana["volumes"]}
    [provider] = yaml.safe_load((ROOT / "grafana/provisioning/dashboards/logprob-router.yaml").read_text())["providers"]
    assert provider["options"]["path"] in mounts
    [source] = yaml.safe_load((ROOT / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
