"""Which server a command talks to: `--server`, RUNNEL_SERVER, `server` in the file, else this machine's."""

from __future__ import annotations

import argparse
import os

from runnel.cli.errors import CommandError
from runnel.config.settings import Settings, load
from runnel.core.errors import BadAddress

DEFAULT_SERVER = "runnel://127.0.0.1:7788"


def add_server(parser: argparse.ArgumentParser) -> None:
    """`--server URL`, for commands that talk to a server unless a folder is given."""
    parser.add_argument(
        "--server",
        metavar="URL",
        help=f"runnel://HOST:PORT, runnels:// with TLS, runnel+unix:///PATH (default: $RUNNEL_SERVER, "
        f"else {DEFAULT_SERVER})",
    )
    parser.add_argument("--data", metavar="DIR", help="open this folder in this process, instead of a server")


def location_of(chosen: argparse.Namespace) -> str:
    """What `runnel.open` takes, for commands that talk to a server unless a folder is given."""
    if chosen.server and chosen.data:
        raise CommandError("usage_error", f"a server and a folder were named: {chosen.server!r} and {chosen.data!r}", 2)
    if chosen.data and not chosen.server:
        return str(chosen.data)
    return check_url(chosen.server or load_settings().general.server or DEFAULT_SERVER)


def check_url(url: str) -> str:
    """The address of a server; what is none would be opened as a folder."""
    if "://" not in url:
        raise BadAddress(url, "a folder is named with --data")
    return url


def load_settings() -> Settings:
    """What the environment and the file say. Unknown variables are ignored here."""
    return load(environment=os.environ, strict=False)
