"""The engine's own series under our names, and what happens when they cannot be had."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from router.observe import engine_metrics
from router.observe.engine_metrics import EngineMetrics, names, read_sample, scrape
from tests.support.answers import message
from tests.support.upstream import Connection, Request, Upstream

VLLM = """# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:prefix_cache_hits_total{engine="0"} 10
vllm:prefix_cache_hits_total{engine="1"} 5
vllm:prefix_cache_queries_total 40
vllm:num_requests_running 2
vllm:num_requests_waiting 1
"""


@pytest.mark.parametrize(
    ("kind", "text", "values"),
    [
        (
            "vllm",
            VLLM,
            {
                "engine_kv_usage_ratio": 0.25,
                "engine_prefix_hit_tokens_total": 15,
                "engine_prefix_query_tokens_total": 40,
                "engine_running": 2,
                "engine_waiting": 1,
            },
        ),
        ("vllm", "vllm:gpu_cache_usage_perc 0.5\n", {"engine_kv_usage_ratio": 0.5}),
        (
            "sglang",
            "sglang:token_usage 0.5\nsglang:evicted_tokens_total 7\nsglang:num_queue_reqs 3\n",
            {"engine_kv_usage_ratio": 0.5, "engine_evicted_tokens_total": 7, "engine_waiting": 3},
        ),
        ("llamacpp", "llamacpp:requests_processing 1\n", {"engine_running": 1}),
        (
            "freetoken",
            'logprob_router_engine_evicted_kv_tokens_total{cause="read"} 3\n'
            'logprob_router_engine_evicted_kv_tokens_total{cause="chat"} 4\n',
            {"engine_evicted_tokens_total": 7},
        ),
        ("generic", VLLM, {}),
    ],
)
def test_names_are_mapped_and_labels_summed(kind: str, text: str, values: dict[str, float]) -> None:
    assert read_sample(kind, text).values == values


def exposed(metrics: EngineMetrics) -> str:
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode()


async def test_it_is_scraped_and_a_failure_is_counted_and_leaves_no_old_value(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = False

    async def handler(connection: Connection, request: Request) -> None:
        await connection.send(message(500, b"") if broken else message(200, VLLM.encode()))

    monkeypatch.setattr(engine_metrics, "LARGEST", 10_000)
    async with Upstream(handler) as upstream:
        metrics = EngineMetrics()
        target: tuple[str, str] | None = (upstream.url + "/m", "vllm")
        task = asyncio.create_task(metrics.run(lambda: target, 0.01))
        try:
            async with asyncio.timeout(5):
                while metrics.sample is None:
                    await asyncio.sleep(0.01)
                assert 'logprob_router_engine_kv_usage_ratio{engine="vllm"} 0.25' in exposed(metrics)
                broken = True
                while metrics.errors < 2:
                    await asyncio.sleep(0.01)
                assert "engine_kv_usage_ratio" not in exposed(metrics)
                assert "logprob_router_engine_scrape_errors_total" in exposed(metrics)
                broken = False
                while metrics.sample is None:
                    await asyncio.sleep(0.01)
                target = None
                while metrics.sample is not None:
                    await asyncio.sleep(0.01)
        finally:
            task.cancel()


@pytest.mark.parametrize("answer", [message(200, b"no { exposition"), message(200, b"#" * 200_000)])
async def test_what_is_no_exposition_is_an_error(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_metrics, "LARGEST", 100_000)

    async def handler(connection: Connection, request: Request) -> None:
        await connection.send(answer)

    async with Upstream(handler) as upstream, httpx.AsyncClient() as client:
        with pytest.raises(ValueError):
            await scrape(client, upstream.url + "/m", "vllm")


async def test_a_silent_engine_costs_two_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_metrics, "TIMEOUT", 0.05)

    async def silent(connection: Connection, request: Request) -> None:
        await asyncio.sleep(1)

    async with Upstream(silent) as upstream, httpx.AsyncClient() as client:
        with pytest.raises(TimeoutError):
            await scrape(client, upstream.url + "/m", "vllm")


def test_every_name_is_known() -> None:
    assert "engine_scrape_errors_total" in set(names())
