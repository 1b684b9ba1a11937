"""The engines behind the router: a connection pool for the data, and what the control plane knows of each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

import anyio
import httpx

from router.engines.adapters import EngineFacts
from router.engines.identify import identify
from router.settings import Settings
from router.wire.upstream import Origin, Pool

logger = logging.getLogger("router.endpoints")

PROBE_INTERVAL = 0.5
PROBE_TIMEOUT = 1.0

AFTERWORK = 1.0
"""Seconds for which an engine may go on with a request whose connection was cut: llama.cpp looks once a second."""


class Endpoint:
    """One engine.

    Attributes:
        name: the metrics label, index and authority.
        up: the health path answered at the last probe.
        facts: what the engine said of itself.
        restarts: how often it came back after having been down.
        last_read_end: `time.perf_counter` at the last byte of its last read.
        last_cut: the same, when a read there was last cut before its end.
    """

    __slots__ = (
        "announced",
        "facts",
        "index",
        "last_cut",
        "last_read_end",
        "name",
        "origin",
        "pool",
        "restarts",
        "up",
        "url",
        "warned",
    )

    def __init__(self, index: int, origin: Origin, pool: Pool) -> None:
        self.index = index
        self.origin = origin
        self.url = origin.url
        self.name = f"{index}-{origin.authority.decode()}"
        self.pool = pool
        self.up = False
        self.facts: EngineFacts = EngineFacts.unknown()
        self.restarts = 0
        self.warned = False
        self.announced = False
        self.last_read_end = 0.0
        self.last_cut = -inf


class Endpoints:
    """All engines: `upstream` takes the traffic, `reads` take the reads (they may be the same)."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pools: dict[Origin, Pool] = {}
        self.reads = [self._endpoint(i, Origin.parse(url)) for i, url in enumerate(settings.endpoints)]
        origin = Origin.parse(settings.upstream)
        same = [e for e in self.reads if e.origin == origin]
        self.upstream = same[0] if same else self._endpoint(len(self.reads), origin)
        self.all = self.reads if same else [*self.reads, self.upstream]
        self.changed: Callable[[Endpoint], None] = lambda endpoint: None
        """Called whenever one comes up, goes down or says something new."""

    def _endpoint(self, index: int, origin: Origin) -> Endpoint:
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = Pool(
                origin,
                keepalive=self._settings.upstream_keepalive,
                connect_timeout=self._settings.connect_timeout,
            )
        return Endpoint(index, origin, pool)

    @property
    def ready(self) -> bool:
        """The engine and at least one endpoint for reads are up."""
        return self.upstream.up and any(e.up for e in self.reads)

    def lost(self, endpoint: Endpoint) -> None:
        """An endpoint refused a connection: down now, not at the next probe, or the lane would go on feeding it."""
        if endpoint.up:
            logger.warning("%s refuses connections", endpoint.url)
            endpoint.up = False
            self.changed(endpoint)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    async def watch(self, endpoint: Endpoint) -> None:
        """Probe one engine for ever, and tell `changed`."""
        # verify=True follows the system's trust store as the data path does; nothing is taken from the environment.
        async with httpx.AsyncClient(
            base_url=endpoint.url,
            timeout=PROBE_TIMEOUT,
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_keepalive_connections=1, keepalive_expiry=self._settings.upstream_keepalive),
            headers={"user-agent": "logprob-router"},
        ) as client:
            first = True
            while True:
                up = await self._probe(client, endpoint)
                if up and not (endpoint.up and endpoint.facts.reached):
                    facts = await identify(client, endpoint.url, self._settings.engine)
                    endpoint.restarts += not endpoint.up and endpoint.announced
                    endpoint.facts = facts
                    endpoint.up = endpoint.announced = True
                    logger.info("%s is up: %s", endpoint.url, facts.summary())
                    self.changed(endpoint)
                elif not up and (endpoint.up or first):
                    if endpoint.up:
                        logger.warning("%s does not answer its health check", endpoint.url)
                    endpoint.up = False
                    self.changed(endpoint)
                first = False
                await anyio.sleep(PROBE_INTERVAL)

    @staticmethod
    async def _probe(client: httpx.AsyncClient, endpoint: Endpoint) -> bool:
        """Alive: the health path answers, and not with a server error. An engine without such a path says 404."""
        try:
            answer = await client.get(endpoint.facts.adapter.health_path)
        except httpx.HTTPError:
            return False
        return answer.status_code < 500
