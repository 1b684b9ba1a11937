"""The table, the verdict and the JSON of `verify`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from router.verify.cases import Column, Row
from router.verify.costs import Costs


def table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """The rows for a terminal, at most 100 columns wide."""
    lines = [f"{'case':<37} {'tokens':>6} {'load':>7}  " + "  ".join(f"{name:<24}" for name in names)]
    lines.append(f"{'':<37} {'':>6} {'':>7}  " + "  ".join(f"{'equal':>7} {'max nats':>9} {'s':>6}" for _ in names))
    for row in rows:
        load = f"{row.load} chat{'s' * (row.load > 1)}" if row.load else "idle"
        cells = "  ".join(_cell(row.columns[name]) for name in names)
        lines.append(f"{row.case:<37} {row.tokens:>6} {load:>7}  {cells}")
    return "\n".join(lines)


def _cell(column: Column) -> str:
    equal = f"{column.equal}/{column.reads}"
    moved = f"{column.deviation:.4f}" if column.equal < column.reads else "0"
    return f"{equal:>7} {moved:>9} {column.seconds:>6.1f}"


def total(rows: Iterable[Row], name: str) -> Column:
    """A target's rows added up."""
    sum_ = Column()
    for row in rows:
        column = row.columns[name]
        sum_.reads += column.reads
        sum_.equal += column.equal
        sum_.deviation = max(sum_.deviation, column.deviation)
        sum_.cached += column.cached
        sum_.overlapped += column.overlapped
        sum_.chat_pieces += column.chat_pieces
        sum_.seconds += column.seconds
        for label, count in column.labels.items():
            sum_.labels[label] = sum_.labels.get(label, 0) + count
    return sum_


def moved(rows: Iterable[Row], name: str) -> list[Row]:
    """The rows in which a target's reads did not all keep their bits."""
    return [row for row in rows if row.columns[name].equal < row.columns[name].reads]


def verdict(rows: Sequence[Row], names: Sequence[str], costs: Costs) -> tuple[str, int]:
    """Plain sentences, and the exit code: 0 if the judged column (the router's if there is one) is bitwise, else 1."""
    judged = "router" if "router" in names else "engine"
    out = []
    for name in reversed(names):
        sum_ = total(rows, name)
        where = "Through the router" if name == "router" else "Straight at the engine"
        if sum_.equal == sum_.reads:
            out.append(f"{where} every read came back bit for bit ({sum_.equal} of {sum_.reads}).")
        else:
            gone = sum_.reads - sum_.equal
            out.append(f"{where} {gone} of {sum_.reads} moved, at most {sum_.deviation:.2g} nats.")
    engine = total(rows, "engine") if "engine" in names else None
    if engine is not None and "router" in names and engine.equal == engine.reads:
        out.append("The engine's own column is all equal too: this run proves nothing about the router.")
    if engine is None:
        out.append("Without --engine nothing shows that this engine's scores move by themselves.")
    labels = total(rows, judged).labels
    if labels:
        out.append(f"Labels of the router: {', '.join(f'{name} {count}' for name, count in sorted(labels.items()))}.")
    if engine is not None:
        warm = "was warm" if engine.cached else "was never hit, or the engine does not say"
        out.append(f"The engine's cache {warm} ({engine.cached} of {engine.reads} reads had cached tokens).")
    loaded = sum(row.columns[judged].reads for row in rows if row.load)
    overlapped = total(rows, judged).overlapped
    if loaded:
        out.append(
            f"{overlapped} of {loaded} reads under load ran while a chat was producing text."
            + ("" if overlapped else " So the rows under load prove nothing.")
        )
    warm_baselines = sum(row.warm_baselines for row in rows)
    if warm_baselines:
        where = "router's endpoint" if judged == "router" else "engine"
        out.append(f"{warm_baselines} baselines came mostly from a cache: the {where} does not bypass it for reads.")
    changed = [name for name in names if not costs.chat_same.get(name, True)]
    if changed:
        out.append(f"Greedy chat changed its text while reads ran: {', '.join(changed)}.")
    bad = moved(rows, judged)
    if bad:
        named = "; ".join(f"{row.case}, {row.tokens} tokens, {row.load or 'no'} chats" for row in bad)
        out.append(f"Rows that moved: {named}.")
    return " ".join(out), 1 if bad else 0


def chat_rate(rows: Iterable[Row], name: str) -> float | None:
    """Pieces of text a second from all chats together while the reads under load ran; None without load."""
    loaded = total([row for row in rows if row.load], name)
    return loaded.chat_pieces / loaded.seconds if loaded.seconds else None


def cost_lines(rows: Sequence[Row], costs: Costs, names: Sequence[str]) -> str:
    """The costs for a terminal."""
    lines = []

    def line(what: str, values: dict[str, Any], form: str) -> None:
        if values:
            lines.append(f"{what:<52}" + "  ".join(f"{name} {form.format(values[name])}" for name in names))

    line("8 short reads in parallel", costs.parallel, "{:.2f} s")
    line("one question in 6 option orders, shared prefix", costs.rotation, "{:.2f} s")
    if costs.rotation_moved is not None:
        lines.append(
            f"{'scores of these that the engine moved':<52}{costs.rotation_moved} of 6, "
            f"at most {costs.rotation_deviation:.2g} nats"
        )
    rates = {name: rate for name in names if (rate := chat_rate(rows, name)) is not None}
    line("chat load while the reads ran", rates, "{:.1f} tokens/s")
    line("a chat, alone", costs.chat_alone, "{:.2f} s")
    line("the same chat during a burst of reads", costs.chat_during, "{:.2f} s")
    line("cached tokens when a long conversation goes on", costs.cached_before, "{}")
    line("the same after the burst of reads", costs.cached_after, "{}")
    return "\n".join(lines)


def as_json(rows: Sequence[Row], names: Sequence[str], costs: Costs, **about: Any) -> dict[str, Any]:
    """Everything that was measured, in plain types."""
    text, code = verdict(rows, names, costs)
    return {
        **about,
        "rows": [dataclasses.asdict(row) for row in rows],
        "totals": {name: dataclasses.asdict(total(rows, name)) for name in names},
        "costs": dataclasses.asdict(costs),
        "chat_tokens_per_second": {name: chat_rate(rows, name) for name in names},
        "verdict": text,
        "exit_code": code,
    }
