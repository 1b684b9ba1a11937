"""Exclusive isolation: what the engine still works on counts as inside, also when its client has left."""

from __future__ import annotations

import pytest

from tests.support.answers import STREAM_HEAD, chunk, engine, play
from tests.support.client import GEN, READ1
from tests.support.routers import running
from tests.support.upstream import Connection, Request, Upstream


async def test_a_read_waits_a_moment_for_a_chat_whose_client_left(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.passing.AFTERWORK", 0.4)

    async def handler(connection: Connection, request: Request) -> None:
        talk = play(STREAM_HEAD, chunk(b"data: {}\n\n"), "forever")
        await (engine if request.is_read else talk)(connection, request)

    upstream.handler = handler
    async with running(upstream, isolation="exclusive") as router:
        client = await router.connect()
        await client.send(GEN)
        chat = await upstream.arrival(1)
        client.close()
        answer = await router.ask(READ1)
        assert answer.status == 200
        assert answer.get("x-read-isolation") == b"exclusive"
        closed, read = chat.connection.closed_at, upstream.reads[0]
        assert closed is not None
        assert read.head_at - closed >= 0.35
        await router.settled()
