"""The files of deploy/, and the programs that read them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from router.serve import command as serve
from router.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
KUBERNETES = ("1.29.0", "1.31.0", "1.33.0", "1.35.0", "1.37.0")
"""Versions that manifests are checked against: 1.29 is the first with native sidecars on by default."""

Object = dict[str, Any]


def run(*command: str | Path, input: str | None = None) -> str:
    """Run one of the environment's programs; what it printed. Anything but exit code 0 is an error."""
    done = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=ROOT, input=input, text=True, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def objects(text: str) -> list[Object]:
    """The documents of a YAML file."""
    return [each for each in yaml.safe_load_all(text) if each]


def one(found: list[Object], kind: str, name: str | None = None) -> Object:
    """The only object of a kind."""
    matching = [o for o in found if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    assert len(matching) == 1, f"{len(matching)} of {kind} {name or ''}"
    return matching[0]


def check(found: list[Object], versions: tuple[str, ...] = KUBERNETES) -> int:
    """Check objects strictly against the schemas of several Kubernetes versions; how many were checked.

    Custom resources have no schema there and are not counted.
    """
    own = [o for o in found if not o["apiVersion"].partition("/")[0].endswith((".coreos.com", "keda.sh"))]
    for each in own:
        for version in versions:
            kubernetes_validate.validate(each, version, strict=True)
    return len(own)


def ports(container: Object) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container.get("ports", ())}


def environment(container: Object) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container.get("env", ())}


def settings_of(container: Object, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What the router makes of a container's arguments and environment."""
    for name, value in environment(container).items():
        monkeypatch.setenv(name, value)
    name, *arguments = container["args"]
    assert name == "serve"
    context = serve.make_context("serve", arguments, auto_envvar_prefix="LOGPROB_ROUTER_SERVE")
    values: dict[str, Any] = {name: value for name, value in context.params.items() if name != "workers"}
    return Settings(**values)
