"""`GET /`, `/console/{file}`, `/runnel.js`, `/runnel.d.ts`: the files that browsers get.

A browser keeps them and asks each time whether they are still the same; after an upgrade of the server it has no old
file. Addresses in them are relative, so that they work below any prefix.
Below: console. Above: application.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runnel.console import asset

# No inline script or style and no other host: a value that is shown cannot become code, whatever it holds.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",  # kept, and asked about
}


def routes() -> list[Route]:
    """All of them."""
    return [
        Route("/", _page, methods=["GET"]),
        Route("/console/{file}", _file, methods=["GET"]),
        Route("/runnel.js", _module, methods=["GET"]),
        Route("/runnel.d.ts", _types, methods=["GET"]),
    ]


def respond(request: Request, name: str, **more: str) -> Response:
    """The file of that name, or word that the browser has it already; 404 if there is none."""
    found = asset(name)
    if found is None:
        raise HTTPException(404, "there is no such file")
    headers = HEADERS | {"etag": found.etag} | more
    if found.etag in (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    return Response(found.body, headers=headers | {"content-type": found.media_type})


async def _page(request: Request) -> Response:
    return respond(request, "index.html")


async def _file(request: Request) -> Response:
    name = request.path_params["file"]
    # The module asks the server below whose address it came: from here it would ask at the wrong place.
    return respond(request, "" if name.startswith("runnel.") else name)


async def _module(request: Request) -> Response:
    return respond(request, "runnel.js", **{"x-typescript-types": "./runnel.d.ts"})


async def _types(request: Request) -> Response:
    return respond(request, "runnel.d.ts")
