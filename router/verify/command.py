"""`logprob-router verify`."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import click

from router import __version__
from router.settings import SettingsError, check_url
from router.verify import costs as cost_cases
from router.verify import report
from router.verify.cases import Bench, Plan
from router.verify.probe import CannotMeasure, Target
from router.verify.prompts import PromptMaker

QUICK = Plan(
    lengths=(300, 513),
    loaded_lengths=(300,),
    chats=1,
    loaded_mixes=False,
    rotation=0,
    long_context=0,
    chat_rounds=1,
)


@click.command(name="verify")
@click.option("--engine", help="The engine's base URL, to be measured straight.", metavar="URL")
@click.option("--router", help="The router's base URL, to be measured beside it.", metavar="URL")
@click.option("--model", help="The model's name; not needed where the engine lists one.")
@click.option("--lengths", help="Prompt lengths in tokens, separated by commas.", metavar="N,N,...")
@click.option("--chat-load", type=click.IntRange(0), help="Chats that run as load.  [default: 3]")
@click.option("--rotation", type=click.IntRange(0), help="Tokens of the prefix that option orders share; 0: leave out.")
@click.option("--long-context", type=click.IntRange(0), help="Tokens of the long conversation; 0: leave out.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
@click.option("--quick", is_flag=True, help="The main cases only, in under a minute on a small engine.")
def command(
    engine: str | None,
    router: str | None,
    model: str | None,
    lengths: str | None,
    chat_load: int | None,
    rotation: int | None,
    long_context: int | None,
    json_file: Path | None,
    quick: bool,
) -> None:
    """Measure whether the same read gives the same bits, straight at an engine and through the router.

    Exit code: 0 if the router's reads (or the engine's, without --router) all came back bit for bit, 1 if some moved,
    2 if it could not be measured.
    """
    if engine is None and router is None:
        raise click.UsageError("give --engine URL, --router URL, or both")
    urls = {name: url for name, url in (("engine", engine), ("router", router)) if url is not None}
    try:
        for name, url in urls.items():
            check_url(f"--{name}", url)
        plan = _plan(quick, lengths, chat_load, rotation, long_context)
        if json_file is not None and not json_file.absolute().parent.is_dir():
            raise ValueError(f"--json: there is no folder {json_file.absolute().parent}")
    except (SettingsError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    try:
        code, figures = asyncio.run(_run(urls, model, plan))
        if json_file is not None:
            json_file.write_text(json.dumps(figures, indent=1) + "\n")
    except CannotMeasure as error:
        click.echo(f"Could not measure: {error}", err=True)
        code = 2
    except KeyboardInterrupt:
        code = 2
    sys.exit(code)


def _plan(quick: bool, lengths: str | None, chats: int | None, rotation: int | None, long_context: int | None) -> Plan:
    base = QUICK if quick else Plan()
    try:
        wanted = base.lengths if lengths is None else tuple(int(n) for n in lengths.split(","))
    except ValueError:
        raise ValueError("--lengths wants whole numbers separated by commas, e.g. 60,300,513") from None
    if any(n < 20 for n in wanted):
        raise ValueError("--lengths: the shortest prompt is 20 tokens")
    return Plan(
        lengths=wanted,
        loaded_lengths=base.loaded_lengths if lengths is None else wanted,
        chats=base.chats if chats is None else chats,
        loaded_mixes=base.loaded_mixes,
        rotation=base.rotation if rotation is None else rotation,
        long_context=base.long_context if long_context is None else long_context,
        chat_rounds=base.chat_rounds,
    )


async def _run(urls: dict[str, str], model: str | None, plan: Plan) -> tuple[int, dict[str, Any]]:
    targets = {name: Target(url, model) for name, url in urls.items()}
    names = list(targets)
    began = time.perf_counter()
    progress = sys.stderr.isatty()

    def say(what: str) -> None:
        if progress:
            click.echo(f"\r\033[K{time.perf_counter() - began:5.0f} s  {what[:90]}", nl=False, err=True)

    try:
        for target in targets.values():
            await target.prepare()
        prompts = PromptMaker(targets[names[0]])
        await prompts.prepare()
        bench = Bench(targets, prompts, plan, say)
        await bench.run()
        costs = await cost_cases.measure(bench)
    finally:
        if progress:
            click.echo("\r\033[K", nl=False, err=True)
        for target in targets.values():
            await target.close()
    text, code = report.verdict(bench.rows, names, costs)
    seconds = time.perf_counter() - began
    click.echo(report.table(bench.rows, names))
    click.echo("\n" + report.cost_lines(bench.rows, costs, names))
    click.echo(f"\n{textwrap.fill(text, 100)}\n({seconds:.0f} s)")
    about = {"version": __version__, "model": targets[names[0]].model, "urls": urls, "seconds": seconds}
    return code, report.as_json(bench.rows, names, costs, **about)
