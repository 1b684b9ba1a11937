"""The command `logprob-router`. Each subcommand lives beside what it drives and is imported only when used."""

from __future__ import annotations

import importlib

import click

SUBCOMMANDS = {
    "serve": ("router.serve", "Run the router in front of an engine."),
    "verify": ("router.verify.command", "Measure whether the same read gives the same bits."),
    "engine": ("router.engines.command", "Start an engine: the embedded one, or yours with our patch."),
    "top": ("router.observe.top", "Watch a router's lane in the terminal."),
    "version": ("router.version", "Print the version."),
}


class LazyGroup(click.Group):
    """Imports a subcommand's module (its attribute `command`) on first use, so that each starts with what it needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        command: click.Command = importlib.import_module(SUBCOMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in SUBCOMMANDS.items()])


@click.group(
    cls=LazyGroup, context_settings={"auto_envvar_prefix": "LOGPROB_ROUTER", "help_option_names": ["-h", "--help"]}
)
def main() -> None:
    """A reverse proxy that makes LLM scoring reproducible: the same read gives the same bits."""
