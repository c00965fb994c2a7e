"""The page: candles and alerts as they come. It is a few files; what it shows it has from runnel's routes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import runnel
from runnel.server import http

PAGES = Path(__file__).parent / "pages"
SAFE = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def application(broker: runnel.Broker) -> Starlette:
    """The page, and the broker's routes beside it."""
    files = Mount("/static", StaticFiles(directory=PAGES))
    return Starlette(routes=[Route("/", index), files, Mount("/bus", http.app(broker))])


async def index(request: Request) -> Response:
    return FileResponse(PAGES / "index.html", headers=SAFE)


class WebServer(uvicorn.Server):
    """A web server inside of a program that has more to do, and that sees to Ctrl-C itself."""

    def __init__(self, broker: runnel.Broker, port: int) -> None:
        super().__init__(uvicorn.Config(application(broker), port=port, log_level="warning"))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
