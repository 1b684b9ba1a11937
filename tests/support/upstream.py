"""A scripted engine on raw sockets: it records what arrives to the byte, and answers by a script."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Self

from tests.support.connection import BYPASS, Connection, Gone, Handler, Request

__all__ = ["BYPASS", "Connection", "Gone", "Handler", "Request", "Upstream"]


class Upstream:
    """The scripted engine. Requests of the router's own (health checks) are kept apart, in `probes`.

    Attributes:
        requests: every request of clients, in the order of arrival.
        max_reads_overlap: the most reads that were here at one moment.
        violations: what was not strict HTTP; leaving the context raises on any.
        health: status of the answer to health checks; None: they get no answer.
        models: what it says to the router's own question for its models.
    """

    def __init__(self, handler: Handler | None = None, *, host: str = "127.0.0.1", port: int = 0) -> None:
        from tests.support.answers import engine

        self.host, self.port = host, port
        self.handler = handler or engine
        self.routes: dict[str, tuple[Handler, bool]] = {}
        self.requests: list[Request] = []
        self.probes: list[Request] = []
        self.all_connections: list[Connection] = []
        self.reads_active: set[Request] = set()
        self.max_reads_overlap = 0
        self.violations: list[str] = []
        self.health: int | None = 200
        self.models: list[str] = []
        self._arrival = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), self.host, self.port, backlog=2048)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        await asyncio.sleep(0)
        if self._tasks:
            await asyncio.gather(*self._tasks)
        assert not self.violations, self.violations

    def stop(self) -> None:
        """Close the port and every connection, as an engine that dies."""
        self._server.close()
        for connection in self.all_connections:
            connection.transport.abort()

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def authority(self) -> bytes:
        return self.url.removeprefix("http://").encode()

    @property
    def connections(self) -> list[Connection]:
        """Those that carry clients' requests, or nothing yet."""
        return [c for c in self.all_connections if not any(r in self.probes for r in c.requests)]

    @property
    def open_connections(self) -> int:
        return sum(c.closed_at is None for c in self.connections)

    @property
    def reads(self) -> list[Request]:
        return [request for request in self.requests if request.is_read]

    def on(self, path: str, handler: Handler, *, early: bool = False) -> None:
        """Answer requests for this path; `early`: as soon as the head is there."""
        self.routes[path] = (handler, early)

    def handler_of(self, request: Request) -> tuple[Handler, bool]:
        if request in self.probes:
            return self._probe, False
        return self.routes.get(request.path, (self.handler, False))

    async def _probe(self, connection: Connection, request: Request) -> None:
        if self.health is None:
            await connection.forever()
        listing = request.path == "/v1/models" and self.models
        body = json.dumps({"data": [{"id": name} for name in self.models]} if listing else {}).encode()
        head = b"HTTP/1.1 %d OK\r\ncontent-length: %d\r\n\r\n" % (self.health or 0, len(body))
        await connection.send(head + body)

    def arrived(self, request: Request) -> None:
        if any(value.startswith(b"logprob-router") for value in request.all("user-agent")):
            self.probes.append(request)
            return
        self.requests.append(request)
        if request.is_read:
            self.reads_active = {other for other in self.reads_active if not other.connection.is_gone}
            self.reads_active.add(request)
            self.max_reads_overlap = max(self.max_reads_overlap, len(self.reads_active))
        task = asyncio.get_running_loop().create_task(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self) -> None:
        async with self._arrival:
            self._arrival.notify_all()

    async def arrival(self, count: int, timeout: float = 5.0) -> Request:
        """Wait until `count` requests of clients have arrived; returns the last of those."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout), self._arrival:
                await self._arrival.wait_for(lambda: len(self.requests) >= count)
        assert len(self.requests) >= count, f"{len(self.requests)} of {count} requests arrived within {timeout} s"
        return self.requests[count - 1]
