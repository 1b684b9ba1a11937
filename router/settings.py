"""Everything that `logprob-router serve` can be told: one frozen dataclass.

The command line, the environment variables and docs/settings.md are made from it or tested against it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

EngineKind = Literal["auto", "generic", "vllm", "freetoken", "sglang", "llamacpp"]
Isolation = Literal["engine", "exclusive", "serial"]


class SettingsError(ValueError):
    """A setting that cannot work; the message says what to type instead."""


def option(default: Any, help: str, unit: str = "") -> Any:
    """A field with its help text and unit, from which the CLI option and the docs table are made."""
    return dataclasses.field(default=default, metadata={"help": help, "unit": unit})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    upstream: str = dataclasses.field(metadata={"help": "Base URL of the engine; takes all traffic.", "unit": "URL"})
    read_endpoint: tuple[str, ...] = option((), "Base URL that takes reads; repeatable. Default: the upstream.", "URL")
    host: str = option("127.0.0.1", "Address of the data port.")
    port: int = option(9000, "Data port: everything on it is the engine's. 0 takes any free port.")
    admin_host: str = option("127.0.0.1", "Address of the admin port.")
    admin_port: int = option(9091, "Admin port: /livez /readyz /metrics /lane. 0 takes any free port.")
    engine: EngineKind = option("auto", "Engine kind; auto asks the engine.")
    isolation: Isolation = option("engine", "How reads are kept apart from other traffic.")
    bypass_header: str = option("X-Cache-Bypass: 1", "Header that asks a patched endpoint to isolate a read.")
    require_ack: bool = option(False, "Answer 502 to a read that the endpoint did not acknowledge as isolated.")
    body_knobs: bool = option(True, "Add the engine's own knobs (such as cache_prompt) to a read's body.")
    reads_in_flight: int = option(1, "Reads in flight at one endpoint; more than 1 only where the engine isolates.")
    max_queued_reads: int = option(1024, "Client requests that may wait in the lane; beyond it 503.")
    max_list_prompts: int = option(4096, "Prompts in one list read; beyond it 413.")
    queue_timeout: float = option(60.0, "Longest wait for a turn.", "s")
    read_timeout: float = option(300.0, "Longest time of one read at the engine.", "s")
    max_hold: float = option(10.0, "Exclusive mode: longest time one side holds the engine against the other.", "s")
    max_inspect_bytes: int = option(64 * 1024 * 1024, "Bodies above this are relayed without being inspected.", "bytes")
    max_header_bytes: int = option(64 * 1024, "Request line and headers above this are refused with 431.", "bytes")
    header_timeout: float = option(10.0, "Longest time for a request's head to arrive.", "s")
    body_timeout: float = option(60.0, "Longest silence between two pieces of a request's body.", "s")
    connect_timeout: float = option(5.0, "Longest time to connect to an endpoint.", "s")
    upstream_keepalive: float = option(
        3.0, "Idle life of a connection to an endpoint; keep it under the engine's.", "s"
    )
    client_keepalive: float = option(75.0, "Idle life of a client's connection.", "s")
    drain_delay: float = option(0.0, "After SIGTERM, keep accepting connections for this long.", "s")
    grace: float = option(30.0, "After SIGTERM, time for running requests and queued reads to finish.", "s")
    preserve_host: bool = option(False, "Send the client's Host to the engine instead of the endpoint's authority.")
    engine_metrics: str = option("auto", "Where to scrape the engine's metrics: a URL, auto or off.")
    canary_interval: float = option(0.0, "Replay a stored read this often and compare its bits; 0 is off.", "s")
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "Least severity that is logged.")
    log_format: Literal["text", "json"] = option("text", "Shape of a log line.")
    access_log: bool = option(False, "One log line for each request (never its content).")

    def __post_init__(self) -> None:
        check_url("--upstream", self.upstream)
        for url in self.read_endpoint:
            check_url("--read-endpoint", url)
        if self.engine_metrics not in ("auto", "off"):
            check_url("--engine-metrics", self.engine_metrics)
        name, colon, value = self.bypass_header.partition(":")
        if not colon or not _is_token(name.strip()) or not value.strip() or not value.isprintable():
            raise SettingsError(
                f"--bypass-header {self.bypass_header!r} is not 'Name: value'; type e.g. 'X-Cache-Bypass: 1'"
            )
        for flag in ("reads_in_flight", "max_list_prompts", "max_inspect_bytes", "max_header_bytes"):
            if getattr(self, flag) < 1:
                raise SettingsError(f"{flag_name(flag)} must be at least 1")
        if self.max_queued_reads < 0:
            raise SettingsError("--max-queued-reads must be at least 0")
        for flag in ("queue_timeout", "read_timeout", "max_hold", "header_timeout", "body_timeout", "connect_timeout"):
            if not getattr(self, flag) > 0:
                raise SettingsError(f"{flag_name(flag)} must be above 0 seconds")
        for flag in ("upstream_keepalive", "client_keepalive", "drain_delay", "grace", "canary_interval"):
            if not getattr(self, flag) >= 0:
                raise SettingsError(f"{flag_name(flag)} must be 0 seconds or more")
        for flag in ("port", "admin_port"):
            if not 0 <= getattr(self, flag) <= 65535:
                raise SettingsError(f"{flag_name(flag)} must be between 0 and 65535")
        if self.port and self.port == self.admin_port and self.host == self.admin_host:
            raise SettingsError("--port and --admin-port are the same; give the admin port another one")

    @property
    def bypass(self) -> tuple[bytes, bytes]:
        """The bypass header's name and value as they go on the wire."""
        name, _, value = self.bypass_header.partition(":")
        return name.strip().encode("ascii"), value.strip().encode("latin-1")

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The base URLs that take reads."""
        return self.read_endpoint or (self.upstream,)


def flag_name(field: str) -> str:
    return "--no-body-knobs" if field == "body_knobs" else "--" + field.replace("_", "-")


def check_url(flag: str, url: str) -> None:
    """Refuse what is not an http(s) base URL.

    Raises:
        SettingsError: with the form that is expected.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise SettingsError(f"{flag} {url!r}: {error}; type e.g. http://127.0.0.1:8000") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"{flag} {url!r} is not an http:// or https:// URL; type e.g. http://127.0.0.1:8000")
    if (
        parts.username is not None
        or parts.query
        or parts.fragment
        or (flag != "--engine-metrics" and parts.path.strip("/"))
    ):
        raise SettingsError(f"{flag} {url!r}: give only scheme, host and port, e.g. http://127.0.0.1:8000")


def _is_token(name: str) -> bool:
    return bool(name) and name.isascii() and all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in name)
