"""The bars of docs/performance.md, from a file that proxy.py wrote.

python benchmarks/picture.py docs/measurements/proxy.json docs/images/performance.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

PANELS = (
    ("cpu_us_c16", "CPU for a request, 16 connections (us)"),
    ("added_p50_us_c1", "added latency, 1 connection, p50 (us)"),
    ("event_us_s256", "CPU for a streamed event, 256 streams (us)"),
    ("memory_mb", "memory afterwards (MB)"),
)


def main() -> None:
    found = json.loads(Path(sys.argv[1]).read_text())["proxies"]
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(14, 2.8))
    for axis, (key, title) in zip(axes, PANELS, strict=True):
        names = list(found)
        colours = ["#1f77b4" if name == "logprob-router" else "#b0b7bf" for name in names]
        bars = axis.barh(names, [found[name][key] for name in names], color=colours)
        axis.bar_label(bars, fmt="%.0f", padding=2, fontsize=8)
        axis.set_title(title, fontsize=9)
        axis.invert_yaxis()
        axis.tick_params(labelsize=8)
        axis.margins(x=0.18)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    figure.tight_layout()
    target = Path(sys.argv[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=90)


if __name__ == "__main__":
    main()
