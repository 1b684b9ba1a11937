"""Write grafana/dashboards/*.json from panels.py.

    python grafana/generate.py [--check]

`--check` writes nothing and fails if a file is not current.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)

sys.path.insert(0, str(Path(__file__).parent))

from panels import BOARDS, Board, Panel

FOLDER = Path(__file__).parent / "dashboards"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "logprob-router"


def thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    """Green up to where the panel turns bad; shares are bad below."""
    if panel.unit == "percentunit" and panel.bad is None:
        steps = [Threshold(None, "red"), Threshold(0.9, "orange"), Threshold(0.999, "green")]
    elif panel.title == "Engine up":
        steps = [Threshold(None, "red"), Threshold(1.0, "green")]
    elif panel.bad is None:
        steps = [Threshold(None, "green")]
    else:
        steps = [Threshold(None, "green"), Threshold(panel.bad, "red")]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def build_panel(panel: Panel, number: int) -> stat.Panel | timeseries.Panel:
    made: stat.Panel | timeseries.Panel = stat.Panel() if panel.stat else timeseries.Panel()
    made.id(number).title(panel.title).description(panel.description).unit(panel.unit).datasource(SOURCE)
    made.span(panel.width).height(4 if panel.stat else 8).min(0).thresholds(thresholds(panel))
    for ref, (expression, legend) in zip("ABCD", panel.queries, strict=False):
        made.with_target(
            prometheus.Dataquery().ref_id(ref).expr(expression).legend_format(legend).range().datasource(SOURCE)
        )
    return made


def variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    made = dashboard.QueryVariable(name).label(label).datasource(SOURCE).query(query)
    return made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).multi(True).include_all(True).all_value(".*")


def build(board: Board) -> str:
    """The board's JSON."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .editable()
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(variable("job", "Job", "label_values(logprob_router_build_info, job)"))
        .with_variable(variable("instance", "Router", 'label_values(logprob_router_build_info{job=~"$job"}, instance)'))
        .link(
            dashboard.DashboardLink("logprob-router")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(True)
            .keep_time(True)
        )
    )
    for number, panel in enumerate(board.panels, 1):
        made.with_panel(build_panel(panel, number))
    return JSONEncoder(sort_keys=True, indent=1).encode(made.build()) + "\n"


def main() -> int:
    stale = []
    for board in BOARDS:
        path = FOLDER / f"{board.uid.removeprefix('logprob-router-')}.json"
        text = build(board)
        if not path.exists() or path.read_text() != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text)
    if stale and "--check" in sys.argv:
        print(f"not current: {', '.join(stale)}; run python grafana/generate.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
