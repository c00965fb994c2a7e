"""The login of a request: by a bearer token, a session cookie, a ticket, or a client certificate.

An ASGI middleware before all routes. A route gets the broker of the peer from `serving_of`, which refuses a request
without a login: no route can forget the check. Health and the files of the console are open, and reveal nothing.

The browser sends a cookie for every page, so a change needs the CSRF token of the session too,
and a WebSocket needs an allowed `Origin`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from starlette._utils import get_route_path
from starlette.requests import HTTPConnection, Request, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runnel.console import MODULES, asset
from runnel.core.clock import Timer
from runnel.core.errors import (
    InvalidOption,
    LimitExceeded,
    NameOwned,
    NotAuthenticated,
    NotAuthorized,
    NotSupported,
    RunnelError,
)
from runnel.core.pattern import check_pattern
from runnel.security.principal import ConsoleRole, Principal
from runnel.security.sealed import TICKET_SECONDS, Session, Ticket, csrf_token, is_csrf_token, unseal
from runnel.server.access.access import Access
from runnel.server.access.control import MAX_BEFORE_LOGIN, Peer
from runnel.server.access.peers import certificate_subject
from runnel.server.connections import address_of, is_this_machine
from runnel.server.http.errors import error_response
from runnel.server.http.event_stream import connection_of
from runnel.server.http.record_json import encode_json
from runnel.server.http.requests import RequestBody

if TYPE_CHECKING:
    from runnel.server.access.control import AccessControl
    from runnel.server.served_broker import ServedBroker

SERVING = "runnel.serving"  # in a scope: the served broker, as the peer may use it
SESSION_COOKIE = "runnel_session"
EVENTS_COOKIE = "runnel_events_"  # begins the names of those that tickets leave, one for each
MAX_EVENTS_COOKIES = 8  # of one browser: the streams that can reconnect
SIGNED_IN = "runnel_signed_in=1; Path=/; SameSite=Strict"  # for the page: it cannot see the other one
CSRF_HEADER = b"x-runnel-csrf"
UNATTENDED_HEADER = b"x-runnel-unattended"  # the page asks by itself: its user does nothing
OPEN_PATHS = frozenset(("/healthz", "/readyz", "/openapi.json", "/login", *(f"/{name}" for name in MODULES)))
FIGURES = ("/metrics", "/varz")
CSRF_ADVICE = "send the header X-Runnel-CSRF, with the `csrf` of GET /session"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
MAX_TICKET_TOPICS = 100
LOGIN_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "referrer-policy": "same-origin",  # with no-referrer, browsers send the form with the origin `null`
}


def serving_of(scope: Scope, default: ServedBroker) -> ServedBroker:
    """The served broker of the peer of a request. Raises if the peer has not logged in and has to."""
    found: ServedBroker | None = scope.get(SERVING)
    if found is not None:
        return found
    if default.auth is not None:
        raise NotAuthenticated("there is no token")
    return default


class Authentication:
    """The middleware of a server with `--auth`."""

    def __init__(self, app: ASGIApp, serving: ServedBroker, auth: AccessControl) -> None:
        self._app, self._serving, self._auth = app, serving, auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its peer's broker, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        path = get_route_path(scope)
        if scope["type"] == "http" and _is_open(path, scope["method"]):
            await self._app(scope, receive, send)
            return
        peer = Peer(address_of(scope.get("client")), "websocket" if scope["type"] == "websocket" else "http")
        cookies: list[str] = []
        try:
            access = await self._access(scope, path, peer, cookies)
        except RunnelError as error:
            if path == "/" and scope["type"] == "http":
                await RedirectResponse("login", 303)(scope, receive, send)
                return
            if isinstance(error, NotAuthenticated) and error.why != NO_TOKEN:
                await asyncio.sleep(self._auth.login_delay(peer))
            if scope["type"] == "websocket":
                await _close(error, scope, receive, send)
            else:
                await error_response(error)(scope, receive, send)
            return
        if cookies:
            send = _with_cookies(send, cookies)
        if access is None:
            if path in FIGURES:
                scope[SERVING] = self._serving  # open on this machine, as the rules say
            await self._app(scope, receive, send)
            return
        if access.serving is None:
            access.serving = self._serving.guarded(access)
        scope[SERVING] = access.serving
        if scope["type"] == "websocket":
            try:
                await self._app(scope, receive, send)  # it was counted when it logged in
            finally:
                access.release()  # also of one that never said anything
            return
        with ExitStack() as counted:
            try:
                counted.enter_context(access.connected())
            except LimitExceeded as error:
                await error_response(error)(scope, receive, send)
                return
            await self._app(scope, receive, send)

    async def _access(self, scope: Scope, path: str, peer: Peer, cookies: list[str]) -> Access | None:
        """The login of a request. None: a WebSocket that logs in by its first message, or open metrics."""
        auth, headers = self._auth, _headers(scope)
        is_socket = scope["type"] == "websocket"
        if (bearer := headers.get(b"authorization")) is not None:
            token = _bearer(bearer)
            return auth.login(token, peer) if is_socket else auth.login_of_request(token, peer)
        jar = cookie_parser(headers[b"cookie"].decode("latin-1")) if b"cookie" in headers else {}
        if path in ("/events", "/ws") and (ticket := _ticket(scope)) is not None:
            origin = _netloc(scope, headers)
            if not is_socket and (again := self._session_of_ticket(ticket, origin, jar)) is not None:
                return auth.login_of_session(again, peer)
            access, redeemed = await auth.redeem_ticket(ticket, origin, peer, connection=is_socket)
            if not is_socket:
                kept = auth.sealed(auth.open_session(access, ticket=redeemed))
                cookies.append(_cookie(_cookie_of(redeemed), kept, scope, "/events"))
                cookies += [_gone(one, scope, "/events") for one in self._surplus(jar)]
            return access
        if (text := jar.get(SESSION_COOKIE)) is not None:
            session = auth.session_of(text)
            self._check_page(scope, headers, session)
            if is_socket:
                return auth.login_of_socket(session, peer)
            renewed = session if UNATTENDED_HEADER in headers else auth.renewed_session(session)
            if renewed is not session:
                cookies.append(_cookie(SESSION_COOKIE, auth.sealed(renewed), scope, "/", strict=True))
            scope["runnel.session"] = renewed
            return auth.login_of_session(renewed, peer)
        if (subject := _certificate(scope)) is not None and auth.policy.certificate_name(subject) is not None:
            return auth.login("", peer, certificate=subject, connection=is_socket)
        if is_socket:
            return None
        if path in FIGURES and auth.policy.file.metrics.open_on_loopback and _is_local(scope, peer):
            return None
        raise NotAuthenticated(NO_TOKEN)

    def _session_of_ticket(self, text: str, origin: str, jar: dict[str, str]) -> Session | None:
        """The session that a ticket made when it was used: an EventSource reconnects to the address that it has.

        The cookie alone is no login, and neither does the used ticket alone.
        """
        try:
            ticket = self._auth.ticket_of(text, origin)
            cookie = jar.get(_cookie_of(ticket))
            return None if cookie is None else self._auth.session_of(cookie, ticket=ticket)
        except RunnelError:
            return None  # then as a ticket it is refused, and logged

    def _surplus(self, jar: dict[str, str]) -> list[str]:
        """The cookies of tickets that a browser need not keep: those of the oldest, and those that are over."""
        since: dict[str, float] = {}
        for name, text in jar.items():
            if name.startswith(EVENTS_COOKIE):
                try:
                    since[name] = unseal(self._auth.sealing_key, text, Session, self._auth.now()).since
                except RunnelError:
                    since[name] = 0.0
        newest = sorted(since, key=lambda name: since[name], reverse=True)[: MAX_EVENTS_COOKIES - 1]
        return [name for name in since if name not in newest or not since[name]]

    def _check_page(self, scope: Scope, headers: dict[bytes, bytes], session: Session) -> None:
        """A cookie alone does not show that a page of ours asks."""
        if scope["type"] == "websocket":
            if b"origin" not in headers:  # that it is allowed was checked before
                raise NotAuthenticated("a WebSocket with a cookie says its Origin")
        elif scope["method"] not in SAFE_METHODS:
            token = headers.get(CSRF_HEADER, b"").decode("latin-1")
            if not token and get_route_path(scope) == "/logout":
                return  # the form of the page has it: see `LoginRoutes`
            if not is_csrf_token(self._auth.sealing_key, session.id, token):
                raise NotAuthorized(
                    session.identity.name, "change anything by its cookie alone", "", advice=CSRF_ADVICE
                )


NO_TOKEN = "there is no token"


class LoginRoutes:
    """`/login`, `/logout`, `/session` and `/tickets`."""

    def __init__(self, serving: ServedBroker) -> None:
        self._serving = serving

    @property
    def _auth(self) -> AccessControl:
        if self._serving.auth is None:
            raise NotSupported("logging in", "the server runs without --auth: everything is open")
        return self._serving.auth

    async def page(self, request: Request) -> Response:
        """The login page."""
        _ = self._auth
        return _login_page()

    async def log_in(self, request: Request) -> Response:
        """Take the token of the form, and begin a session."""
        auth = self._auth
        peer = Peer(address_of(request.scope.get("client")), "console")
        body = await RequestBody(request, self._serving.options, self._serving.memory, MAX_BEFORE_LOGIN).whole()
        form = _fields(body.decode("utf-8", "replace"), 10)
        try:
            access = auth.login(form.get("token", [""])[0].strip(), peer, connection=False)
        except RunnelError:
            await asyncio.sleep(auth.login_delay(peer))
            return _login_page(401)
        session = auth.renewed_session(auth.open_session(access, seconds=auth.policy.file.session.idle))
        access.release()
        made = RedirectResponse("./", 303)
        for cookie in (
            _cookie(SESSION_COOKIE, auth.sealed(session), request.scope, "/", strict=True),
            SIGNED_IN,
        ):
            made.headers.append("set-cookie", cookie)
        return made

    async def log_out(self, request: Request) -> Response:
        """End the session, on every server of the backend."""
        auth = self._auth
        session: Session | None = request.scope.get("runnel.session")
        if session is not None:
            given = request.headers.get("x-runnel-csrf", "")
            if not given:
                body = await RequestBody(request, self._serving.options, self._serving.memory).whole()
                given = _fields(body.decode("utf-8", "replace"), 10).get("csrf", [""])[0]
            if not is_csrf_token(auth.sealing_key, session.id, given):
                raise NotAuthorized(session.identity.name, "sign out by its cookie alone", "", advice=CSRF_ADVICE)
            await auth.close_session(session)
        made = RedirectResponse("login", 303)
        for cookie in (_gone(SESSION_COOKIE, request.scope, "/"), f"{SIGNED_IN}; Max-Age=0"):
            made.headers.append("set-cookie", cookie)
        return made

    async def session(self, request: Request) -> Response:
        """The principal, its rights in the console, and the CSRF token of its session."""
        access = serving_of(request.scope, self._serving).access
        if access is None:
            return _json({"principal": None, "console": "admin", "rules": None, "owners": [], "csrf": None})
        session: Session | None = request.scope.get("runnel.session")
        csrf = None if session is None else csrf_token(self._auth.sealing_key, session.id)
        role = access.principal.console.name.lower()
        principal = access.principal
        said = {"principal": principal.name, "console": role, "rules": principal.rules, "csrf": csrf}
        return _json(said | {"owners": sorted(principal.owners)})

    async def tickets(self, request: Request) -> Response:
        """A ticket for an event stream or a WebSocket, for clients that can send no header."""
        auth = self._auth
        access = serving_of(request.scope, self._serving).access
        assert access is not None, "checked by the middleware"
        body = await RequestBody(request, self._serving.options, self._serving.memory).whole()
        try:
            asked = msgspec.json.decode(body, type=TicketRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidOption("body", "…", f'expected {{"topics": ["orders.>"]}}: {error}') from None
        if not 0 < len(asked.topics) <= MAX_TICKET_TOPICS:
            raise InvalidOption("topics", len(asked.topics), f"name 1 to {MAX_TICKET_TOPICS} topics or patterns")
        topics = tuple(check_pattern(one) for one in asked.topics)
        origin = asked.origin and _host_of(asked.origin)
        ticket = auth.issue_ticket(access, topics, origin or _netloc(request.scope, _headers(request.scope)))
        return _json({"ticket": auth.sealed(ticket), "expires_in": TICKET_SECONDS})


class TicketRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /tickets`. `origin`: of the pages that may use it; by default that of the request."""

    topics: list[str]
    origin: str | None = None


