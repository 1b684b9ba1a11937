from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from router.engines.freetoken.counters import SERIES, Counters, exposition


def test_what_is_pushed_out_has_a_cause() -> None:
    counters = Counters()
    counters.blame("evicted_kv_tokens", 2)
    with counters.serving("read"):
        counters.blame("evicted_kv_tokens", 3)
        with counters.serving("chat"):
            counters.blame("evicted_kv_tokens", 1)
        counters.blame("evicted_kv_tokens", 1)
    counters.add("read_passes")
    found = {name: value for name, value in counters.snapshot().items() if value}
    assert found == {"evicted_kv_tokens.chat": 3, "evicted_kv_tokens.read": 4, "read_passes": 1}


def test_the_text_is_prometheus_and_holds_every_series() -> None:
    counters = Counters()
    counters.add("read_passes", 5)
    text = exposition(counters.snapshot(), {"active_requests": 2}, "0.2.1", "header")
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    found = {(s.name, s.labels.get("cause")): s.value for s in samples}
    prefix = "logprob_router_engine_"
    for name, by_cause, _ in SERIES:
        for cause in ("read", "chat") if by_cause else (None,):
            assert (f"{prefix}{name}_total", cause) in found
    assert found[(prefix + "read_passes_total", None)] == 5
    assert found[(prefix + "active_requests", None)] == 2
    (info,) = (s for s in samples if s.name == prefix + "info")
    assert info.labels == {"engine": "freetoken", "version": "0.2.1", "isolates": "header"}


def test_before_the_first_request_all_are_zero() -> None:
    assert "logprob_router_engine_read_passes_total 0\n" in exposition({}, {}, "0.2.1", "reads")
