"""`logprob-router version`."""

from __future__ import annotations

import click

from router import __version__


@click.command(name="version")
def command() -> None:
    """Print the version."""
    click.echo(__version__)
