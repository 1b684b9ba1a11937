"""The Helm chart: linted, refused values, rendered objects, and golden files that show every change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python.chart import Chart, lint
from helm_python.errors import HelmValuesError

import router
from tests.support.deploy import DEPLOY, ROOT, Object, check, objects, one, ports, settings_of

CHART = DEPLOY / "helm/logprob-router"
GOLDEN = Path(__file__).parent / "golden"
SMALL: dict[str, Any] = {"engine": {"url": "http://vllm:8000"}}
FULL: dict[str, Any] = {
    "engine": {"url": "http://chat:8000", "readEndpoints": ["http://a:8000", "http://b:8000"], "kind": "vllm"},
    "isolation": "exclusive",
    "settings": {"max-queued-reads": 256, "max-hold": 2.5, "no-body-knobs": True, "log-format": "json"},
    "image": {"repository": "registry.example/logprob-router", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "pull"}],
    "service": {"type": "LoadBalancer", "port": 8000, "annotations": {"example/internal": "true"}},
    "networkPolicy": {"enabled": True, "monitoringNamespace": "prometheus"},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "podLabels": {"team": "eval"},
    "podAnnotations": {"example/note": "x"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"podAffinity": {}},
    "priorityClassName": "high",
    "extraEnv": [{"name": "OTEL_SDK_DISABLED", "value": "true"}],
}


def render(values: dict[str, Any]) -> tuple[list[Object], str]:
    """The objects and the notes of a release."""
    with Chart.load(CHART) as chart:
        files = chart.render(values, name="demo", namespace="models")
    notes = next(text for name, text in files.items() if name.endswith("NOTES.txt"))
    manifests = [text for name, text in sorted(files.items()) if name.endswith(".yaml")]
    return [each for text in manifests for each in objects(text)], notes


@pytest.mark.parametrize("values", [SMALL, FULL], ids=["small", "full"])
def test_lint_finds_nothing(values: dict[str, Any]) -> None:
    found = lint(CHART, values=values, strict=True)
    assert found["errors"] == []
    assert [m["error"] for m in found["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize(("name", "values"), [("small", SMALL), ("full", FULL)])
def test_it_renders_what_it_rendered(name: str, values: dict[str, Any]) -> None:
    """After a change that is meant: GOLDEN=write pytest tests/deploy/test_helm.py"""
    found, notes = render(values)
    text = yaml.safe_dump_all([*found, {"notes": notes}], sort_keys=True, width=120)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(("values", "checked"), [(SMALL, 3), (FULL, 4)], ids=["small", "full"])
def test_every_object_is_valid_and_fits_the_others(
    values: dict[str, Any], checked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = render(values)
    assert check(found) == checked
    deployment = one(found, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    settings = settings_of(container, monkeypatch)
    assert settings.upstream == values["engine"]["url"]
    assert settings.read_endpoint == tuple(values["engine"].get("readEndpoints", ()))
    assert ports(container) == {"data": settings.port, "admin": settings.admin_port}
    assert settings.drain_delay < settings.grace < pod["terminationGracePeriodSeconds"]
    assert [container[p]["httpGet"]["path"] for p in ("startupProbe", "livenessProbe", "readinessProbe")] == [
        "/livez",
        "/livez",
        "/readyz",
    ]
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}, "two routers at one engine would be two lanes"
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    services = {o["metadata"]["name"]: o for o in found if o["kind"] == "Service"}
    assert services.keys() == {"demo-logprob-router", "demo-logprob-router-admin"}
    for service in services.values():
        assert service["spec"]["selector"].items() <= labels.items()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports(container).keys()
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False


def test_settings_arrive_as_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = render(FULL)
    [container] = one(found, "Deployment")["spec"]["template"]["spec"]["containers"]
    settings = settings_of(container, monkeypatch)
    assert (settings.max_queued_reads, settings.max_hold, settings.body_knobs) == (256, 2.5, False)
    assert (settings.isolation, settings.engine, settings.log_format) == ("exclusive", "vllm", "json")
    assert container["image"].endswith("@sha256:" + "0" * 64)
    monitor = one(found, "ServiceMonitor")
    service = one(found, "Service", "demo-logprob-router-admin")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]


@pytest.mark.parametrize("value", [1048576, 2e9, 0, 0.5, "X-Other: yes", True, False])
def test_a_settings_value_of_any_type(value: Any) -> None:
    found, _ = render({**SMALL, "settings": {"some-setting": value}})
    arguments = one(found, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    given = [a for a in arguments if a.startswith("--some-setting")]
    shown = int(value) if isinstance(value, float) and value.is_integer() else value
    expected = {True: ["--some-setting"], False: []}[value] if isinstance(value, bool) else [f"--some-setting={shown}"]
    assert given == expected


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({}, "/engine/url"),
        ({"engine": {"url": "vllm:8000"}}, "/engine/url"),
        ({"engine": {"url": "http://user@vllm:8000"}}, "/engine/url"),
        ({**SMALL, "isolation": "none"}, "/isolation"),
        ({**SMALL, "replicas": 3}, "replicas"),
        ({**SMALL, "settings": {"port": 1}}, "'port'"),
        ({**SMALL, "settings": {"--max-hold": 1}}, "'--max-hold'"),
        ({**SMALL, "image": {"digest": "latest"}}, "/image/digest"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(HelmValuesError, match=named):
        render(values)


def test_rules_and_dashboards_are_those_of_the_repository() -> None:
    boards = sorted((ROOT / "grafana/dashboards").glob("*.json"))
    rules = sorted((DEPLOY / "prometheus").glob("*rules*.yaml"))
    found, _ = render({**SMALL, "dashboards": {"enabled": True}, "rules": {"enabled": True}})
    assert check(found) == 3 + len(boards) + len(rules)
    maps = [o for o in found if o["kind"] == "ConfigMap"]
    data = {name: text for o in maps for name, text in o["data"].items()}
    for file in (*boards, *rules):
        assert data[file.name].strip() == file.read_text().strip()
    shown = [o for o in maps if o["metadata"]["labels"].get("grafana_dashboard") == "1"]
    assert len(shown) == len(boards)
    operator, _ = render({**SMALL, "rules": {"enabled": True, "as": "PrometheusRule", "labels": {"release": "p"}}})
    loaded = [o for o in operator if o["kind"] == "PrometheusRule"]
    assert [o["spec"] for o in loaded] == [yaml.safe_load(file.read_text()) for file in rules]


def test_the_notes_say_what_to_do_next() -> None:
    _, notes = render(SMALL)
    assert "http://demo-logprob-router.models:80" in notes
    assert "isolation=exclusive" in notes
    assert "isolation=exclusive" not in render(FULL)[1]


def test_the_chart_has_the_routers_version() -> None:
    with Chart.load(CHART) as chart:
        assert chart.version == chart.metadata["appVersion"] == router.__version__
