"""docs/metrics.md names every series, with its labels, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

from router.observe import engine_metrics
from router.observe.metrics import MODEL_CAP, SERIES, Metrics

DOC = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", DOC, flags=re.M))


def test_the_table_is_whole() -> None:
    expected = {row.name: ", ".join(row.labels) or "–" for row in SERIES}
    expected |= dict.fromkeys((row.name for row in engine_metrics.ROWS), "engine")
    expected["engine_scrape_errors_total"] = "–"
    assert {name: labels.strip() for name, labels in ROWS.items()} == expected


def test_models_are_capped_and_only_the_engine_s() -> None:
    metrics = Metrics()
    metrics.allow_models(f"m{number}" for number in range(200))
    metrics.allow_models(["late", "x" * 1000])
    assert metrics.model("m0") == "m0"
    assert metrics.model(f"m{MODEL_CAP}") == "other"
    assert metrics.model("late") == metrics.model(None) == metrics.model("invented") == "other"
    other = Metrics()
    other.allow_models(["x" * 1000])
    assert other.model("x" * 1000) == "other"
