"""Where the parts meet: a client's request is classified, and sent down the lane or straight through."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Self

import anyio
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router import __version__
from router.account import Account, log_access
from router.admin import admin_app, snapshot
from router.canary import Canary
from router.endpoints import Endpoint, Endpoints
from router.errors import Answer, lane_full, list_too_long, no_endpoint, stopping, turn_expired
from router.listing import answer_list, answer_list_stream
from router.observe import tracing
from router.observe.metrics import Metrics
from router.passing import Passing
from router.reading import Reading, answer_single
from router.reads.coding import CodingError, decode
from router.reads.detect import Read, detect, model_of
from router.reads.dialects import find
from router.reads.gate import Gate
from router.reads.lane import Lane, LaneClosed, LaneFull, NoEndpoint, TurnExpired
from router.settings import Settings
from router.wire.exchange import Exchange
from router.wire.message import Limits
from router.wire.server import OpenConnections, RouterProtocol

logger = logging.getLogger("router")

THREAD_DECODE = 4 * 1024
"""Compressed bytes above which decompression leaves the event loop."""

BACKLOG = 2048

DEFAULT_BLOCK = 16
"""Tokens in a block of a prefix cache, where the engine does not say."""


class Router:
    """The router: a data port in front of an engine, and an admin port.

    `async with Router(settings) as router:` runs it in the current event loop; leaving the block stops it at once.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.tracing = tracing.from_environment()
        self.draining = False
        self._state = ServerState()
        self._state.connections = self._connections = OpenConnections()
        self._background: list[asyncio.Task[None]] = []
        self._servers: list[asyncio.Server] = []

    async def __aenter__(self) -> Self:
        settings = self.settings
        self.endpoints = Endpoints(settings)
        self.endpoints.changed = self._changed
        self.lane = Lane(
            len(self.endpoints.reads),
            in_flight=settings.reads_in_flight,
            max_queued=settings.max_queued_reads,
            queue_timeout=settings.queue_timeout,
        )
        self.gate = Gate(max_hold=settings.max_hold) if settings.isolation == "exclusive" else None
        self.passing = Passing(settings, self.metrics, self.endpoints.upstream, self.gate)
        self.reading = Reading(settings, self.metrics, self.endpoints, self.lane, self.gate, self.passing.ledger)
        for endpoint in self.endpoints.reads:  # a series that is there from the start can be asked for its increase
            self.metrics.reads_unacknowledged_total.labels(endpoint.name)
            self.metrics.read_slots_busy.labels(endpoint.name)
        self.metrics.read_queue_depth.set_function(lambda: self.lane.queued)
        if self.gate is not None:
            gate = self.gate
            self.metrics.gate_held_requests.set_function(lambda: gate.held)
        self._looked = asyncio.Event()
        try:
            self._data = await self._listen(settings.host, settings.port, self._data_protocol())
            self._admin = await self._listen(settings.admin_host, settings.admin_port, self._admin_protocol())
            for endpoint in self.endpoints.all:
                self._watch(self.endpoints.watch(endpoint))
            if settings.engine_metrics != "off":
                self._watch(self.metrics.engine.run(self._scrape_target))
            if settings.canary_interval:
                canary = Canary(self.reading.replay, self._era, self.metrics.canary_checked)
                self._watch(canary.run(settings.canary_interval, self._canary_may_run))
        except BaseException:
            self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        pending = {task for task in self._background if not task.done()}
        while pending:
            # Asked again until it has gone: a cancellation that meets a time limit can be taken for the limit's own.
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=0.5)
        running = [task for task in self._state.tasks if not task.done()]
        if running:
            await asyncio.wait(running, timeout=1.0)
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    def _watch(self, work: Coroutine[None, None, None]) -> None:
        """Run in the background until the router stops. It may be stopped from another task than it was started in."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(_report)
        self._background.append(task)

    # -- ports

    async def _listen(self, host: str, port: int, factory: Callable[[], asyncio.Protocol]) -> asyncio.Server:
        server = await asyncio.get_running_loop().create_server(factory, host, port, backlog=BACKLOG)
        self._servers.append(server)
        return server

    def _data_protocol(self) -> Callable[[], asyncio.Protocol]:
        s = self.settings
        limits = Limits(
            header_bytes=s.max_header_bytes,
            header_timeout=s.header_timeout,
            body_timeout=s.body_timeout,
            keepalive=s.client_keepalive,
        )
        config = Config(app=_never, lifespan="off", log_config=None, ws="none", factory=False)
        config.load()
        loop, state, handle = asyncio.get_running_loop(), self._state, self.handle
        return lambda: RouterProtocol(config, state, handle, limits, loop)

    def _admin_protocol(self) -> Callable[[], asyncio.Protocol]:
        config = Config(app=admin_app(self), lifespan="off", log_config=None, ws="none", access_log=False)
        config.load()
        loop, state = asyncio.get_running_loop(), ServerState()
        self._admin_state = state
        return lambda: HttpToolsProtocol(config, state, {}, loop)

    @property
    def port(self) -> int:
        """The data port in use."""
        return _port(self._data)

    @property
    def admin_port(self) -> int:
        """The admin port in use."""
        return _port(self._admin)

    @property
    def ready(self) -> bool:
        """The engine answers and the router is not stopping."""
        return self.endpoints.ready and not self.draining

    def statistics(self) -> dict[str, object]:
        """What `/lane` shows."""
        return snapshot(self)

    async def first_look(self, timeout: float) -> None:
        """Wait until the upstream was probed once, at most `timeout` seconds."""
        with anyio.move_on_after(timeout):
            await self._looked.wait()

    # -- stopping

    def stop_accepting(self) -> None:
        """Close the data port's listener and its idle connections; running exchanges go on."""
        self._data.close()
        for connection in list(self._state.connections):
            connection.shutdown()

    async def idle(self) -> None:
        """Wait until every client connection has ended (their answers written) and no read runs."""
        await self._connections.emptied()
        await self.lane.idle()

    def refuse_waiting(self) -> None:
        """Answer the reads that still wait with 503."""
        self.lane.close()

    def _close(self) -> None:
        for server in self._servers:
            server.close()
        self.lane.close()
        for connection in list(self._state.connections):
            if isinstance(connection, RouterProtocol):
                connection.cut()
        if hasattr(self, "_admin_state"):
            for connection in list(self._admin_state.connections):
                connection.shutdown()
        self.endpoints.close()

    # -- what the control plane finds

    def _scrape_target(self) -> tuple[str, str] | None:
        upstream, where = self.endpoints.upstream, self.settings.engine_metrics
        if where != "auto":
            return where, upstream.facts.kind
        if not upstream.up or upstream.facts.kind == "generic":
            return None
        return upstream.url + upstream.facts.adapter.metrics_path, upstream.facts.kind

    def _era(self) -> tuple[object, ...]:
        """What the canary's baseline belongs to."""
        return tuple((e.restarts, e.facts.models, e.facts.version) for e in self.endpoints.reads)

    def _canary_may_run(self) -> bool:
        return self.ready and self.lane.is_idle

    def _changed(self, endpoint: Endpoint) -> None:
        if endpoint is self.endpoints.upstream:
            self._looked.set()
        self.metrics.endpoint_up.labels(endpoint.name).set(endpoint.up)
        if endpoint in self.endpoints.reads:
            self.lane.set_up(endpoint.index, endpoint.up)
        if endpoint.up:
            self.metrics.allow_models(endpoint.facts.models)
            if endpoint is self.endpoints.upstream:
                self.passing.ledger.block_size = endpoint.facts.block_size or DEFAULT_BLOCK
                self.metrics.build_info.clear()
                self.metrics.build_info.labels(__version__, endpoint.facts.kind, self.settings.isolation).set(1)

    # -- requests

    async def handle(self, exchange: Exchange) -> None:
        """Answer one client request."""
        account = Account(self.metrics, exchange.began)
        try:
            await self._dispatch(exchange, account)
        except Answer as answer:
            account.outcome = answer.outcome
            if exchange.response_started:
                exchange.abort()
            else:
                account.status = answer.status
                exchange.respond_error(answer.status, answer.code, answer.message, answer.fields)
        except asyncio.CancelledError:
            account.outcome = "client_gone" if exchange.gone else "upstream_aborted"
            raise
        finally:
            account.close()
            if self.settings.access_log:
                log_access(exchange, account)
            if self.tracing is not None:
                self.tracing.record(exchange, account)

    async def _dispatch(self, exchange: Exchange, account: Account) -> None:
        dialect = None
        if exchange.method == b"POST":
            dialect = find("POST", exchange.target.partition(b"?")[0], exchange.get(b"content-type"))
        if dialect is None:
            account.classify("other", "other", None)
            await self.passing.stream(exchange, account)
            return
        body = await exchange.read_body(self.settings.max_inspect_bytes)
        account.received_at = exchange.received_at
        if body is None:
            self._unclassified("too_large", exchange)
            account.classify("chat", dialect.route, None)
            await self.passing.stream(exchange, account)
            return
        coding = exchange.get(b"content-encoding")
        plain = body if coding is None else await self._decoded(exchange, body, coding)
        read = detect(dialect, plain) if plain is not None else None
        if read is None or plain is None:
            account.classify("chat", dialect.route, model_of(plain) if plain is not None else None)
            await self.passing.send(exchange, account, dialect, body, plain)
        else:
            account.classify("read", dialect.route, read.model)
            await self._read(exchange, account, read, body, plain)

    async def _decoded(self, exchange: Exchange, body: bytes, coding: bytes) -> bytes | None:
        limit = self.settings.max_inspect_bytes
        try:
            if len(body) < THREAD_DECODE:
                return decode(body, coding, limit)
            return await anyio.to_thread.run_sync(decode, body, coding, limit)
        except CodingError as error:
            self._unclassified(error.reason, exchange)
            return None

    def _unclassified(self, reason: str, exchange: Exchange) -> None:
        self.metrics.unclassified_total.labels(reason).inc()
        logger.warning(
            "a body on %s is relayed without being inspected: %s", exchange.target[:100].decode("latin-1"), reason
        )

    async def _read(self, exchange: Exchange, account: Account, read: Read, body: bytes, plain: bytes) -> None:
        settings, lane = self.settings, self.lane
        prompts = read.prompts
        if prompts is not None and prompts.count > settings.max_list_prompts:
            raise list_too_long(prompts.count, settings.max_list_prompts)
        try:
            ticket = lane.admit()
        except LaneFull:
            raise lane_full(settings.max_queued_reads, lane.retry_after()) from None
        except LaneClosed:
            raise stopping() from None
        except NoEndpoint:
            raise no_endpoint() from None
        try:
            if prompts is None:
                await answer_single(self.reading, exchange, account, read, body, ticket, encoded=body is not plain)
                return
            self.metrics.list_reads_total.inc()
            if read.stream:
                await answer_list_stream(self.reading, exchange, account, read, plain, ticket)
            else:
                await answer_list(self.reading, exchange, account, read, plain, ticket)
        except TurnExpired:
            raise turn_expired(settings.queue_timeout, lane.retry_after()) from None
        except LaneClosed:
            raise stopping() from None
        except NoEndpoint:
            raise no_endpoint() from None
        finally:
            ticket.leave()


async def _never(scope: object, receive: object, send: object) -> None:
    """Uvicorn's configuration wants an application; the data port's protocol has its own."""


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a background task ended", exc_info=error)


def _port(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port
