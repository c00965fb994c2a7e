"""runnel in a FastAPI application: a broker with the application's lifespan, a dependency, SSE and WebSocket routes.

    bus = Router("data/")
    bus.sse("/rooms/{room}/events", "rooms.{room}", login=current_user)
    app.include_router(bus)

An endpoint takes `broker: Bus`. The endpoint of a stream reads the topic that the application names, never one of the
client's choice. Needs `runnel-mq[fastapi]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, WebSocket
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from runnel.api.broker import Broker
from runnel.core.errors import InvalidOption, NotSupported, RunnelError
from runnel.core.pattern import check_pattern
from runnel.opening.opening import open
from runnel.security.rules import covers, fields_of, fill_template
from runnel.server.http.authentication import SERVING, Authorize, CallbackAccess
from runnel.server.http.cross_origin import CrossOriginGuard
from runnel.server.http.errors import error_response, on_runnel_error
from runnel.server.http.events import EventsRoute
from runnel.server.http.requests import parameters
from runnel.server.http.websocket import WebSocketRoutes
from runnel.server.options import ServerOptions
from runnel.server.served_broker import ServedBroker

__all__ = ["Bus", "Router", "on_error"]

F = TypeVar("F", bound=Callable[..., Any])

TopicOf: TypeAlias = str | Callable[[HTTPConnection], str]


class Router(APIRouter):
    """A FastAPI router that opens a broker for as long as the application runs, and runs its handlers meanwhile.

    `where` and `options` are those of `runnel.open`. An application that is started again, as tests do, gets a new
    broker with the same handlers. Include the router when its routes are there: `app.include_router(bus)`.

    - `origins`: other origins whose pages may open a WebSocket, such as "https://app.example".
    - `deadline`: seconds that handlers have to finish when the application stops.
    - `prefix`, `tags` and `dependencies` as of `APIRouter`.
    """

    def __init__(
        self,
        where: str | Path | None = None,
        *,
        prefix: str = "",
        tags: list[Any] | None = None,
        dependencies: list[Any] | None = None,
        origins: tuple[str, ...] = (),
        deadline: float = 30.0,
        **options: Any,
    ) -> None:
        super().__init__(prefix=prefix, tags=tags, dependencies=dependencies, lifespan=self._while_running)
        self._where, self._options, self._deadline = where, options, deadline
        self._registered: list[Callable[[Broker], object]] = []
        self._limits = ServerOptions(http_cors=", ".join(origins) or None)
        self._origins = self._limits.origins
        self._made = self._new()
        self._open: _Open | None = None

    def _new(self) -> Broker:
        broker = open(self._where, **self._options)
        for register in self._registered:
            register(broker)
        return broker

    @property
    def broker(self) -> Broker:
        """The broker. It is open while the application runs."""
        return self._made

    def on(self, pattern: str, **options: Any) -> Callable[[F], F]:
        """Call a function with records while the application runs. Options as in `Broker.on`."""

        def register(function: F) -> F:
            self._made.on(pattern, **options)(function)
            self._registered.append(lambda broker: broker.on(pattern, **options)(function))
            return function

        return register

    @asynccontextmanager
    async def _while_running(self, app: FastAPI) -> AsyncIterator[None]:
        """The lifespan: `include_router` adds it to the application's own."""
        try:
            async with self._made as broker, asyncio.TaskGroup() as tasks:
                self._open = _Open(ServedBroker(broker, self._limits))
                app.state.runnel = broker
                if broker.handlers():
                    tasks.create_task(broker.run(deadline=self._deadline, signals=False))
                    await broker.ready()
                yield
                broker.stop()
        finally:
            self._open, self._made = None, self._new()

    def sse(
        self,
        path: str,
        topic: TopicOf,
        *,
        start: str | None = None,
        login: Callable[..., Any] | None = None,
        authorize: Authorize | None = None,
        name: str | None = None,
    ) -> None:
        """Serve a topic or pattern as server-sent events at `path`, for `EventSource` and `runnel.js`.

        `topic` may name parameters of the path, each of which fills one token: "rooms.{room}"; or it is a function of
        the request. `login` is a dependency of yours: an `HTTPException` that it raises refuses the stream, and a text
        that it returns is the name of the user, which `presence` has as `principal`. With
        `authorize(connection, "subscribe", topic)` the topic is checked, too. `start` is where a stream begins whose
        client says nothing ("latest"); a browser that reconnects continues after its last event.
        """
        self._check(path, topic)
        logged_in = Depends(login or _no_login)

        async def events(request: Request, user: Any = logged_in) -> Response:
            """A stream of server-sent events."""
            with _no_such_path():
                asked = _topic_of(topic, request)
            serving = self._serving
            scope = dict(request.scope)
            known = parameters(scope)
            said = [(key, one) for key, some in known.items() if key not in ("topic", "pattern") for one in some]
            if start is not None and "start" not in known:
                said.append(("start", start))
            scope["query_string"] = urlencode([("topic", asked), *said]).encode()
            if authorize is not None or _name_of(user) is not None:
                access = CallbackAccess(serving.served, request, authorize or _all_allowed, _name_of(user))
                scope[SERVING] = serving.served.guarded(access)
            return _Delegated(serving.events, scope)

        self.add_api_route(path, events, methods=["GET"], name=name, response_class=_EventStream)

    def ws(
        self,
        path: str,
        topic: TopicOf,
        *,
        publish: bool = False,
        groups: bool = False,
        login: Callable[..., Any] | None = None,
        authorize: Authorize | None = None,
        name: str | None = None,
    ) -> None:
        """Serve a WebSocket at `path` that speaks JSON lines (SUB, PUB, REQUEST …) about one topic or pattern.

        A client may subscribe to what `topic` covers and, with `publish`, publish to it; with `groups` it may join
        groups. Everything else is refused with `not_authorized`. `topic`, `login` and `authorize` as in `sse`;
        `authorize` is also called, with the actions subscribe, publish, create and group.
        """
        self._check(path, topic)
        allowed = {"subscribe", *(("publish", "create") if publish else ()), *(("group",) if groups else ())}

        logged_in = Depends(login or _no_login)

        async def socket(websocket: WebSocket, user: Any = logged_in) -> None:
            with _no_such_path():
                covered = _topic_of(topic, websocket)

            def may(connection: HTTPConnection, action: str, asked: str) -> bool:
                fits = action in allowed and covers(covered, asked)
                return fits and (authorize is None or authorize(connection, action, asked) is True)

            serving, scope = self._serving, dict(websocket.scope)
            scope[SERVING] = serving.served.guarded(CallbackAccess(serving.served, websocket, may, _name_of(user)))
            guarded = CrossOriginGuard(serving.sockets, self._origins)
            await guarded(scope, websocket.receive, websocket.send)

        self.add_api_websocket_route(path, socket, name=name)

    @property
    def _serving(self) -> _Open:
        if self._open is None:
            raise NotSupported("a stream", "the lifespan of the application has not begun: is the router included?")
        return self._open

    def _check(self, path: str, topic: TopicOf) -> None:
        """Raise at once for a template that no request can fill."""
        if isinstance(topic, str):
            there = {one.partition(":")[0].strip("{}") for one in (self.prefix + path).split("/") if one[:1] == "{"}
            for field in fields_of(topic):
                if field not in there:
                    raise InvalidOption("topic", topic, f"{{{field}}} is no parameter of the path {path!r}")
            check_pattern(fill_template(topic, dict.fromkeys(there, "x")))


