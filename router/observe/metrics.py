"""Every series that the router exports, in one table, and the children of the hot path bound once.

Labels are closed: `kind`, `route`, `code` (a class such as `2xx`), `outcome`, `endpoint`, `isolation` and `model`,
which is a listed name or `other`. Nothing that a client writes freely becomes a label.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from router.observe.engine_metrics import EngineMetrics

Kind = Literal["read", "chat", "other"]
Outcome = Literal["ok", "client_gone", "upstream_error", "upstream_aborted", "timeout", "rejected"]

KINDS: tuple[Kind, ...] = ("read", "chat", "other")
CANARY_RESULTS = ("baseline", "same", "different", "failed")
AFTER = ("read", "chat", "idle")
PREFIX = "logprob_router_"
MODEL_CAP = 50

READ_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# Reads end within a minute, chat within half an hour; the kinds share a series, so its buckets serve both.
WIDE_BUCKETS = (*READ_BUCKETS, 180, 600, 1800)
SMALL_BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1)


class Series(NamedTuple):
    """One row of the table."""

    name: str
    type: type[Counter | Gauge | Histogram]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


SERIES: tuple[Series, ...] = (
    Series("requests_total", Counter, "Client requests that ended.", ("kind", "route", "model", "code", "outcome")),
    Series("inflight_requests", Gauge, "Client requests under way, queued reads included.", ("kind",)),
    Series("request_duration_seconds", Histogram, "From the request's head to the last byte of the answer.", ("kind",)),
    Series("time_to_first_byte_seconds", Histogram, "From the request's head to the answer's first byte.", ("kind",)),
    Series("overhead_seconds", Histogram, "Time that the router itself added.", ("kind",), SMALL_BUCKETS),
    Series("unclassified_total", Counter, "Candidate bodies relayed without being inspected.", ("reason",)),
    Series("read_queue_wait_seconds", Histogram, "Wait of one read for its turn.", (), READ_BUCKETS),
    Series("read_engine_seconds", Histogram, "One read at the endpoint.", ("endpoint",), READ_BUCKETS),
    Series(
        "read_gap_seconds",
        Histogram,
        "From a read's last byte to the next read's first byte, at an endpoint with reads waiting.",
        ("endpoint",),
        SMALL_BUCKETS,
    ),
    Series("read_queue_depth", Gauge, "Client requests that wait for a turn."),
    Series("read_slots_busy", Gauge, "Reads in flight.", ("endpoint",)),
    Series(
        "reads_total", Counter, "Reads that ended; sub-reads of a list count singly.", ("isolation", "model", "outcome")
    ),
    Series("list_reads_total", Counter, "List reads that were split."),
    Series("reads_unacknowledged_total", Counter, "Reads that the endpoint did not acknowledge.", ("endpoint",)),
    Series("reads_resent_total", Counter, "Reads resent after a reused connection closed without a byte."),
    Series("gate_wait_seconds", Histogram, "Exclusive isolation: wait at the gate.", ("kind",), READ_BUCKETS),
    Series("gate_held_requests", Gauge, "Exclusive isolation: requests held at the gate."),
    Series("prefix_expected_tokens_total", Counter, "Prompt tokens that the engine should have had in its cache."),
    Series("prefix_cached_tokens_total", Counter, "Prompt tokens that it reported as cached, of those expected."),
    Series("prefix_lost_tokens_total", Counter, "Expected tokens that were gone, by what ran in between.", ("after",)),
    Series("prefix_evictions_total", Counter, "Times that a known prefix had lost more than a block."),
    Series("prefix_unknown_total", Counter, "Chat requests from which nothing can be told.", ("reason",)),
    Series("canary_checks_total", Counter, "Replays of the stored read.", ("result",)),
    Series("canary_deviation_nats", Gauge, "Largest deviation of the last replay."),
    Series("endpoint_up", Gauge, "1 if the endpoint's health path answers.", ("endpoint",)),
    Series("build_info", Gauge, "Always 1; the labels say what runs.", ("version", "engine", "isolation")),
)


class Metrics:
    """The router's registry. Attributes named as the series of the table (without the prefix) hold them."""

    requests_total: Counter
    inflight_requests: Gauge
    request_duration_seconds: Histogram
    time_to_first_byte_seconds: Histogram
    overhead_seconds: Histogram
    unclassified_total: Counter
    read_queue_wait_seconds: Histogram
    read_engine_seconds: Histogram
    read_gap_seconds: Histogram
    read_queue_depth: Gauge
    read_slots_busy: Gauge
    reads_total: Counter
    list_reads_total: Counter
    reads_unacknowledged_total: Counter
    reads_resent_total: Counter
    gate_wait_seconds: Histogram
    gate_held_requests: Gauge
    prefix_expected_tokens_total: Counter
    prefix_cached_tokens_total: Counter
    prefix_lost_tokens_total: Counter
    prefix_evictions_total: Counter
    prefix_unknown_total: Counter
    canary_checks_total: Counter
    canary_deviation_nats: Gauge
    endpoint_up: Gauge
    build_info: Gauge

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # half as many series, and no scraper here reads them
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        for row in SERIES:
            setattr(self, row.name, self._make(row))
        self.engine = EngineMetrics()
        self.registry.register(self.engine)
        self._models: set[str] = set()
        self._requests: dict[tuple[str, str, str, int, str], Counter] = {}
        self._reads: dict[tuple[str, str, str], Counter] = {}
        self._unknown: dict[str, Counter] = {}
        self.inflight = {kind: self.inflight_requests.labels(kind) for kind in KINDS}
        self.duration = {kind: self.request_duration_seconds.labels(kind) for kind in KINDS}
        self.first_byte = {kind: self.time_to_first_byte_seconds.labels(kind) for kind in KINDS}
        # A series that is born at 1 has no increase that a query could see.
        for result in CANARY_RESULTS:
            self.canary_checks_total.labels(result)
        for after in AFTER:
            self.prefix_lost_tokens_total.labels(after)
        self.overhead = {kind: self.overhead_seconds.labels(kind) for kind in KINDS}

    def _make(self, row: Series) -> Counter | Gauge | Histogram:
        name = PREFIX + row.name
        if row.type is not Histogram:
            return row.type(name, row.help, row.labels, registry=self.registry)
        return Histogram(name, row.help, row.labels, registry=self.registry, buckets=row.buckets or WIDE_BUCKETS)

    def count_request(self, kind: Kind, route: str, model: str | None, status: int, outcome: Outcome) -> None:
        """A client's request ended. `status` 0: it got no answer."""
        key = (kind, route, self.model(model), status // 100, outcome)
        child = self._requests.get(key)
        if child is None:
            code = f"{key[3]}xx" if status else "none"
            child = self._requests[key] = self.requests_total.labels(kind, route, key[2], code, outcome)
        child.inc()

    def count_read(self, isolation: str, model: str | None, outcome: Outcome) -> None:
        """A read or sub-read ended."""
        key = (isolation, self.model(model), outcome)
        child = self._reads.get(key)
        if child is None:
            child = self._reads[key] = self.reads_total.labels(*key)
        child.inc()

    def canary_checked(self, result: str, deviation: float) -> None:
        """The canary's read came back."""
        self.canary_checks_total.labels(result).inc()
        self.canary_deviation_nats.set(deviation)

    def prefix_seen(self, expected: int, cached: int) -> None:
        """The ledger: a known prefix came again."""
        self.prefix_expected_tokens_total.inc(expected)
        self.prefix_cached_tokens_total.inc(min(cached, expected))

    def prefix_lost(self, tokens: int, after: str) -> None:
        """The ledger: an eviction."""
        self.prefix_evictions_total.inc()
        self.prefix_lost_tokens_total.labels(after).inc(tokens)

    def prefix_unknown(self, reason: str) -> None:
        """The ledger: nothing can be told."""
        child = self._unknown.get(reason)
        if child is None:
            child = self._unknown[reason] = self.prefix_unknown_total.labels(reason)
        child.inc()

    def allow_models(self, names: Iterable[str]) -> None:
        """Names that the engine itself lists; the first 50 become label values."""
        for name in names:
            if len(self._models) >= MODEL_CAP:
                return
            if len(name) <= 200:
                self._models.add(name)

    def model(self, name: str | None) -> str:
        """The label value of a model's name: itself if the engine lists it, else `other`."""
        return name if name is not None and name in self._models else "other"

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)