# -- An application of its own ---------------------------------------------------------------------------
# Mounted into another application, that one knows its users: a callback decides.


Authorize = Callable[[HTTPConnection, str, str], bool]
"""Whether the user of a request may do an action with a topic or pattern."""


class CallbackAuthorization:
    """The middleware of `http.app(broker, authorize=...)`."""

    def __init__(self, app: ASGIApp, serving: ServedBroker, authorize: Authorize | None, *, publish: bool) -> None:
        self._app, self._serving = app, serving

        def decide(connection: HTTPConnection, action: str, topic: str) -> bool:
            if not publish and action in ("publish", "create"):
                return False  # also over a WebSocket
            return authorize is None or authorize(connection, action, topic) is True

        self._authorize = decide

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with a broker that asks the callback."""
        if scope["type"] in ("http", "websocket") and not _is_open(get_route_path(scope), scope.get("method", "")):
            access = CallbackAccess(self._serving, HTTPConnection(scope), self._authorize)
            scope[SERVING] = self._serving.guarded(access)
        await self._app(scope, receive, send)


class _NamesOfApplication:
    """Names in an embedded application are the application's: its own subscriptions, markers and stages have them.

    A user of it needs the right `admin` on everything to use them. Groups are joined with the right `group`, and
    producers number what the right `publish` allows.
    """

    def is_known(self, kind: str, name: str, principal: Principal) -> bool:
        if self.is_of_another(kind, name, principal):
            raise NameOwned(kind, name, principal.name)
        return kind == "producer"

    def is_of_another(self, kind: str, name: str, principal: Principal) -> bool:
        return kind in ("subscription", "marker", "stage")

    async def claim(self, kind: str, name: str, principal: Principal) -> None:
        self.is_known(kind, name, principal)

    async def release(self, kind: str, name: str) -> None:
        """Nothing to note."""


class _EmbeddedControl:
    """The access check, where an application decides."""

    def __init__(self, serving: ServedBroker) -> None:
        self._serving, self.owners = serving, _NamesOfApplication()

    def knows_topic(self, topic: str) -> bool:
        return self._serving.backend.has_topic(topic) is not False

    def refused(self, access: Access, action: str, target: str, error: RunnelError) -> None:
        """The application has its own log."""

    async def audited(self, access: Access, action: str, target: str) -> None:
        """The application has its own log."""

    def created(self, access: Access, topic: str) -> None:
        """No limits."""

    async def deleted(self, topic: str) -> None:
        """Nothing is counted."""

    def now(self) -> float:
        return self._serving.backend.clock.time()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        return self._serving.backend.clock.call_later(delay, callback)


class CallbackAccess(Access):
    """The user of one request, as a callback of the application sees it; `user` is the name of that user."""

    def __init__(
        self, serving: ServedBroker, connection: HTTPConnection, authorize: Authorize, user: str | None = None
    ) -> None:
        from runnel.security.policy import Identity

        control: Any = _EmbeddedControl(serving)
        principal = Principal(name=user or "the user of this request")
        super().__init__(control, Identity(proof="token", name=principal.name), principal, (), "", "http")
        self._connection, self._authorize = connection, authorize

    def may(self, action: str, topic: str) -> bool:
        """The answer of the callback."""
        return self._authorize(self._connection, action, topic)

    def may_some(self, action: str) -> bool:
        """The callback decides about topics; names belong to the application."""
        return True

    def check(self, action: str, topic: str) -> None:
        """Raise unless the callback allows it."""
        if not self.may(action, topic):
            advice = "the application decides that: its `authorize`, or the options of the route"
            self.refuse(action, topic, NotAuthorized(self.principal.name, action, topic, advice=advice))

    def _allowed_parts(self, action: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(one for one in dict.fromkeys(patterns) if self.may(action, one))

    def sees(self, topic: str) -> bool:
        """Whether the callback allows it to read the topic."""
        return self.may("subscribe", topic)

    def check_role(self, role: ConsoleRole, doing: str) -> None:
        """Figures are for administrators of everything."""
        self.check("admin", ">")


# -- Requests --------------------------------------------------------------------------------------------


def _is_open(path: str, method: str) -> bool:
    if path == "/login":
        return method in ("GET", "HEAD", "POST")
    if method not in ("GET", "HEAD"):
        return False
    return path in OPEN_PATHS or (path.startswith("/console/") and asset(path.removeprefix("/console/")) is not None)


def _headers(scope: Scope) -> dict[bytes, bytes]:
    """The headers that matter here. One that is there twice counts for nothing: which one is meant would be a guess."""
    found: dict[bytes, bytes] = {}
    doubled = set()
    for name, value in scope["headers"]:
        if name in (b"authorization", b"cookie", b"origin", b"host", CSRF_HEADER, UNATTENDED_HEADER):
            if name in found:
                doubled.add(name)
            found[name] = value
    if doubled:
        raise NotAuthenticated(f"the header {min(doubled).decode()} is there twice")
    return found


def _is_local(scope: Scope, peer: Peer) -> bool:
    """Whether a program of this machine asks, and not a proxy of this machine for another one."""
    is_forwarded = any(name in (b"forwarded", b"x-forwarded-for", b"via") for name, _ in scope["headers"])
    return is_this_machine(peer.address) and not is_forwarded


def _bearer(value: bytes) -> str:
    scheme, _, token = value.decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotAuthenticated("the header is not `Authorization: Bearer TOKEN`")
    return token.strip()


def _ticket(scope: Scope) -> str | None:
    query = scope.get("query_string", b"")
    if b"ticket=" not in query:
        return None
    found = _fields(query.decode("latin-1"), 2000).get("ticket")
    return None if not found else found[0]


def _netloc(scope: Scope, headers: dict[bytes, bytes]) -> str:
    """The host of the page that asks. A browser says no Origin where it is our own."""
    origin = headers.get(b"origin")
    if origin is not None:
        return _host_of(origin.decode("latin-1"))
    return headers.get(b"host", b"").decode("latin-1")


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        raise InvalidOption("origin", origin[:64], "expected one such as https://app.example") from None


def _fields(text: str, most: int) -> dict[str, list[str]]:
    """The fields of a form or a query."""
    try:
        return parse_qs(text, max_num_fields=most)
    except ValueError:
        raise InvalidOption("fields", "…", f"there are more than {most}") from None


def _certificate(scope: Scope) -> dict[str, str] | None:
    connection = connection_of(scope)
    return None if connection is None else certificate_subject(connection.transport.get_extra_info("peercert"))


def _cookie(name: str, value: str, scope: Scope, path: str, *, strict: bool = False) -> str:
    secure = "; Secure" if scope.get("scheme") in ("https", "wss") else ""
    root = scope.get("root_path", "")
    same = "Strict" if strict else "Lax"
    return f"{name}={value}; Path={root}{path}; HttpOnly; SameSite={same}{secure}"


def _cookie_of(ticket: Ticket) -> str:
    return f"{EVENTS_COOKIE}{ticket.id[:16]}"


def _gone(name: str, scope: Scope, path: str) -> str:
    return f"{_cookie(name, '', scope, path)}; Max-Age=0"


def _with_cookies(send: Send, cookies: list[str]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            more = [(b"set-cookie", one.encode("latin-1")) for one in cookies]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await send(message)

    return sending


async def _close(error: RunnelError, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse the handshake of a WebSocket."""
    await receive()
    if "websocket.http.response" in scope.get("extensions", ()):
        await error_response(error)(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": error.code})


def _login_page(status: int = 200) -> Response:
    found = asset("login.html")
    assert found is not None, "a file of the package"
    body = found.body if status == 200 else found.body.replace(b" hidden", b"", 1)  # the line that says why
    return Response(body, status, LOGIN_HEADERS | {"content-type": found.media_type})


def _json(told: Any) -> Response:
    return Response(encode_json(told), media_type="application/json")
