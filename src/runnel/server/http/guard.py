"""Who may ask: no pages of other origins, unless they are named; and headers that keep pages safe.

A web page may send a plain POST to any address that its reader can reach, a server on the same machine included.
That it cannot read the answer does not undo what was published; so the request itself is refused.
Below: problem. Above: application.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runnel.core.network_errors import OriginRefused
from runnel.server.http.problem import problem

SAFE = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]
UNCACHED = (b"cache-control", b"no-store")


class Guard:
    """Stands before all routes."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        self._app, self._origins = app, frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                there = {name for name, _ in headers}
                message["headers"] = headers + [one for one in (*SAFE, UNCACHED) if one[0] not in there]
            await send(message)

        origin = _header(scope, b"origin")
        if origin is not None and not self._may(origin, scope):
            await problem(OriginRefused(origin[:128]))(scope, receive, safely)
            return
        await self._app(scope, receive, safely)

    def _may(self, origin: str, scope: Scope) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        try:
            netloc = urlsplit(origin).netloc
        except ValueError:
            return False
        # Its own pages. The scheme is not compared: a proxy before it may speak TLS.
        return bool(netloc) and netloc == _header(scope, b"host")


def _header(scope: Scope, wanted: bytes) -> str | None:
    found: Any = next((value for name, value in scope["headers"] if name == wanted), None)
    return None if found is None else found.decode("latin-1")
