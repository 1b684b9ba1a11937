"""A real Prometheus reads a real router in front of a real engine: every panel and rule is evaluated after a minute's load."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from router.app import Router
from tests.support.engines import embedded_engine, free_port, router_at
from tests.support.tools import tool

pytestmark = pytest.mark.engines

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
RATE = "60s"

# What this engine, or this isolation, has nothing to say about.
MAY_BE_EMPTY = {
    "Engine's KV cache in use",
    "Evicted by the engine's count",
    "Wait at the gate",
    "Bodies not inspected",
}


@asynccontextmanager
async def prometheus(router: Router, folder: Path) -> AsyncIterator[str]:
    """Prometheus on loopback, which scrapes the router each second and knows the rules."""
    port = free_port()
    rules = yaml.safe_load((ROOT / "deploy/prometheus/logprob-router.rules.yaml").read_text())
    for group in rules["groups"]:
        group["interval"] = "2s"
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules).replace("[5m]", f"[{RATE}]"))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "2s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [{"job_name": "router", "static_configs": [{"targets": [f"127.0.0.1:{router.admin_port}"]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    process = await asyncio.create_subprocess_exec(
        tool("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stderr=asyncio.subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(30):
            while True:
                try:
                    if (await client.get(url + "/-/ready")).status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.2)
        yield url
    finally:
        process.terminate()
        await process.wait()


async def load(url: str, until: float, counted: Counter[str]) -> None:
    """Reads, lists, and more conversations than the engine has slots, so that it forgets some."""
    loop = asyncio.get_running_loop()

    async def post(kind: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = await client.post(path, json=body)
        except httpx.HTTPError:
            counted[f"{kind} failed"] += 1
            return {}
        counted[f"{kind} {answer.status_code // 100}xx"] += 1
        return dict(answer.json()) if answer.status_code == 200 else {}

    async def reader(number: int) -> None:
        turn = 0
        while loop.time() < until:
            prompt: Any = [f"{number} {turn} {k} is" for k in range(3)] if turn % 5 == 0 else f"{number} {turn} is"
            await post("read", "/v1/completions", {"prompt": prompt, "max_tokens": 1, "logprobs": 2})
            turn += 1
            await asyncio.sleep(0.1)

    async def talker(number: int) -> None:
        messages = [{"role": "user", "content": f"I am number {number}. " + "Tell me of rivers and stones. " * 10}]
        while loop.time() < until:
            answer = await post(
                "chat", "/v1/chat/completions", {"messages": messages, "max_tokens": 4, "temperature": 0}
            )
            if answer:
                messages += [answer["choices"][0]["message"], {"role": "user", "content": "And then?"}]
                if len(messages) > 9:
                    del messages[1:]
            await asyncio.sleep(0.3)

    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
        await asyncio.gather(*(reader(number) for number in range(2)), *(talker(number) for number in range(6)))


async def test_every_panel_and_rule_on_a_real_run(tmp_path: Path) -> None:
    counted: Counter[str] = Counter()
    port = free_port()
    small = ("--slots", "3", "--context", "1024", "--prompt-cache", "0")
    with embedded_engine(*small, port=port) as engine:
        async with (
            router_at(engine.url, canary_interval=2.0) as router,
            prometheus(router, tmp_path) as where,
            httpx.AsyncClient(base_url=where, trust_env=False, timeout=30) as client,
        ):
            until = asyncio.get_running_loop().time() + SECONDS
            running = asyncio.create_task(load(f"http://127.0.0.1:{router.port}", until, counted))
            await asyncio.sleep(SECONDS / 3)
            engine.process.terminate()
            await asyncio.to_thread(engine.process.wait)
            await asyncio.sleep(3)
            with embedded_engine(*small, port=port):
                await running
                await asyncio.sleep(6)
                await evaluate(client, counted)


async def evaluate(client: httpx.AsyncClient, counted: Counter[str]) -> None:
    async def query(expression: str) -> list[Any]:
        answer = (await client.get("/api/v1/query", params={"query": expression})).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        return list(answer["data"]["result"])

    empty = []
    for board in sorted((ROOT / "grafana/dashboards").glob("*.json")):
        for panel in json.loads(board.read_text())["panels"]:
            for target in panel["targets"]:
                expression = (
                    target["expr"].replace("$job", ".*").replace("$instance", ".*").replace("$__rate_interval", RATE)
                )
                found = await query(expression)
                if not found and panel["title"] not in MAY_BE_EMPTY:
                    empty.append(f"{board.stem} / {panel['title']}: {expression}")
    assert not empty, empty
    state = (await client.get("/api/v1/rules")).json()["data"]["groups"]
    rules = [rule for group in state for rule in group["rules"]]
    assert len(rules) == 15
    assert {rule["health"] for rule in rules} == {"ok"}, [rule for rule in rules if rule["health"] != "ok"]

    async def total(expression: str) -> float:
        found = await query(expression)
        return float(found[0]["value"][1]) if found else 0.0

    # The canary's own replays are reads, but no client's requests.
    for kind in ("read", "chat"):
        ok = await total(f'sum(logprob_router_requests_total{{kind="{kind}",code="2xx"}})')
        assert ok == counted[f"{kind} 2xx"], (kind, ok, counted)
        assert await total(f'sum(logprob_router_inflight_requests{{kind="{kind}"}})') == 0
    assert (
        await total('sum(logprob_router_requests_total{code="5xx"})') == counted["read 5xx"] + counted["chat 5xx"] > 0
    )
    assert await total("sum(logprob_router_prefix_evictions_total)") > 0
    assert await total('sum(logprob_router_canary_checks_total{result="different"})') == 0
    assert await total('sum(logprob_router_canary_checks_total{result="same"})') > 0
    kept = os.environ.get("BOARDS")
    if kept:
        await keep(client, Path(kept))


async def keep(client: httpx.AsyncClient, path: Path) -> None:
    """The run's data for benchmarks/boards.py, which draws it."""
    now = float((await client.get("/api/v1/query", params={"query": "time()"})).json()["data"]["result"][1])
    boards: dict[str, Any] = {}
    for file in sorted((ROOT / "grafana/dashboards").glob("*.json")):
        board = json.loads(file.read_text())
        panels = []
        for panel in board["panels"]:
            series = []
            for target in panel["targets"]:
                expression = (
                    re.sub(r"\$__rate_interval", "15s", target["expr"]).replace("$job", ".*").replace("$instance", ".*")
                )
                window = {"query": expression, "start": now - SECONDS - 20, "end": now, "step": 1}
                for found in (await client.get("/api/v1/query_range", params=window)).json()["data"]["result"]:
                    legend = re.sub(r"{{(\w+)}}", lambda m, f=found: f["metric"].get(m[1], ""), target["legendFormat"])
                    series.append({"legend": legend, "values": found["values"]})
            unit = panel["fieldConfig"]["defaults"]["unit"]
            panels.append({"title": panel["title"], "unit": unit, "stat": panel["type"] == "stat", "series": series})
        boards[file.stem] = {"title": board["title"], "panels": panels}
    path.write_text(json.dumps(boards))
