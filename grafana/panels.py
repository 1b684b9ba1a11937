"""What the four boards show: title, query, unit, what it means, and where it turns bad. generate.py makes the JSON.

`$selector` stands for the variables that every query carries.
"""

from __future__ import annotations

from typing import NamedTuple

P = "logprob_router_"
OK = ',outcome="ok"'  # a read that failed was never computed, and is no sign of missing isolation
ISOLATED = OK + ',isolation=~"engine|exclusive"'
S = 'job=~"$job",instance=~"$instance"'


class Panel(NamedTuple):
    """One panel. `bad` is the value from which it is red; `queries` are (PromQL, legend)."""

    title: str
    description: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    bad: float | None = None
    stat: bool = False
    width: int = 12


class Board(NamedTuple):
    uid: str
    title: str
    description: str
    panels: tuple[Panel, ...]


def rate(name: str, by: str = "", labels: str = "") -> str:
    inner = f"rate({P}{name}{{{S}{labels}}}[$__rate_interval])"
    return f"sum by ({by}) ({inner})" if by else f"sum({inner})"


def quantile(q: float, name: str, by: str = "", labels: str = "") -> str:
    grouping = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({grouping}) (rate({P}{name}_bucket{{{S}{labels}}}[$__rate_interval])))"


def quantiles(name: str, labels: str = "", by: str = "", legend: str = "") -> tuple[tuple[str, str], ...]:
    prefix = f"{legend} " if legend else ""
    return tuple((quantile(q, name, by, labels), f"{prefix}p{q * 100:g}") for q in (0.5, 0.99))


def gauge(name: str, by: str = "", labels: str = "") -> str:
    return f"sum by ({by}) ({P}{name}{{{S}{labels}}})" if by else f"sum({P}{name}{{{S}{labels}}})"


READS = Board(
    "logprob-router-reads",
    "logprob-router / Reads",
    "Are reads reproducible, and what do they cost?",
    (
        Panel(
            "Isolated reads",
            "Share of reads that were alone in their forward pass or kept apart from other traffic. Below 1, some were only "
            "alone among reads.",
            "percentunit",
            (
                (
                    f"{rate('reads_total', labels=ISOLATED)} / {rate('reads_total', labels=OK)}",
                    "isolated",
                ),
            ),
            None,
            True,
            6,
        ),
        Panel(
            "Canary mismatches, 24 h",
            "Replays of the stored read that came back with other bits. Anything above 0 means that reads move.",
            "short",
            ((f'sum(increase({P}canary_checks_total{{{S},result="different"}}[24h])) or vector(0)', "different"),),
            1,
            True,
            6,
        ),
        Panel(
            "Canary deviation",
            "Largest difference of the last replay. 0 is bit for bit.",
            "short",
            ((f"max({P}canary_deviation_nats{{{S}}})", "nats"),),
            1e-9,
            True,
            6,
        ),
        Panel(
            "Waiting",
            "Client requests that wait for a turn in the lane.",
            "short",
            ((gauge("read_queue_depth"), "waiting"),),
            512,
            True,
            6,
        ),
        Panel(
            "Reads by isolation",
            "What held for the reads that ended.",
            "reqps",
            ((rate("reads_total", "isolation"), "{{isolation}}"),),
        ),
        Panel(
            "Reads by outcome",
            "How reads and the parts of lists ended.",
            "reqps",
            ((rate("reads_total", "outcome"), "{{outcome}}"),),
        ),
        Panel(
            "Wait for a turn", "From the complete request to its turn.", "s", quantiles("read_queue_wait_seconds"), 5
        ),
        Panel(
            "Time at the engine",
            "One read, from its first byte out to its last byte back.",
            "s",
            quantiles("read_engine_seconds"),
            30,
        ),
        Panel(
            "Gap between reads",
            "How long the engine stood idle between two reads while others waited.",
            "s",
            quantiles("read_gap_seconds"),
            0.005,
        ),
        Panel(
            "Unacknowledged and resent",
            "Reads that the endpoint did not acknowledge as isolated, and reads sent again after a stale connection.",
            "reqps",
            (
                (rate("reads_unacknowledged_total", "endpoint"), "unacknowledged {{endpoint}}"),
                (rate("reads_resent_total"), "resent"),
            ),
            0.001,
        ),
    ),
)

CHAT = Board(
    "logprob-router-chat",
    "logprob-router / Chat",
    "Does chat notice?",
    (
        Panel(
            "In flight",
            "Chat requests under way.",
            "short",
            ((gauge("inflight_requests", labels=',kind="chat"'), "chat"),),
            None,
            True,
            8,
        ),
        Panel(
            "Held at the gate",
            "Exclusive isolation: requests that wait while the other side has the engine.",
            "short",
            ((gauge("gate_held_requests"), "held"),),
            50,
            True,
            8,
        ),
        Panel(
            "Overhead, p99",
            "Time that the router itself added to a chat request.",
            "s",
            ((quantile(0.99, "overhead_seconds", labels=',kind="chat"'), "p99"),),
            0.01,
            True,
            8,
        ),
        Panel(
            "Chat by outcome",
            "How chat requests ended.",
            "reqps",
            ((rate("requests_total", "outcome", ',kind="chat"'), "{{outcome}}"),),
        ),
        Panel(
            "First byte",
            "From the request's head to the answer's first byte.",
            "s",
            quantiles("time_to_first_byte_seconds", ',kind="chat"'),
            10,
        ),
        Panel(
            "Duration",
            "From the request's head to the last byte of the answer.",
            "s",
            quantiles("request_duration_seconds", ',kind="chat"'),
        ),
        Panel(
            "Overhead", "Time that the router itself added.", "s", quantiles("overhead_seconds", ',kind="chat"'), 0.01
        ),
        Panel(
            "Wait at the gate",
            "Exclusive isolation: how long chat and reads waited for one another.",
            "s",
            ((quantile(0.99, "gate_wait_seconds", "kind"), "p99 {{kind}}"),),
            10,
        ),
    ),
)

