"""Which server a command talks to: `--server`, RUNNEL_SERVER, `server` in the file, else this machine's."""

from __future__ import annotations

import argparse
import os
from urllib.parse import quote

from runnel.cli.errors import CommandError
from runnel.config.settings import Settings, load
from runnel.core.errors import BadAddress

TOKEN_VARIABLE = "RUNNEL_TOKEN"
DEFAULT_SERVER = "runnel://127.0.0.1:7788"


def add_server(parser: argparse.ArgumentParser) -> None:
    """`--server URL`, for commands that talk to a server unless a folder is given."""
    parser.add_argument(
        "--server",
        metavar="URL",
        help=f"runnel://HOST:PORT, runnels:// with TLS, runnel+unix:///PATH (default: $RUNNEL_SERVER, "
        f"else {DEFAULT_SERVER})",
    )
    add_token(parser)
    parser.add_argument("--data", metavar="DIR", help="open this folder in this process, instead of a server")


def add_token(parser: argparse.ArgumentParser) -> None:
    """`--token-file FILE`, for commands that log in to a server. No `--token`: a process list would show it."""
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="a file with the token to log in with (default: what $RUNNEL_TOKEN says)",
    )


def location_of(chosen: argparse.Namespace) -> str:
    """What `runnel.open` takes, for commands that talk to a server unless a folder is given."""
    if chosen.server and chosen.data:
        raise CommandError("usage_error", f"a server and a folder were named: {chosen.server!r} and {chosen.data!r}", 2)
    if chosen.data and not chosen.server:
        return str(chosen.data)
    return server_url(chosen.server or load_settings().general.server or DEFAULT_SERVER, chosen)


def server_url(url: str, chosen: argparse.Namespace) -> str:
    """The address of a server, with where its token is: a file or a variable, and never the token itself.

    What is no address would be opened as a folder.
    """
    if "://" not in url:
        raise BadAddress(url, "a folder is named with --data")
    file = getattr(chosen, "token_file", None) or (f"env:{TOKEN_VARIABLE}" if os.environ.get(TOKEN_VARIABLE) else None)
    if file is None or "token_file=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}token_file={quote(file, safe='')}"


def load_settings() -> Settings:
    """What the environment and the file say. Unknown variables are ignored here."""
    return load(environment=os.environ, strict=False)
