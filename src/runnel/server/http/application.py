"""The ASGI application: all routes of the HTTP listener, behind the cross-origin guard."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from starlette._utils import get_route_path
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runnel.core.errors import RunnelError
from runnel.server.http import errors
from runnel.server.http.analytics import AnalyticsRoute
from runnel.server.http.authentication import Authentication, Authorize, CallbackAuthorization, LoginRoutes
from runnel.server.http.console.actions import ActionsRoute
from runnel.server.http.console.charts import ChartsRoute
from runnel.server.http.console.files import file_routes
from runnel.server.http.console.letters import LettersRoute
from runnel.server.http.console.live import live_protocol
from runnel.server.http.console.records import RecordRoutes
from runnel.server.http.console.sampling import ConsoleSampling
from runnel.server.http.console.updates import ConsoleUpdates
from runnel.server.http.cross_origin import AllowedHosts, CrossOriginGuard
from runnel.server.http.dead_letters import DeadLetterRoutes
from runnel.server.http.events import EventsRoute
from runnel.server.http.health import HealthRoutes
from runnel.server.http.history import HistoryRoutes
from runnel.server.http.openapi import DOCUMENT
from runnel.server.http.publish import REQUEST_SUFFIX, TOPICS_PATH, PublishRoute
from runnel.server.http.request_reply import RequestRoute
from runnel.server.http.websocket import WebSocketRoutes
from runnel.server.request_id import HEADER, begin_request

if TYPE_CHECKING:
    from runnel.core.backend import Backend
    from runnel.server.options import ServerOptions
    from runnel.server.served_broker import ServedBroker

log = logging.getLogger("runnel.requests")

NEED_TOPICS = (
    "/topics",
    "/events",
    "/dead-letters",
    "/metrics",
    *(f"/console/{name}" for name in ("updates", "analytics", "topic", "records", "download", "letters", "actions")),
)
NEED_A_PRIMARY = tuple(one for one in NEED_TOPICS if one != "/metrics")  # a standby has figures, too
EXPOSED_HEADERS = ["Location", "Link", "Runnel-Next", "Runnel-End", "Runnel-Gap", "Retry-After"]


def build(
    serving: ServedBroker,
    *,
    mounted: bool,
    authorize: Authorize | None = None,
    with_console: bool = True,
    with_publish: bool = True,
) -> Application:
    """The application. `mounted`: it is part of another one, on a server that is not ours.

    That application decides which host names it answers to, unless names are given; and with `authorize`, what the
    user of a request may do.
    """
    broker, options = serving.broker, serving.options
    history, letters = HistoryRoutes(serving), DeadLetterRoutes(serving)
    health = HealthRoutes(serving, says_why=serving.auth is None and authorize is None)
    sockets, publishing, logins = WebSocketRoutes(serving), PublishRoute(serving), LoginRoutes(serving)
    sampling = ConsoleSampling(serving) if with_console else None
    routes: list[BaseRoute] = [
        Route("/topics", history.topics, methods=["GET"]),
        Route("/topics/{topic:path}/records", history.records, methods=["GET"]),
        Route("/topics/{topic:path}/presence", history.presence, methods=["GET"]),
        *(_publishing_routes(serving, publishing) if with_publish else []),
        Route("/events", EventsRoute(serving)),
        WebSocketRoute("/ws", sockets),
        Route("/ws", sockets.plain, methods=["GET"]),
        Route("/metrics", health.metrics, methods=["GET"]),
        Route("/varz", health.varz, methods=["GET"]),
        Route("/healthz", health.alive, methods=["GET"]),
        Route("/readyz", health.ready, methods=["GET"]),
        Route("/openapi.json", _openapi, methods=["GET"]),
        Route("/dead-letters", letters.topics, methods=["GET"]),
        Route("/dead-letters/{topic:path}/replay", letters.replay, methods=["POST"]),
        Route("/dead-letters/{topic:path}/discard", letters.discard, methods=["POST"]),
        Route("/dead-letters/{topic:path}", letters.letters, methods=["GET"]),
        *_console_routes(serving, logins, sampling),
    ]
    if serving.auth is not None:
        routes.append(Route("/tickets", logins.tickets, methods=["POST"]))
    middleware = [Middleware(CrossOriginGuard, origins=options.origins, hosts=_hosts(options, own=not mounted))]
    if options.origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(options.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=EXPOSED_HEADERS,
            )
        )
    if serving.auth is not None:
        middleware.append(Middleware(Authentication, serving=serving, auth=serving.auth))
    elif authorize is not None or not with_publish:
        middleware.append(Middleware(CallbackAuthorization, serving=serving, authorize=authorize, publish=with_publish))
    if broker.backend.is_remote:  # behind the login: its error names the other server
        middleware.append(Middleware(ReachableGuard, backend=broker.backend, paths=NEED_TOPICS))
    elif broker.backend.replication is not None:
        middleware.append(Middleware(ReachableGuard, backend=broker.backend, paths=NEED_A_PRIMARY))
    return Application(
        publishing if with_publish else None,
        sampling,
        routes=routes,
        middleware=middleware,
        exception_handlers={
            RunnelError: errors.on_runnel_error,
            HTTPException: errors.on_http_error,
            Exception: errors.on_failure,
        },
    )


class Application(Starlette):
    """The routes behind the guard. Publishes bypass the route table: they are the hot path."""

    def __init__(
        self,
        publishing: ASGIApp | None,
        sampling: ConsoleSampling | None,
        middleware: list[Middleware],
        **options: Any,
    ) -> None:
        super().__init__(middleware=middleware, **options)
        self.sampling = sampling  # for the console, if there is one
        if publishing is not None:
            for kind, given, named in reversed(middleware):
                publishing = kind(publishing, *given, **named)
        self._publishing = publishing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "lifespan":
            send = _begun(scope, send)
        publishing = self._publishing
        if (
            publishing is not None
            and scope["type"] == "http"
            and scope["method"] == "POST"
            and (path := get_route_path(scope)).startswith(TOPICS_PATH)
            and not path.endswith(REQUEST_SUFFIX)
        ):
            await publishing(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def _begun(scope: Scope, send: Send) -> Send:
    """Give the request its id. A client that chose one gets it back; at the level debug each answer is logged."""
    chosen = begin_request(next((value for name, value in scope["headers"] if name == HEADER), None))
    if chosen is None and not log.isEnabledFor(logging.DEBUG):
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            if chosen is not None:
                message = {**message, "headers": [*message.get("headers", ()), (HEADER, chosen.encode())]}
            log.debug("%s %r: %d", scope["method"], scope["path"], message["status"])  # no query: it may hold a ticket
        await send(message)

    return sending


class ReachableGuard:
    """Refuses requests for topics while the server that has them cannot be reached, or is no primary."""

    def __init__(self, app: ASGIApp, backend: Backend, paths: tuple[str, ...]) -> None:
        self._app, self._backend, self._paths = app, backend, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and get_route_path(scope).startswith(self._paths):
            try:
                self._backend.check_ready("serving")
            except RunnelError as error:
                await errors.error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _publishing_routes(serving: ServedBroker, publishing: PublishRoute) -> list[BaseRoute]:
    asking = Route(f"/topics/{{topic:path}}{REQUEST_SUFFIX}", RequestRoute(serving).request, methods=["POST"])
    return [asking, Route("/topics/{topic:path}", publishing, methods=["POST"])]


def _console_routes(serving: ServedBroker, logins: LoginRoutes, sampling: ConsoleSampling | None) -> list[BaseRoute]:
    """The console, if it is wanted, and how people log in to it; without it, the module for pages alone."""
    files: list[BaseRoute] = [*file_routes(whole=sampling is not None)]
    if sampling is None:
        return files
    records = RecordRoutes(serving)
    found: list[BaseRoute] = [
        WebSocketRoute("/console/live", WebSocketRoutes(serving, live_protocol(sampling))),
        Route("/console/updates", ConsoleUpdates(serving, sampling)),
        Route("/console/analytics", AnalyticsRoute(serving).series, methods=["GET"]),
        Route("/console/charts", ChartsRoute(serving, sampling).charts, methods=["GET"]),
        Route("/console/topic", records.topic, methods=["GET"]),
        Route("/console/records", records.search, methods=["GET"]),
        Route("/console/download", records.download, methods=["GET"]),
        Route("/console/letters", LettersRoute(serving).letters, methods=["GET"]),
        Route("/console/actions", ActionsRoute(serving).act, methods=["POST"]),
        *files,
    ]
    if serving.auth is not None:
        found += [
            Route("/session", logins.session, methods=["GET"]),
            Route("/login", logins.page, methods=["GET"]),
            Route("/login", logins.log_in, methods=["POST"]),
            Route("/logout", logins.log_out, methods=["POST"]),
        ]
    return found


def _hosts(options: ServerOptions, *, own: bool) -> AllowedHosts | None:
    """The host names to answer to. With TLS the certificate protects; a public server is named by others."""
    trusts_its_machine = own and options.ssl is None and not options.insecure_public and options.auth is None
    return AllowedHosts(options.hosts or ()) if trusts_its_machine or options.hosts is not None else None


async def _openapi(request: Request) -> Response:
    return Response(DOCUMENT, media_type="application/json")
