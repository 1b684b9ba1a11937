"""`logprob-router top`: the lane, refreshed each second, readable at 80 columns."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import click
import httpx

from router.observe.engine_metrics import names as engine_names

PREFIX = "logprob_router_"
BAR = 20
ADMIN = "http://127.0.0.1:9091"


@dataclass(slots=True)
class Reading:
    """What the admin port said at one time. `totals` holds each series summed over all labels but `kind`."""

    at: float
    lane: dict[str, Any]
    totals: dict[tuple[str, str], float]


def fetch(client: httpx.Client) -> Reading:
    """Ask the admin port.

    Raises:
        httpx.HTTPError
    """
    lane, metrics = client.get("/lane").raise_for_status(), client.get("/metrics").raise_for_status()
    totals: dict[tuple[str, str], float] = {}
    for line in metrics.text.splitlines():
        if not line.startswith(PREFIX) or "_bucket" in line:
            continue
        name, _, value = line.rpartition(" ")
        series, _, labels = name.partition("{")
        kind = next((kind for kind in ("read", "chat", "other") if f'kind="{kind}"' in labels), "")
        key = (series.removeprefix(PREFIX), kind)
        totals[key] = totals.get(key, 0.0) + float(value)
    return Reading(time.monotonic(), lane.json(), totals)


def render(now: Reading, before: Reading | None) -> str:
    """The screen: at most 80 columns wide."""
    seconds = now.at - before.at if before is not None else 0.0

    def rate(name: str, kind: str = "") -> float:
        if before is None or seconds <= 0:
            return 0.0
        return (now.totals.get((name, kind), 0.0) - before.totals.get((name, kind), 0.0)) / seconds

    def mean_ms(name: str, kind: str = "") -> str:
        count = rate(name + "_count", kind)
        return f"{rate(name + '_sum', kind) / count * 1e3:.1f} ms" if count else "-"

    lane, gate = now.lane["lane"], now.lane["gate"]
    state = "stopping" if now.lane["draining"] else "ready" if now.lane["ready"] else "engine down"
    oldest = f", oldest {lane['ages'][0]:.1f} s" if lane["ages"] else ""
    lines = [
        f"logprob-router  {state}  isolation {now.lane['isolation']}",
        "",
        f"queue   {_bar(lane['queued'])} {lane['queued']} waiting{oldest}",
        f"        {lane['turns']} turns, {lane['expired']} expired, {lane['full']} refused",
    ]
    if gate is not None:
        lines.append(
            f"gate    {gate['phase']}: inside {gate['traffic']} chats, {gate['reads']} reads; held {gate['held']}"
        )
    lines += ["", "endpoint                        up  slots  engine", ""]
    takers = iter(zip(lane["running"], lane["up"], strict=True))
    for endpoint in now.lane["endpoints"]:
        running = str(next(takers)[0]) if endpoint["takes_reads"] else "-"
        kind = f"{endpoint['engine']} {endpoint['version'] or ''}"
        lines.append(f"{endpoint['name'][:30]:<30}  {'yes' if endpoint['up'] else 'NO':<3} {running:>5}  {kind[:30]}")
    lines += ["", f"{'':<8}{'requests/s':>12}{'in flight':>12}{'duration':>14}{'first byte':>14}{'overhead':>12}"]
    for kind in ("read", "chat", "other"):
        inflight = now.totals.get(("inflight_requests", kind), 0.0)
        lines.append(
            f"{kind:<8}{rate('requests_total', kind):>12.1f}{inflight:>12.0f}"
            f"{mean_ms('request_duration_seconds', kind):>14}{mean_ms('time_to_first_byte_seconds', kind):>14}"
            f"{mean_ms('overhead_seconds', kind):>12}"
        )
    lines += [
        "",
        f"read waits {mean_ms('read_queue_wait_seconds')}, engine {mean_ms('read_engine_seconds')}, "
        f"gap {mean_ms('read_gap_seconds')}",
        f"unacknowledged {now.totals.get(('reads_unacknowledged_total', ''), 0):.0f}, "
        f"resent {now.totals.get(('reads_resent_total', ''), 0):.0f}, "
        f"evictions seen {now.totals.get(('prefix_evictions_total', ''), 0):.0f}",
    ]
    engine = [
        f"{name.removeprefix('engine_')} {now.totals[(name, '')]:g}"
        for name in engine_names()
        if (name, "") in now.totals
    ]
    lines += [f"engine: {', '.join(engine[:3])}", *([f"        {', '.join(engine[3:])}"] if engine[3:] else [])]
    return "\n".join(line[:80].rstrip() for line in lines)


def _bar(queued: int) -> str:
    filled = min(queued, BAR)
    return "[" + "#" * filled + "." * (BAR - filled) + "]"


@click.command(name="top")
@click.option(
    "--admin", default="http://127.0.0.1:9091", show_default=True, help="The router's admin port.", metavar="URL"
)
@click.option(
    "--interval", default=1.0, show_default=True, help="Seconds between two looks.", type=click.FloatRange(0.1)
)
@click.option("--once", is_flag=True, help="Look twice, print once, and end.")
def command(admin: str, interval: float, once: bool) -> None:
    """Watch a router's lane in the terminal."""
    with httpx.Client(base_url=admin, trust_env=False, timeout=5.0) as client:
        before: Reading | None = None
        try:
            while True:
                now = fetch(client)
                if once and before is not None:
                    click.echo(render(now, before))
                    return
                if not once:
                    clear = "\033[H\033[2J" if sys.stdout.isatty() else ""
                    click.echo(clear + render(now, before))
                before = now
                time.sleep(interval)
        except httpx.HTTPError as error:
            raise click.ClickException(
                f"no router's admin port at {admin}: {error}. Give its URL with --admin."
            ) from None
        except KeyboardInterrupt:
            return
