"""`logprob-router engine`: start the embedded engine, or yours with our patch."""

from __future__ import annotations

import importlib
import importlib.util

import click

KINDS = {
    "llamacpp": ("router.engines.llamacpp", "The embedded engine: llama.cpp with SmolLM2-135M, or a model of yours."),
    "freetoken": ("router.engines.freetoken.command", "Your FreeToken, with read isolation."),
    "vllm": ("router.engines.vllm.command", "Your vLLM, with read isolation."),
}


class EngineGroup(click.Group):
    """Imports an engine's module only when it is started: each runs in an environment of its own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(KINDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in KINDS:
            return None
        if not _present(cmd_name):
            raise click.ClickException(
                f"this release has no patch for {cmd_name}. Start the engine as usual and put in front of it:\n"
                "  logprob-router serve --upstream URL --isolation exclusive"
            )
        command: click.Command = importlib.import_module(KINDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Engines"):
            formatter.write_dl(
                [(name, help if _present(name) else "Not in this release.") for name, (_, help) in KINDS.items()]
            )


def _present(kind: str) -> bool:
    try:
        return importlib.util.find_spec(KINDS[kind][0]) is not None
    except ModuleNotFoundError:  # its package is not there either
        return False


@click.group(cls=EngineGroup, name="engine")
def command() -> None:
    """Start an engine: the embedded one, or yours with our patch."""
