"""What all tests share: the scripted upstream and the router in front of it, with the settings that tests need most."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.routers import InProcess, running
from tests.support.upstream import Upstream


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """A scripted engine that answers completions to whatever it is asked."""
    async with Upstream() as upstream:
        yield upstream


@pytest.fixture
async def router(upstream: Upstream) -> AsyncIterator[InProcess]:
    """A router with the default settings in front of `upstream`."""
    async with running(upstream) as router:
        yield router
