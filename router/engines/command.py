"""`logprob-router engine`: start the embedded engine, or yours with our patch."""

from __future__ import annotations

import importlib

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
        command: click.Command = importlib.import_module(KINDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Engines"):
            formatter.write_dl([(name, summary) for name, (_, summary) in KINDS.items()])


@click.group(cls=EngineGroup, name="engine")
def command() -> None:
    """Start an engine: the embedded one, or yours with our patch."""
