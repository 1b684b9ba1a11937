"""Start FreeToken with the hooks in every process.

FreeToken spawns its scheduler and tokenizer processes with functions of `freetoken.server.launch` as targets. We put
functions of this module in their place: multiprocessing names a target by its module, so a child imports this module,
sets its hooks, and only then runs FreeToken's own function. That one is kept on FreeToken's module, because a child
may see that module with our functions in it: unpickling FreeToken's arguments imports it again, through the door.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from router.engines.freetoken import checks
from router.engines.freetoken.options import Options
from router.engines.targets import HookError, Target

logger = logging.getLogger("router.engines.freetoken")

LAUNCH = "freetoken.server.launch"
TARGETS = (
    Target(f"{LAUNCH}:_run_scheduler", ("args", "ack_queue")),
    Target(f"{LAUNCH}:_run_tokenize_worker", ("detach", "kwargs")),
    Target(f"{LAUNCH}:launch_server", ("run_shell", "argv", "prog")),
)
_KEPT = "_logprob_router_originals"


def run_scheduler(args: Any, ack_queue: Any) -> None:
    """The scheduler process."""
    run, _ = _originals()
    with _Startup(ack_queue):
        from router.engines.freetoken import scheduler

        scheduler.install(Options.from_environ())
    run(args, ack_queue)


def run_tokenize_worker(detach: bool, **kwargs: Any) -> None:
    """A tokenizer or detokenizer process."""
    _, run = _originals()
    with _Startup(kwargs.get("ack_queue")):
        from router.engines.freetoken import tokenizer

        tokenizer.install()
    run(detach, **kwargs)


class _Startup:
    """Tell the parent why this process ends, in the way that FreeToken's processes do, and end it."""

    def __init__(self, ack_queue: Any) -> None:
        self.ack_queue = ack_queue

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and self.ack_queue is not None:
            self.ack_queue.put(("error", f"{type(error).__name__}: {error}"))
            self.ack_queue.close()
            self.ack_queue.join_thread()


def _originals() -> tuple[Callable[..., None], Callable[..., None]]:
    from freetoken.server import launch as upstream

    kept: tuple[Callable[..., None], Callable[..., None]] = getattr(
        upstream, _KEPT, (upstream._run_scheduler, upstream._run_tokenize_worker)
    )
    return kept


def enter(upstream: Any) -> Callable[..., None]:
    """Put our targets into `freetoken.server.launch`; returns a `launch_server` that hooks its own process too."""
    launch_server: Callable[..., None] = upstream.launch_server
    if hasattr(upstream, _KEPT):
        return launch_server
    moved = [text for target in TARGETS if (text := target.problem())]
    setattr(upstream, _KEPT, (upstream._run_scheduler, upstream._run_tokenize_worker))
    upstream._run_scheduler, upstream._run_tokenize_worker = run_scheduler, run_tokenize_worker

    def hooked(*args: Any, **kwargs: Any) -> None:
        from router.engines.freetoken import api

        options = Options.from_environ()
        version = checks.check_version()
        if moved:
            raise HookError("FreeToken does not fit the read hooks: " + "; ".join(moved))
        api.install(options)
        logger.warning(
            "FreeToken %s with read isolation: %s isolated",
            version,
            "every read is" if options.isolate_all else f"reads that carry {options.bypass_header} are",
        )
        launch_server(*args, **kwargs)

    upstream.launch_server = hooked
    return hooked


def problems() -> list[str]:
    """Everything that the hooks of all processes miss in the installed FreeToken."""
    from router.engines.freetoken import api, scheduler, tokenizer
    from router.engines.freetoken.counters import Counters

    options = Options()
    every = [*api.hooks(api.Reads(options)), *tokenizer.hooks(), *scheduler.hooks(options, Counters())]
    return [text for target in TARGETS if (text := target.problem())] + checks.problems(every)


def serve(arguments: list[str]) -> None:
    """Run `ft serve` with these arguments; returns when the server ends.

    Raises:
        HookError: the installed FreeToken is not one that the hooks fit.
    """
    checks.check_version()
    from freetoken.server import launch as upstream

    enter(upstream)(argv=arguments, prog="logprob-router engine freetoken -- serve")
