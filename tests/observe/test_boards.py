"""Boards and rules: current, complete, and asking only for what the router exports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.observe import engine_metrics
from router.observe.metrics import SERIES
from tests.support.tools import tool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "logprob-router.rules.yaml"
BOARDS = sorted((ROOT / "grafana" / "dashboards").glob("*.json"))
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"}


def exported() -> set[str]:
    names = {f"logprob_router_{row.name}" for row in SERIES} | {f"logprob_router_{n}" for n in engine_metrics.names()}
    return names | {n + "_bucket" for n in names if n.endswith("_seconds")} | PROCESS


def asked(expression: str) -> set[str]:
    return set(re.findall(r"(?<![:\w])(?:logprob_router|process)_\w+", expression))


def test_the_files_are_current() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "grafana" / "generate.py"), "--check"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_each_panel_is_complete_and_asks_for_what_exists(path: Path) -> None:
    board: dict[str, Any] = json.loads(path.read_text())
    assert board["uid"] == f"logprob-router-{path.stem}"
    assert {variable["name"] for variable in board["templating"]["list"]} == {"datasource", "job", "instance"}
    assert board["links"][0]["tags"] == ["logprob-router"]
    for panel in board["panels"]:
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        for target in panel["targets"]:
            assert asked(target["expr"]) <= exported(), panel["title"]
            assert 'job=~"$job"' in target["expr"]
            assert "[$__rate_interval]" in target["expr"] or "rate(" not in target["expr"]


def test_there_are_four_boards() -> None:
    assert [path.stem for path in BOARDS] == ["chat", "evictions", "reads", "router"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_the_rules_ask_for_what_exists_and_each_alert_has_its_page() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    for rule in rules():
        assert asked(rule["expr"]) <= exported()
        if "alert" in rule:
            assert f"### {rule['alert']}\n" in page
            assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
        else:
            assert re.fullmatch(r"job:logprob_router_\w+:\w+", rule["record"])


@pytest.mark.programs
@pytest.mark.parametrize("arguments", [("check", "rules", RULES.name), ("test", "rules", "logprob-router.test.yaml")])
def test_promtool_agrees(arguments: tuple[str, ...]) -> None:
    result = subprocess.run([tool("promtool"), *arguments], cwd=RULES.parent, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
