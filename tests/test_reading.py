"""What a read's label may claim right after another read was cut, and what the canary's read carries."""

from __future__ import annotations

import asyncio

import pytest

from router import reading
from router.engines.adapters import ADAPTERS, EngineFacts
from tests.support.answers import engine, held
from tests.support.client import READ1
from tests.support.routers import eventually, running
from tests.support.upstream import Upstream

VOUCHED = EngineFacts(ADAPTERS["llamacpp"], reached=True, vouched=True, reason="its settings")


@pytest.mark.parametrize(("isolation", "label"), [("engine", b"engine"), ("exclusive", b"exclusive")])
async def test_a_read_behind_one_that_was_cut_does_not_claim_to_have_been_alone(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, isolation: str, label: bytes
) -> None:
    """An engine that does not acknowledge goes on for a moment with a read whose client left."""
    monkeypatch.setattr(reading, "AFTERWORK", 0.5)
    async with running(upstream, isolation=isolation) as router:
        if isolation == "engine":
            router.router.endpoints.reads[0].facts = VOUCHED
        assert (await router.ask(READ1)).get("x-read-isolation") == label
        upstream.handler = held(5.0)
        client = await router.connect()
        await client.send(READ1)
        await eventually(lambda: len(upstream.reads) == 2)
        client.reset()
        await eventually(lambda: router.router.lane.is_idle)
        upstream.handler = engine
        assert (await router.ask(READ1)).get("x-read-isolation") == b"serial"
        await asyncio.sleep(0.6)
        assert (await router.ask(READ1)).get("x-read-isolation") == label


@pytest.mark.parametrize("knobs", [True, False])
async def test_the_canary_s_read_has_the_knobs_that_reads_have(upstream: Upstream, knobs: bool) -> None:
    async with running(upstream, body_knobs=knobs) as router:
        router.router.endpoints.reads[0].facts = VOUCHED
        await router.router.reading.replay()
    assert ("cache_prompt" in upstream.requests[0].json()) is knobs
