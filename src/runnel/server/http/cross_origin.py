"""Cross-origin protection: `Origin` and `Host` checks, and security headers on every response.

A web page may send a plain POST to any address its reader can reach, a server on the same machine included. That the
page cannot read the response does not undo a publish, so the request itself is refused, unless its origin is allowed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette._utils import get_route_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runnel.console import MODULES
from runnel.core.errors import HostRefused, OriginRefused
from runnel.server.http.errors import error_response

SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),  # pages of others show none of it as picture or script, either
]
NO_STORE = (b"cache-control", b"no-store")
DENIAL_EXTENSION = "websocket.http.response"  # the extension by which a handshake is answered with more than 403
CROSS_SITE = b"cross-site"
READING = ("GET", "HEAD", "OPTIONS", None)  # None: a websocket, whose handshake always has an origin
ANY_ORIGIN = (b"access-control-allow-origin", b"*")  # a page may read the response; without cookies
OPEN_PATHS = frozenset(f"/{name}" for name in MODULES)  # public code: a page that cannot load it can report nothing
SHOWN_CHARACTERS = 128  # characters of a header that a problem repeats


class CrossOriginGuard:
    """ASGI middleware before all routes. Without `hosts`, the `Host` header is not checked."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...], hosts: AllowedHosts | None = None) -> None:
        self._app, self._origins, self._hosts = app, frozenset(origins), hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        refused = self._refused(scope)

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                if isinstance(refused, OriginRefused) and scope.get("method") in ("GET", "HEAD"):
                    headers.append(ANY_ORIGIN)  # so that runnel.js can report why the page gets nothing
                there = {name for name, _ in headers}
                message["headers"] = headers + [one for one in (*SECURITY_HEADERS, NO_STORE) if one[0] not in there]
            await send(message)

        if refused is None:
            await self._app(scope, receive, safely)
        elif scope["type"] == "http" or DENIAL_EXTENSION in scope.get("extensions", ()):
            await error_response(refused)(scope, receive, safely)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": refused.code})

    def _refused(self, scope: Scope) -> HostRefused | OriginRefused | None:
        host: bytes | None = None
        origin: bytes | None = None
        site = b""
        for name, value in scope["headers"]:
            if name == b"host":
                host = value if host is None or host == value else host + b", " + value
            elif name == b"origin":
                origin = value if origin is None else origin + b", " + value
            elif name == b"sec-fetch-site":
                site = value
        if self._hosts is not None and host is not None and (named := host.decode("latin-1")) not in self._hosts:
            return HostRefused(named[:SHOWN_CHARACTERS])
        if scope.get("method") in ("GET", "HEAD") and get_route_path(scope) in OPEN_PATHS:
            return None
        if origin is not None and not self._may(said := origin.decode("latin-1"), host):
            return OriginRefused(said[:SHOWN_CHARACTERS])
        # A browser sends this even where it does not name the page; requests that only read are harmless.
        if origin is None and site == CROSS_SITE and scope.get("method") not in READING and "*" not in self._origins:
            return OriginRefused("another site")
        return None

    def _may(self, origin: str, host: bytes | None) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        try:
            netloc = urlsplit(origin).netloc
        except ValueError:
            return False
        # Its own pages. The scheme is not compared: a proxy before it may speak TLS.
        return bool(netloc) and host is not None and netloc == host.decode("latin-1")


# -- Host names ------------------------------------------------------------------------------------------ DNS
# rebinding: a page of evil.example may let its name point to 127.0.0.1 once it is loaded. The browser then takes a
# local server for a part of evil.example, and only the `Host` header shows the difference. So a server that trusts its
# machine answers only to IP addresses, to `localhost`, and to the names it was given.


ANY_HOST = "*"
CACHED_HOSTS = 256  # names of which the answer is kept
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{0,5})?")


class AllowedHosts:
    """The host names that are accepted: IP addresses, `localhost` and below, and the given names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name.lower() for name in names)
        self._below = tuple(name[1:] for name in self._names if name.startswith("*."))
        self._known: dict[str, bool] = {}

    def __contains__(self, host: object) -> bool:
        """Whether `host` counts, as a header has it: a name or an address, and perhaps a port."""
        found = self._known.get(str(host))
        if found is None:
            found = self._counts(str(host))
            if len(self._known) < CACHED_HOSTS:
                self._known[str(host)] = found
        return found

    def _counts(self, host: str) -> bool:
        if ANY_HOST in self._names:
            return True
        read = _HOST.fullmatch(host)
        if read is None:
            return False
        name = (read["six"] or read["name"]).lower().removesuffix(".")
        if name == "localhost" or name.endswith((".localhost", *self._below)) or name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
