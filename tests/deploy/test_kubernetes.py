"""deploy/kubernetes as the API server gets it: valid in several versions, and its parts fit each other and the router."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from typing import Any

import kubernetes_validate
import pytest
import yaml

from router.engines.llamacpp import command as llamacpp
from router.observe.metrics import PREFIX, SERIES
from tests.support.deploy import DEPLOY, KUBERNETES, Object, check, objects, one, ports, run, settings_of
from tests.support.engines import free_port

KUSTOMIZE = DEPLOY / "kubernetes"
OVERLAYS = ("vllm", "freetoken", "llamacpp")
SIDECAR = {"logprob-router": "sidecar"}


@pytest.fixture(scope="module", params=OVERLAYS)
def rendered(request: pytest.FixtureRequest) -> list[Object]:
    return objects(run("kubectl", "kustomize", KUSTOMIZE / "overlays" / request.param))


def pod_of(deployment: Object) -> Object:
    spec: Object = deployment["spec"]["template"]["spec"]
    return spec


def router_of(pod: Object) -> Object:
    every = [*pod.get("initContainers", ()), *pod["containers"]]
    routers = [c for c in every if c["name"] == "logprob-router"]
    assert len(routers) == 1, "one router a pod"
    return routers[0]


def test_every_object_is_valid_in_every_version(rendered: list[Object]) -> None:
    kinds = sorted(o["kind"] for o in rendered)
    assert kinds == ["Deployment", "NetworkPolicy", "PodDisruptionBudget", "PodMonitor", "Service"]
    assert check(rendered, KUBERNETES) == 4


def test_the_router_is_a_native_sidecar_on_the_service_port(
    rendered: list[Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = pod_of(one(rendered, "Deployment"))
    router = router_of(pod)
    assert router in pod["initContainers"]
    assert router["restartPolicy"] == "Always"
    settings = settings_of(router, monkeypatch)
    assert ports(router) == {"router-data": settings.port, "router-admin": settings.admin_port}
    assert settings.host == settings.admin_host == "0.0.0.0"
    service = one(rendered, "Service")["spec"]["ports"]
    assert [port["targetPort"] for port in service] == ["router-data"]
    assert [e["port"] for e in one(rendered, "PodMonitor")["spec"]["podMetricsEndpoints"]] == ["router-admin"]
    anywhere, monitored = one(rendered, "NetworkPolicy")["spec"]["ingress"]
    assert [port["port"] for port in anywhere["ports"]] == [settings.port]
    assert [port["port"] for port in monitored["ports"]] == [settings.admin_port]
    assert "from" not in anywhere
    assert monitored["from"]


def test_the_engine_is_behind_it_on_loopback(rendered: list[Object], monkeypatch: pytest.MonkeyPatch) -> None:
    pod = pod_of(one(rendered, "Deployment"))
    [engine] = pod["containers"]
    settings = settings_of(router_of(pod), monkeypatch)
    arguments = dict(a.split("=", 1) for a in engine["args"] if "=" in a)
    assert settings.upstream == f"http://{arguments['--host']}:{arguments['--port']}"
    assert arguments["--host"] == "127.0.0.1"
    assert "ports" not in engine
    if "llamacpp" in engine["args"]:
        llamacpp.make_context("llamacpp", engine["args"][2:])


def test_probes_ask_about_the_engine_only_for_readiness(rendered: list[Object]) -> None:
    pod = pod_of(one(rendered, "Deployment"))
    router, [engine] = router_of(pod), pod["containers"]
    asked = {name: router[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {name: get["path"] for name, get in asked.items()} == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    assert {get["port"] for get in asked.values()} == {"router-admin"}
    # Readiness is the router's, which follows the engine. The engine's probes run inside: loopback is theirs alone.
    assert "readinessProbe" not in engine
    for probe in ("startupProbe", "livenessProbe"):
        assert "http://127.0.0.1:8000/health" in engine[probe]["exec"]["command"][-1]
        inner = re.search(r"timeout=(\d+)", engine[probe]["exec"]["command"][-1])
        assert inner is not None
        assert int(inner[1]) < engine[probe]["timeoutSeconds"]


def test_the_router_drains_before_the_engine_stops(rendered: list[Object], monkeypatch: pytest.MonkeyPatch) -> None:
    pod = pod_of(one(rendered, "Deployment"))
    router, [engine] = router_of(pod), pod["containers"]
    settings = settings_of(router, monkeypatch)
    assert 0 < settings.drain_delay < settings.grace < pod["terminationGracePeriodSeconds"]
    assert "SIGTERM" in router["lifecycle"]["preStop"]["exec"]["command"][-1]
    waits = engine["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert waits.startswith("while")
    assert str(settings.admin_port) in waits


def test_a_container_that_hangs_does_not_wait_for_the_other(rendered: list[Object]) -> None:
    """A failed probe runs preStop too; the pod's long grace is for the pod's end."""
    pod = pod_of(one(rendered, "Deployment"))
    [engine] = pod["containers"]
    for probe in (engine["startupProbe"], engine["livenessProbe"], router_of(pod)["livenessProbe"]):
        assert probe["terminationGracePeriodSeconds"] == 10


def test_what_is_misspelt_is_found(rendered: list[Object]) -> None:
    service = one(rendered, "Service")
    with pytest.raises(kubernetes_validate.ValidationError):
        check([{**service, "spec": {**service["spec"], "portz": []}}])


def test_the_engines_prestop_returns_when_the_router_has_ended(rendered: list[Object]) -> None:
    [engine] = pod_of(one(rendered, "Deployment"))["containers"]
    port = free_port()
    command = engine["lifecycle"]["preStop"]["exec"]["command"]
    script = command[-1].replace("9091", str(port)).replace("python3", "python").replace("python", sys.executable)
    with socket.create_server(("127.0.0.1", port)):
        waiting = subprocess.Popen([*command[:-1], script])
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1.5)
    assert waiting.wait(10) == 0


def test_nothing_may_do_more_than_it_needs(rendered: list[Object]) -> None:
    pod = pod_of(one(rendered, "Deployment"))
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    router = router_of(pod)
    security = router["securityContext"]
    assert security["runAsNonRoot"]
    assert security["runAsUser"] > 0
    assert security["readOnlyRootFilesystem"]
    for container in (router, *pod["containers"]):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]
    assert "cpu" not in router["resources"]["limits"], "throttling would be latency"


def test_selectors_select_the_pod(rendered: list[Object]) -> None:
    deployment = one(rendered, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        one(rendered, "Service")["spec"]["selector"],
        one(rendered, "PodMonitor")["spec"]["selector"]["matchLabels"],
        one(rendered, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        one(rendered, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector
        assert selector.items() <= labels.items()
    assert one(rendered, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_a_stock_vllm_gets_exclusive_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    found = objects(run("kubectl", "kustomize", KUSTOMIZE / "overlays" / "vllm"))
    assert settings_of(router_of(pod_of(one(found, "Deployment"))), monkeypatch).isolation == "exclusive"


def test_the_component_leaves_other_deployments_alone(tmp_path: Any) -> None:
    plain = one(objects((KUSTOMIZE / "overlays/llamacpp/engine.yaml").read_text()), "Deployment")
    del plain["metadata"]["labels"]
    (tmp_path / "engine.yaml").write_text(yaml.safe_dump(plain))
    component = tmp_path / "component"
    component.mkdir()
    for name in ("kustomization.yaml", "sidecar.yaml"):
        (component / name).write_text((KUSTOMIZE / "component" / name).read_text())
    (tmp_path / "kustomization.yaml").write_text("resources: [engine.yaml]\ncomponents: [component]\n")
    assert objects(run("kubectl", "kustomize", tmp_path)) == [plain]


def test_the_snippet_works_without_kustomize() -> None:
    engine = KUSTOMIZE / "overlays/llamacpp/engine.yaml"
    patch = KUSTOMIZE / "component/sidecar.yaml"
    patched = objects(
        run("kubectl", "patch", "--local", "-f", engine, "--type=strategic", "--patch-file", patch, "-o", "yaml")
    )
    built = one(objects(run("kubectl", "kustomize", KUSTOMIZE / "overlays/llamacpp")), "Deployment")
    assert pod_of(one(patched, "Deployment")) == pod_of(built)


def test_autoscaling_asks_for_what_the_router_exports() -> None:
    scaled = one(objects((KUSTOMIZE / "autoscaling/keda.yaml").read_text()), "ScaledObject")["spec"]
    hpa = one(objects((KUSTOMIZE / "autoscaling/hpa.yaml").read_text()), "HorizontalPodAutoscaler")
    assert check([hpa]) == 1
    rules = yaml.safe_load((KUSTOMIZE / "autoscaling/prometheus-adapter-values.yaml").read_text())["rules"]["external"]
    [metric] = hpa["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == rules[0]["name"]["as"]
    exported = {PREFIX + series.name for series in SERIES}
    for query in (scaled["triggers"][0]["metadata"]["query"], rules[0]["seriesQuery"], rules[0]["metricsQuery"]):
        assert set(re.findall(rf"{PREFIX}\w+?(?=_bucket)", query)) <= exported
    vllm = one(objects(run("kubectl", "kustomize", KUSTOMIZE / "overlays/vllm")), "Deployment")
    for target in (scaled["scaleTargetRef"], hpa["spec"]["scaleTargetRef"]):
        assert target["name"] == vllm["metadata"]["name"]
