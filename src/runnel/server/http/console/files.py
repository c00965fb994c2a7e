"""The files of the console, and the module for pages of users.

Browsers cache the files and revalidate each time, so that after an upgrade no old file is used. URLs in them are
relative, so that they work below any prefix.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runnel.console import MODULES, asset

# No inline script or style and no other host: a value that is shown cannot become code, whatever it holds.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILE_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",  # kept, and asked about
}
# Public code: a page of an origin that is refused can load it, and report that.
ANY_ORIGIN = {"access-control-allow-origin": "*", "cross-origin-resource-policy": "cross-origin"}


def file_routes(*, whole: bool = True) -> list[Route]:
    """The routes of the files; unless `whole`, of the module for pages alone."""
    console = [Route("/", _index, methods=["GET"]), Route("/console/{file}", _file, methods=["GET"])]
    return [
        *(console if whole else ()),
        *(Route(f"/{name}", _module, methods=["GET"]) for name in MODULES),
    ]


def file_response(request: Request, name: str, **more: str) -> Response:
    """The file of that name, or 304 if the browser has it already; 404 if there is none."""
    found = asset(name)
    if found is None:
        raise HTTPException(404, "there is no such file")
    headers = FILE_HEADERS | {"etag": found.etag} | more
    if found.etag in (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    return Response(found.body, headers=headers | {"content-type": found.media_type})


async def _index(request: Request) -> Response:
    return file_response(request, "index.html")


async def _file(request: Request) -> Response:
    name = request.path_params["file"]
    if name == "actions":
        raise HTTPException(405, "actions are sent with POST", {"allow": "POST"})
    # The module asks the server below whose address it came: from here it would ask at the wrong place.
    return file_response(request, "" if name.startswith("runnel") else name)


async def _module(request: Request) -> Response:
    name = request.url.path.rpartition("/")[2]
    types = {"x-typescript-types": f"./{name.removesuffix('.js')}.d.ts"} if name.endswith(".js") else {}
    return file_response(request, name, **ANY_ORIGIN, **types)
