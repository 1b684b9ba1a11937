"""`logprob-router serve`: the process around a `Router` — its options, its signals and its end."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import signal
import sys
import typing
from collections.abc import Callable
from typing import Any, Literal

import click
import uvloop

from router import __version__
from router.app import Router
from router.endpoints import Endpoint
from router.observe.logs import configure_logging
from router.settings import Settings, SettingsError, flag_name

logger = logging.getLogger("router")

FIRST_LOOK = 2.0
"""Seconds to wait for the engine's first sign before the start-up lines are printed."""

FLUSH = 0.25
"""Seconds left, of the grace, for the last error answers to reach their clients."""


def settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """One click option for each field of `Settings`."""
    types = typing.get_type_hints(Settings)
    for field in reversed(dataclasses.fields(Settings)):
        kind, unit = types[field.name], field.metadata["unit"]
        required = field.default is dataclasses.MISSING
        attrs: dict[str, Any] = {"help": field.metadata["help"], "required": required}
        if not required:
            attrs["default"] = field.default
            attrs["show_default"] = field.default != ()
        if unit:
            attrs["metavar"] = unit.upper()
        name = "--" + field.name.replace("_", "-")
        if kind is bool:
            attrs.pop("metavar", None)
            if field.default:
                attrs |= {"show_default": False, "default": True, "flag_value": False}
                name = f"{flag_name(field.name)}"
                function = click.option(name, field.name, is_flag=True, **attrs)(function)
                continue
            attrs["is_flag"] = True
        elif typing.get_origin(kind) is Literal:
            attrs["type"] = click.Choice(typing.get_args(kind))
        elif kind == tuple[str, ...]:
            attrs["multiple"] = True
        else:
            attrs["type"] = kind
        function = click.option(name, field.name, **attrs)(function)
    return function


@click.command(name="serve")
@click.option("--workers", type=int, default=1, hidden=True)
@settings_options
def command(workers: int, **values: Any) -> None:
    """Run the router in front of an engine.

    Each option can also be set as LOGPROB_ROUTER_SERVE_<NAME> in the environment.
    """
    if workers != 1:
        raise click.UsageError(
            "--workers: one process only, since reads take turns in one queue. "
            "To scale out, run one router beside each engine."
        )
    try:
        settings = Settings(**values)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    configure_logging(settings.log_level, settings.log_format)
    try:
        code = uvloop.run(serve(settings))
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot listen: {error}. Choose another --port or --admin-port.") from None
    sys.exit(code)


async def serve(settings: Settings) -> int:
    """Run until a signal ends it; the exit code is 0 unless a second signal cut it short."""
    first, second = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (second if first.is_set() else first).set()

    # What lives now lives to the end, and a request leaves no circles behind: the collector need not come often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    async with Router(settings) as router:
        saying = asyncio.ensure_future(announce(router))
        await first.wait()
        saying.cancel()
        cut_short = await _or(second, drain(router))
    return 1 if cut_short else 0


async def drain(router: Router) -> None:
    """Stop within the grace: readiness first, then the listener, then what still runs."""
    settings = router.settings
    loop = asyncio.get_running_loop()
    deadline = loop.time() + settings.grace
    router.draining = True
    logger.info("stopping: not ready from now on, at most %g s until the end", settings.grace)
    if settings.drain_delay:
        await asyncio.sleep(min(settings.drain_delay, settings.grace))
    router.stop_accepting()
    try:
        async with asyncio.timeout_at(deadline - FLUSH):
            await router.idle()
    except TimeoutError:
        router.refuse_waiting()
        await asyncio.sleep(FLUSH)


async def _or(event: asyncio.Event, work: Any) -> bool:
    """Do `work` unless `event` comes first; whether it did."""
    task, waiter = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return False
        return True
    finally:
        task.cancel()
        waiter.cancel()


async def announce(router: Router) -> None:
    """Say in three lines where it listens, what engine it found and what isolation it can promise."""
    s = router.settings
    await router.first_look(FIRST_LOOK)
    lines = [
        f"logprob-router {__version__} listens on {_url(s.host, router.port)}, "
        f"admin on {_url(s.admin_host, router.admin_port)}",
        *(f"engine at {endpoint.url}: {_engine(endpoint)}" for endpoint in router.endpoints.all),
        f"isolation: {promise(router)}",
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _engine(endpoint: Endpoint) -> str:
    return endpoint.facts.summary() if endpoint.up else "does not answer yet; it gets 503 until it does"


def promise(router: Router) -> str:
    """What isolation the endpoints for reads can promise, in words."""
    isolation = router.settings.isolation
    if isolation == "serial":
        return "serial (one read at a time; other traffic may share its forward pass)"
    if isolation == "exclusive":
        return "exclusive (other traffic is held while reads run)"
    if all(e.facts.vouched for e in router.endpoints.reads):
        return "engine, on the evidence of the engine's own settings"
    return "engine where the endpoint acknowledges it, else serial; each answer says which in X-Read-Isolation"
