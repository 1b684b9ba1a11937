"""`logprob-router engine freetoken -- serve --model …`: FreeToken as the user knows it, with read isolation."""

from __future__ import annotations

import os

import click

from router.engines.flags import bypass_header_flag, isolate_all_flag
from router.engines.freetoken.checks import check_version
from router.engines.freetoken.options import DOOR, PREFIX, Options
from router.engines.targets import HookError


@click.command(
    name="freetoken",
    short_help="FreeToken with read isolation.",
    epilog="Example: logprob-router engine freetoken -- serve --model Qwen/Qwen3-0.6B --port 1919",
)
@isolate_all_flag(PREFIX)
@click.option(
    "--read-decode-yield",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="STEPS",
    envvar=PREFIX + "READ_DECODE_YIELD",
    help="Decode steps that running chats get after each read pass.",
)
@bypass_header_flag(PREFIX)
@click.option("--check", is_flag=True, help="Only check that the hooks fit the installed FreeToken.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- serve FREETOKEN_ARGUMENTS...]")
def command(
    logprob_read_isolate: bool, read_decode_yield: int, bypass_header: str, check: bool, arguments: tuple[str, ...]
) -> None:
    """Start FreeToken with log-probabilities for reads, each alone in its forward pass and without the cache.

    It runs in the environment in which FreeToken is installed. What comes after -- is FreeToken's own command line.
    """
    from router.engines.freetoken import launch

    try:
        version = check_version()
        if check:
            if moved := launch.problems():
                raise HookError("\n".join(moved))
            click.echo(f"FreeToken {version}: every hook fits.")
            return
        if arguments[:1] != ("serve",):
            raise click.UsageError(
                "what comes after -- must be FreeToken's serve command, e.g. -- serve --model NAME. "
                f"For FreeToken's daemon, set {DOOR}=1 in its environment instead."
            )
        Options(logprob_read_isolate, read_decode_yield, bypass_header).to_environ(os.environ)
        launch.serve(list(arguments[1:]))
    except (HookError, ValueError) as error:
        raise click.ClickException(str(error)) from None
