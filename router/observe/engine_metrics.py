"""What the engine itself reports: scraped from its metrics path, renamed once, and exposed as `engine_*`.

Failures are counted and never fatal. A scrape that fails leaves the last values out, so that nobody reads old ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import anyio
import httpx
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

logger = logging.getLogger("router.engine_metrics")

TIMEOUT = 2.0
INTERVAL = 5.0
LARGEST = 8 * 1024 * 1024

Sums = Mapping[str, float]
"""Each of the engine's series by name, summed over its labels."""


@dataclass(frozen=True, slots=True)
class Row:
    """One series of ours, and the engines' names for it (the first that is there counts)."""

    name: str
    help: str
    counter: bool
    names: Mapping[str, tuple[str, ...]]


ROWS: tuple[Row, ...] = (
    Row(
        "engine_kv_usage_ratio",
        "Share of the engine's KV cache in use.",
        False,
        {
            "vllm": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            "sglang": ("sglang:token_usage",),
            "llamacpp": ("llamacpp:kv_cache_usage_ratio",),
            "freetoken": ("logprob_router_engine_kv_used_ratio",),
        },
    ),
    Row(
        "engine_prefix_hit_tokens_total",
        "Prompt tokens that the engine took from its prefix cache.",
        True,
        {
            "vllm": ("vllm:prefix_cache_hits_total",),
            "sglang": ("sglang:cached_tokens_total",),
            "llamacpp": ("llamacpp:prompt_tokens_cached_total",),
            "freetoken": ("logprob_router_engine_chat_cached_tokens_total",),
        },
    ),
    Row(
        "engine_prefix_query_tokens_total",
        "Prompt tokens that the engine looked up in its prefix cache, or computed.",
        True,
        {
            "vllm": ("vllm:prefix_cache_queries_total",),
            "sglang": ("sglang:prompt_tokens_total",),
            "llamacpp": ("llamacpp:prompt_tokens_total",),
            "freetoken": ("logprob_router_engine_chat_prompt_tokens_total",),
        },
    ),
    Row(
        "engine_evicted_tokens_total",
        "Cached tokens that the engine evicted, where it counts them.",
        True,
        {
            "sglang": ("sglang:evicted_tokens_total",),
            "vllm": ("logprob_router_engine_evicted_tokens_total",),
            "freetoken": ("logprob_router_engine_evicted_kv_tokens_total",),
        },
    ),
    Row(
        "engine_running",
        "Requests that the engine computes.",
        False,
        {
            "vllm": ("vllm:num_requests_running",),
            "sglang": ("sglang:num_running_reqs",),
            "llamacpp": ("llamacpp:requests_processing",),
            "freetoken": ("logprob_router_engine_active_requests",),
        },
    ),
    Row(
        "engine_waiting",
        "Requests that wait in the engine.",
        False,
        {
            "vllm": ("vllm:num_requests_waiting",),
            "sglang": ("sglang:num_queue_reqs",),
            "llamacpp": ("llamacpp:requests_deferred",),
        },
    ),
)


@dataclass(slots=True)
class EngineSample:
    """The engine's values under our names. A name is missing where the engine does not have it."""

    kind: str
    values: dict[str, float] = field(default_factory=dict)


def read_sample(kind: str, text: str) -> EngineSample:
    """Our series from an engine's exposition text.

    Raises:
        ValueError: it is no exposition text.
    """
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    found = EngineSample(kind)
    for row in ROWS:
        for name in row.names.get(kind, ()):
            if name in sums:
                found.values[row.name] = sums[name]
                break
    return found


async def scrape(client: httpx.AsyncClient, url: str, kind: str) -> EngineSample:
    """One scrape, within 2 s.

    Raises:
        httpx.HTTPError, ValueError, TimeoutError
    """
    with anyio.fail_after(TIMEOUT):
        async with client.stream("GET", url) as answer:
            answer.raise_for_status()
            text = b""
            async for piece in answer.aiter_bytes():
                text += piece
                if len(text) > LARGEST:
                    raise ValueError(f"{url} answers more than {LARGEST} bytes")
    return read_sample(kind, text.decode("utf-8", "replace"))


class EngineMetrics(Collector):
    """The collector that exposes the last sample, and the task that takes one now and then."""

    def __init__(self) -> None:
        self.sample: EngineSample | None = None
        self.errors = 0

    def collect(self) -> Iterator[Metric]:
        """The series that the engine has, each with its kind as label."""
        sample = self.sample
        for row in ROWS if sample is not None else ():
            if sample is None or row.name not in sample.values:
                continue
            make = CounterMetricFamily if row.counter else GaugeMetricFamily
            family = make("logprob_router_" + row.name, row.help, labels=["engine"])
            family.add_metric([sample.kind], sample.values[row.name])
            yield family
        errors = CounterMetricFamily(
            "logprob_router_engine_scrape_errors_total", "Scrapes of the engine that failed.", value=self.errors
        )
        yield errors

    async def run(self, target: Callable[[], tuple[str, str] | None], interval: float = INTERVAL) -> None:
        """Scrape for ever.

        Args:
            target: the URL and the engine's kind, or None while there is nothing to scrape.
        """
        warned = False
        async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as client:
            while True:
                where = target()
                if where is None:
                    self.sample = None
                else:
                    try:
                        self.sample = await scrape(client, *where)
                        warned = False
                    except (httpx.HTTPError, ValueError, TimeoutError) as error:
                        self.errors += 1
                        self.sample = None
                        if not warned:
                            warned = True
                            logger.warning("cannot read the engine's metrics at %s: %r", where[0], error)
                await anyio.sleep(interval)


def names() -> Iterable[str]:
    """The names of the series, without the prefix."""
    return [*(row.name for row in ROWS), "engine_scrape_errors_total"]
