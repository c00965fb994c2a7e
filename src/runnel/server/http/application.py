"""The routes of the HTTP door, put together.

Below: every route. Above: door, and whoever mounts them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette._utils import get_route_path
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from runnel.broker.broker import Broker
from runnel.core.errors import NotSupported, RunnelError
from runnel.server.http import assets, problem
from runnel.server.http.events import Events
from runnel.server.http.guard import Guard
from runnel.server.http.health import Health
from runnel.server.http.history import History
from runnel.server.http.hosts import Hosts
from runnel.server.http.letters import LetterRoutes
from runnel.server.http.openapi import DOCUMENT
from runnel.server.http.publishing import PATH, Publishing
from runnel.server.http.updates import Updates
from runnel.server.http.websocket import WebSockets

if TYPE_CHECKING:
    from runnel.server.options import ServerOptions
    from runnel.server.serving import Serving

EXPOSED = ["Location", "Link", "Runnel-Next", "Runnel-End", "Runnel-Gap", "Retry-After"]


def build(
    broker: Any, options: ServerOptions, draining: Callable[[], bool] = lambda: False, *, serving: Serving | None = None
) -> Application:
    """The application. `draining` says whether the server that serves it is about to stop; `serving`: that it is ours.

    In an application of somebody else's it is for that one to say which names it answers to, unless they are given.
    """
    if not isinstance(broker, Broker):
        raise NotSupported(f"the HTTP door of {broker!r}", "its broker lives elsewhere: ask the server that has it")
    history, health, letters = History(broker), Health(broker, draining), LetterRoutes(broker, options)
    sockets, publishing = WebSockets(broker, options, serving), Publishing(broker, options)
    routes: list[BaseRoute] = [
        Route("/topics", history.topics, methods=["GET"]),
        Route("/topics/{topic:path}/records", history.records, methods=["GET"]),
        Route("/topics/{topic:path}", publishing, methods=["POST"]),
        Route("/events", Events(broker, options)),
        WebSocketRoute("/ws", sockets),
        Route("/ws", sockets.plain, methods=["GET"]),
        Route("/metrics", health.metrics, methods=["GET"]),
        Route("/healthz", health.alive, methods=["GET"]),
        Route("/readyz", health.ready, methods=["GET"]),
        Route("/openapi.json", _openapi, methods=["GET"]),
        Route("/dead-letters", letters.topics, methods=["GET"]),
        Route("/dead-letters/{topic:path}/replay", letters.replay, methods=["POST"]),
        Route("/dead-letters/{topic:path}/discard", letters.discard, methods=["POST"]),
        Route("/dead-letters/{topic:path}", letters.letters, methods=["GET"]),
        Route("/console/updates", Updates(broker, options)),
        *assets.routes(),
    ]
    middleware = [Middleware(Guard, origins=options.origins, hosts=_hosts(options, serving is not None))]
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
    return Application(
        publishing,
        routes=routes,
        middleware=middleware,
        exception_handlers={
            RunnelError: problem.on_runnel_error,
            HTTPException: problem.on_http_error,
            Exception: problem.on_failure,
        },
    )


class Application(Starlette):
    """The routes behind the guard. A publish does not look for its own among them: there are many, and it is known."""

    def __init__(self, publishing: ASGIApp, middleware: list[Middleware], **options: Any) -> None:
        super().__init__(middleware=middleware, **options)
        for kind, given, named in reversed(middleware):
            publishing = kind(publishing, *given, **named)
        self._publishing = publishing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["method"] == "POST" and get_route_path(scope).startswith(PATH):
            await self._publishing(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def _hosts(options: ServerOptions, own: bool) -> Hosts | None:
    """The names to answer to. TLS asks for the name itself; where the server is public, names are given by others."""
    trusts_its_machine = own and options.ssl is None and not options.insecure_public
    return Hosts(options.hosts or ()) if trusts_its_machine or options.hosts is not None else None


async def _openapi(request: Request) -> Response:
    return Response(DOCUMENT, media_type="application/json")