EVICTIONS = Board(
    "logprob-router-evictions",
    "logprob-router / Evictions",
    "Who pushes whom out of the engine's cache?",
    (
        Panel(
            "Prefix held",
            "Of the prompt tokens that the engine should still have had, the share that it reported as cached.",
            "percentunit",
            ((f"{rate('prefix_cached_tokens_total')} / {rate('prefix_expected_tokens_total')}", "held"),),
            None,
            True,
            8,
        ),
        Panel(
            "Evictions, 1 h",
            "Times that a known conversation had lost more than a block of its prefix.",
            "short",
            ((f"sum(increase({P}prefix_evictions_total{{{S}}}[1h]))", "evictions"),),
            100,
            True,
            8,
        ),
        Panel(
            "Lost after reads, 1 h",
            "Prompt tokens that were gone after reads which did not bypass the cache.",
            "short",
            ((f'sum(increase({P}prefix_lost_tokens_total{{{S},after="read"}}[1h])) or vector(0)', "tokens"),),
            1,
            True,
            8,
        ),
        Panel(
            "Expected and cached tokens",
            "What returning conversations should have found in the cache, and what they found.",
            "short",
            ((rate("prefix_expected_tokens_total"), "expected"), (rate("prefix_cached_tokens_total"), "cached")),
        ),
        Panel(
            "Tokens lost, by what ran in between",
            "read: reads that did not bypass the cache; chat: other conversations; idle: neither.",
            "short",
            ((rate("prefix_lost_tokens_total", "after"), "{{after}}"),),
        ),
        Panel(
            "Engine's KV cache in use",
            "As the engine reports it.",
            "percentunit",
            ((f"max by (engine) ({P}engine_kv_usage_ratio{{{S}}})", "{{engine}}"),),
            0.95,
        ),
        Panel(
            "Engine's own prefix hits",
            "Tokens that the engine took from its cache, and tokens it looked up or computed.",
            "short",
            ((rate("engine_prefix_hit_tokens_total"), "hits"), (rate("engine_prefix_query_tokens_total"), "queries")),
        ),
        Panel(
            "Evicted by the engine's count",
            "Where the engine counts evictions itself.",
            "short",
            ((rate("engine_evicted_tokens_total"), "tokens/s"),),
        ),
        Panel(
            "Resume latency",
            "First byte of chat requests, to be read beside the losses above.",
            "s",
            quantiles("time_to_first_byte_seconds", ',kind="chat"'),
            10,
        ),
        Panel(
            "Requests that tell nothing",
            "Chat requests from which no eviction can be told, by reason.",
            "reqps",
            ((rate("prefix_unknown_total", "reason"), "{{reason}}"),),
        ),
    ),
)

ROUTER = Board(
    "logprob-router-router",
    "logprob-router / Router",
    "Is the router itself well?",
    (
        Panel(
            "Engine up",
            "Whether each endpoint's health path answers.",
            "short",
            ((f"min by (endpoint) ({P}endpoint_up{{{S}}})", "{{endpoint}}"),),
            None,
            True,
            8,
        ),
        Panel(
            "CPU",
            "Cores that the router's process uses.",
            "short",
            ((f"sum by (instance) (rate(process_cpu_seconds_total{{{S}}}[$__rate_interval]))", "{{instance}}"),),
            0.9,
            True,
            8,
        ),
        Panel(
            "Memory",
            "Resident memory of the router's process.",
            "bytes",
            ((f"sum by (instance) (process_resident_memory_bytes{{{S}}})", "{{instance}}"),),
            1e9,
            True,
            8,
        ),
        Panel(
            "Requests by kind", "Client requests that ended.", "reqps", ((rate("requests_total", "kind"), "{{kind}}"),)
        ),
        Panel(
            "Requests by outcome",
            "ok, client_gone, upstream_error, upstream_aborted, timeout, rejected.",
            "reqps",
            ((rate("requests_total", "outcome"), "{{outcome}}"),),
        ),
        Panel(
            "Open files",
            "Sockets and files that the process has open, against its limit.",
            "short",
            (
                (f"sum by (instance) (process_open_fds{{{S}}})", "open {{instance}}"),
                (f"sum by (instance) (process_max_fds{{{S}}})", "limit {{instance}}"),
            ),
        ),
        Panel(
            "Bodies not inspected",
            "Candidates that were relayed without a look, by reason.",
            "reqps",
            ((rate("unclassified_total", "reason"), "{{reason}}"),),
            1,
        ),
        Panel(
            "Failed scrapes of the engine",
            "Scrapes of the engine's own metrics that failed.",
            "reqps",
            ((rate("engine_scrape_errors_total"), "failed"),),
            0.05,
        ),
        Panel(
            "Engine's queue",
            "Requests that the engine computes, and that wait in it.",
            "short",
            ((gauge("engine_running"), "running"), (gauge("engine_waiting"), "waiting")),
        ),
    ),
)

BOARDS = (READS, CHAT, EVICTIONS, ROUTER)
