"""A relay between a router and an engine that sees which reads are at the engine, and when."""

from __future__ import annotations

import asyncio
import contextlib
from time import perf_counter
from typing import Self

import httptools

from tests.support.connection import BYPASS


class Tap:
    """Listens on a port of its own and passes bytes on to an engine.

    Attributes:
        most: the most reads that were at the engine at one moment.
        reads: how many reads there were.
        busy: seconds during which at least one was there.
    """

    def __init__(self, engine_port: int) -> None:
        self.engine_port = engine_port
        self.port = 0
        self.most = self.reads = 0
        self.busy = 0.0
        self._here = 0
        self._since = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        """Listen; again on the port it had."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def shut(self) -> None:
        """Refuse new connections, as an engine does that is not there; those that are there go on."""
        self._server.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.shut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def begin(self) -> None:
        self.reads += 1
        self._here += 1
        self.most = max(self.most, self._here)
        if self._here == 1:
            self._since = perf_counter()

    def end(self) -> None:
        self._here -= 1
        if not self._here:
            self.busy += perf_counter() - self._since

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        watch = _Watch(self)
        try:
            to_engine = await asyncio.open_connection("127.0.0.1", self.engine_port)
        except OSError:
            writer.transport.abort()
            return
        ways = [
            asyncio.create_task(_pass(reader, to_engine[1], watch.request.feed_data)),
            asyncio.create_task(_pass(to_engine[0], writer, watch.response.feed_data)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            watch.over()
            for end in (writer, to_engine[1]):
                end.transport.abort() if watch.cut else end.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, see: object) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            see(data)  # type: ignore[operator]
            writer.write(data)
            await writer.drain()


class _Watch:
    """The parsers of one connection, and the read on it."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap
        self.here = False
        self.cut = False
        self.request = httptools.HttpRequestParser(_Requests(self))
        self.response = httptools.HttpResponseParser(_Responses(self))

    def over(self) -> None:
        self.cut = self.here
        self.answered()

    def answered(self) -> None:
        if self.here:
            self.here = False
            self.tap.end()


class _Requests:
    def __init__(self, watch: _Watch) -> None:
        self.watch = watch

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == BYPASS.encode():
            self.watch.here = True
            self.watch.tap.begin()


class _Responses:
    def __init__(self, watch: _Watch) -> None:
        self.watch = watch

    def on_message_complete(self) -> None:
        self.watch.answered()
