"""Who may ask: no pages of other origins, unless they are named; and headers that keep pages safe.

A web page may send a plain POST to any address that its reader can reach, a server on the same machine included.
That it cannot read the answer does not undo what was published; so the request itself is refused.
Nor does a page get in by having its own name point at the server: see hosts.
Below: problem, hosts. Above: application.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runnel.core.network_errors import HostRefused, OriginRefused
from runnel.server.http.hosts import Hosts
from runnel.server.http.problem import problem

SAFE = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),  # pages of others show none of it as picture or script, either
]
UNCACHED = (b"cache-control", b"no-store")
DENIAL = "websocket.http.response"  # the extension by which a handshake is answered with more than 403
SHOWN = 128  # characters of a header that a problem repeats


class Guard:
    """Stands before all routes. Without `hosts` it is the business of others which names the server answers to."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...], hosts: Hosts | None = None) -> None:
        self._app, self._origins, self._hosts = app, frozenset(origins), hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                there = {name for name, _ in headers}
                message["headers"] = headers + [one for one in (*SAFE, UNCACHED) if one[0] not in there]
            await send(message)

        refused = self._refused(scope)
        if refused is None:
            await self._app(scope, receive, safely)
        elif scope["type"] == "http" or DENIAL in scope.get("extensions", ()):
            await problem(refused)(scope, receive, safely)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": refused.code})

    def _refused(self, scope: Scope) -> HostRefused | OriginRefused | None:
        host: bytes | None = None
        origin: bytes | None = None
        for name, value in scope["headers"]:
            if name == b"host":
                host = value if host is None or host == value else host + b", " + value
            elif name == b"origin":
                origin = value if origin is None else origin + b", " + value
        if self._hosts is not None and host is not None and (named := host.decode("latin-1")) not in self._hosts:
            return HostRefused(named[:SHOWN])
        if origin is not None and not self._may(said := origin.decode("latin-1"), host):
            return OriginRefused(said[:SHOWN])
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
