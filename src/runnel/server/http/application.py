"""The routes of the HTTP door, put together.

Below: every route. Above: door, and whoever mounts them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runnel.broker.broker import Broker
from runnel.core.errors import NotSupported, RunnelError
from runnel.server.http import problem
from runnel.server.http.events import Events
from runnel.server.http.guard import Guard
from runnel.server.http.health import Health
from runnel.server.http.history import History
from runnel.server.http.openapi import DOCUMENT
from runnel.server.http.publishing import Publishing

if TYPE_CHECKING:
    from runnel.server.options import ServerOptions

EXPOSED = ["Location", "Link", "Runnel-Next", "Runnel-End", "Runnel-Gap", "Retry-After"]


def build(broker: Any, options: ServerOptions, draining: Callable[[], bool] = lambda: False) -> Starlette:
    """The application. `draining` says whether the server that serves it is about to stop."""
    if not isinstance(broker, Broker):
        raise NotSupported(f"the HTTP door of {broker!r}", "its broker lives elsewhere: ask the server that has it")
    history, health = History(broker), Health(broker, draining)
    routes = [
        Route("/topics", history.topics, methods=["GET"]),
        Route("/topics/{topic:path}/records", history.records, methods=["GET"]),
        Route("/topics/{topic:path}", Publishing(broker, options).publish, methods=["POST"]),
        Route("/events", Events(broker, options)),
        Route("/metrics", health.metrics, methods=["GET"]),
        Route("/healthz", health.alive, methods=["GET"]),
        Route("/readyz", health.ready, methods=["GET"]),
        Route("/openapi.json", _openapi, methods=["GET"]),
    ]
    middleware = [Middleware(Guard, origins=options.origins)]
    if options.origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(options.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=EXPOSED,
            )
        )
    return Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            RunnelError: problem.on_runnel_error,
            HTTPException: problem.on_http_error,
            Exception: problem.on_failure,
        },
    )


async def _openapi(request: Request) -> Response:
    return Response(DOCUMENT, media_type="application/json")
