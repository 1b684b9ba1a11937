"""Draw the four boards from a real run, as an operator sees them.

BOARDS=/tmp/boards.json python -m pytest tests/observe/test_prometheus.py -m engines
python benchmarks/boards.py /tmp/boards.json docs/images
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

COLUMNS = 3


def draw(board: dict[str, Any], path: Path) -> None:
    panels = board["panels"]
    rows = math.ceil(len(panels) / COLUMNS)
    figure, axes = pyplot.subplots(rows, COLUMNS, figsize=(14, 2.3 * rows), squeeze=False)
    figure.suptitle(board["title"], fontsize=12)
    for axis, panel in zip(axes.flat, panels, strict=False):
        axis.set_title(f"{panel['title']} ({panel['unit']})", fontsize=8)
        for series in panel["series"]:
            points = [(at, float(value)) for at, value in series["values"] if value != "NaN"]
            if points:
                start = points[0][0]
                axis.plot(
                    [at - start for at, _ in points], [v for _, v in points], label=series["legend"], linewidth=1.2
                )
        if panel["series"]:
            axis.legend(fontsize=6, loc="upper left")
        else:
            axis.text(0.5, 0.5, "no data", ha="center", va="center", fontsize=8, color="grey", transform=axis.transAxes)
        axis.set_ylim(bottom=0)
        axis.tick_params(labelsize=6)
        axis.grid(alpha=0.2)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def main() -> None:
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for name, board in json.loads(Path(sys.argv[1]).read_text()).items():
        draw(board, folder / f"board-{name}.png")


if __name__ == "__main__":
    main()