class _Open:
    """The state that streams need while the application runs."""

    def __init__(self, served: ServedBroker) -> None:
        self.served = served
        self.events, self.sockets = EventsRoute(served), WebSocketRoutes(served)


class _EventStream(Response):
    media_type = "text/event-stream"  # for the OpenAPI document of the application


class _Delegated(Response):
    """A response that an ASGI application sends."""

    def __init__(self, app: ASGIApp, scope: Scope) -> None:
        super().__init__()
        self._app, self._scope = app, scope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; an error before it began is a problem document."""
        try:
            await self._app(self._scope, receive, send)
        except RunnelError as error:
            await error_response(error)(scope, receive, send)


def _topic_of(topic: TopicOf, connection: HTTPConnection) -> str:
    if isinstance(topic, str):
        return fill_template(topic, connection.path_params)
    return check_pattern(topic(connection))


@contextmanager
def _no_such_path() -> Iterator[None]:
    """A parameter that is no token of a name, such as `*`, names no room."""
    try:
        yield
    except InvalidOption:
        raise HTTPException(404) from None


def _no_login() -> None:
    """The dependency of a stream without one."""


def _name_of(user: object) -> str | None:
    return user if isinstance(user, str) and user else None


def _all_allowed(connection: HTTPConnection, action: str, topic: str) -> bool:
    return True


def _current(connection: HTTPConnection) -> Broker:
    broker: Broker = connection.app.state.runnel
    return broker


Bus: TypeAlias = Annotated[Broker, Depends(_current)]
"""The broker, as a dependency: `async def say(text: str, broker: Bus)`. Of several routers, that of the last."""


on_error = on_runnel_error
"""Answers an error of runnel with its status: `app.add_exception_handler(runnel.RunnelError, on_error)`."""
