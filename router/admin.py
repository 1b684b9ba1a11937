"""The admin port: liveness, readiness, metrics and a snapshot of the lane. Never behind the data port's limits."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from router.app import Router


def admin_app(router: Router) -> Starlette:
    """`/livez` never depends on the engine, `/readyz` follows it; `/metrics` and `/lane` are for machines."""

    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        if router.ready:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("stopping\n" if router.draining else "the engine is not up\n", status_code=503)

    async def metrics(request: Request) -> Response:
        return Response(router.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def lane(request: Request) -> Response:
        return JSONResponse(router.statistics())

    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            Route("/lane", lane),
        ]
    )


def snapshot(router: Router) -> dict[str, object]:
    """What `/lane` shows: the queue, the slots, the endpoints and their isolation. Plain JSON types."""
    return {
        "isolation": router.settings.isolation,
        "draining": router.draining,
        "ready": router.ready,
        "lane": dataclasses.asdict(router.lane.statistics()),
        "gate": None if router.gate is None else dataclasses.asdict(router.gate.statistics()),
        "endpoints": [
            {
                "name": endpoint.name,
                "up": endpoint.up,
                "takes_reads": endpoint in router.endpoints.reads,
                "engine": endpoint.facts.kind,
                "version": endpoint.facts.version,
                "restarts": endpoint.restarts,
                "open_connections": endpoint.pool.open_connections,
                "idle_connections": endpoint.pool.idle_connections,
            }
            for endpoint in router.endpoints.all
        ],
    }
