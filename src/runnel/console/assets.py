"""The files of this folder that browsers may load, read once, each with its media type and ETag.

Only files in this folder with a type below are served, never a path that a client sent.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

# Python's `mimetypes` asks the system, and a system may call JavaScript plain text, which browsers do not run.
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".ts": "application/typescript; charset=utf-8",
    ".svg": "image/svg+xml",
}


MODULES = ("runnel.js", "runnel.d.ts", "runnel-socket.js", "runnel-socket.d.ts")  # for pages of users


class Asset(NamedTuple):
    """One file, in the form that is sent."""

    body: bytes
    media_type: str
    etag: str
    """In quotes, as the header has it; another after every change."""


def asset(name: str) -> Asset | None:
    """The file of that name; None if there is none to be served."""
    return _all().get(name)


@cache
def _all() -> dict[str, Asset]:
    found = {}
    for file in files(__package__).iterdir():
        kind = TYPES.get(file.name[file.name.rfind(".") :])
        if kind is not None and file.is_file():
            body = file.read_bytes()
            found[file.name] = Asset(body, kind, f'"{sha256(body).hexdigest()[:20]}"')
    return found
