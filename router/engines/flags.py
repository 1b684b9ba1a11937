"""Flags that the command lines of our engine patches share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from router.engines.headers import HEADER, header_name

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def isolate_all_flag(prefix: str) -> Decorator:
    """--logprob-read-isolate; `prefix` is that of the engine's variables."""
    return click.option(
        "--logprob-read-isolate",
        is_flag=True,
        envvar=prefix + "LOGPROB_READ_ISOLATE",
        help="Isolate every read (logprobs and max_tokens 1), not only those that carry the bypass header.",
    )


def bypass_header_flag(prefix: str) -> Decorator:
    """--bypass-header; the command gets the header's name."""
    return click.option(
        "--bypass-header",
        default=HEADER,
        show_default=True,
        metavar="NAME",
        envvar=prefix + "BYPASS_HEADER",
        callback=_name,
        help="Request header that asks for isolation; the answer carries it with the value 'applied'.",
    )


def _name(ctx: click.Context, param: click.Parameter, value: str) -> str:
    try:
        return header_name(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
