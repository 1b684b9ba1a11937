"""`logprob-router engine vllm -- serve MODEL …`: vLLM as the user knows it, with read isolation."""

from __future__ import annotations

import importlib.metadata
import os
import sys

import click

from router.engines.flags import bypass_header_flag, isolate_all_flag
from router.engines.targets import HookError
from router.engines.vllm.checks import check_version
from router.engines.vllm.options import PREFIX, Options

SCHEDULER = "router.engines.vllm.ReadIsolationScheduler"
MIDDLEWARE = "router.engines.vllm.ReadIsolationMiddleware"


@click.command(
    name="vllm",
    short_help="vLLM with read isolation.",
    epilog="Example: logprob-router engine vllm -- serve Qwen/Qwen3-0.6B --port 8000",
)
@isolate_all_flag(PREFIX)
@click.option(
    "--read-step-ratio",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="STEPS",
    envvar=PREFIX + "READ_STEP_RATIO",
    help="Steps that waiting chat work gets after each read's step.",
)
@bypass_header_flag(PREFIX)
@click.option("--check", is_flag=True, help="Only check that the hooks fit the installed vLLM.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- serve MODEL VLLM_ARGUMENTS...]")
def command(
    logprob_read_isolate: bool, read_step_ratio: int, bypass_header: str, check: bool, arguments: tuple[str, ...]
) -> None:
    """Start vLLM with each read alone in its engine step and without the prefix cache.

    It runs in the environment in which vLLM is installed. What comes after -- is vLLM's own command line; our
    scheduler and our middleware are added to it.
    """
    try:
        version = check_version()
    except HookError as error:
        raise click.ClickException(str(error)) from None
    if check:
        click.echo(f"vLLM {version}: every hook fits.")
        return
    if arguments[:1] != ("serve",):
        raise click.UsageError("what comes after -- must be vLLM's serve command, e.g. -- serve MODEL --port 8000")
    if any(argument.startswith(("--scheduler-cls", "--scheduler_cls")) for argument in arguments):
        raise click.UsageError("read isolation is a scheduler class itself: leave --scheduler-cls out")
    Options(logprob_read_isolate, read_step_ratio, bypass_header).to_environ(os.environ)
    flags = ["--scheduler-cls", SCHEDULER, "--middleware", MIDDLEWARE]
    os.execv(sys.executable, [sys.executable, *_server(arguments[1:]), *flags])


def _server(arguments: tuple[str, ...]) -> list[str]:
    """Python's arguments for `vllm serve` with these.

    vLLM's command asks for the version of a distribution named vllm. The CPU build has another name, so there its
    server module is started instead, which takes the model as a flag.
    """
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        model = ["--model"] if arguments and not arguments[0].startswith("-") else []
        return ["-m", "vllm.entrypoints.openai.api_server", *model, *arguments]
    return ["-m", "vllm.entrypoints.cli.main", "serve", *arguments]
