"""Which server or folder a command uses: the one rule of all commands."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from urllib.parse import quote

from runnel.cli.errors import CommandError
from runnel.config.settings import DEFAULT, Settings, load
from runnel.core.errors import BadAddress
from runnel.journal.format import manifest
from runnel.opening.opening import intended_address

TOKEN_VARIABLE = "RUNNEL_TOKEN"
DEFAULT_SERVER = "runnel://127.0.0.1:7788"
RULE = f"""\
where it goes: what --server URL or --data DIR names; else $RUNNEL_SERVER; else the folder in $RUNNEL_DATA, else 'data'.
If a running server or program has the folder open, the command goes through it. Without a folder 'data' here it goes to
{DEFAULT_SERVER}.
"""


def add_server(parser: argparse.ArgumentParser) -> None:
    """`--server URL` and `--data DIR`."""
    parser.add_argument(
        "--server",
        metavar="URL",
        help="runnel://HOST:PORT, runnels:// with TLS, runnel+unix:///PATH (default: $RUNNEL_SERVER)",
    )
    add_token(parser)
    parser.add_argument(
        "--data", metavar="DIR", help="a folder instead of a server (default: $RUNNEL_DATA, else 'data')"
    )
    parser.epilog = f"{parser.epilog or ''}\n{RULE}"


def add_token(parser: argparse.ArgumentParser, option: str = "--token-file", where: str = "") -> None:
    """`--token-file FILE`, for commands that log in to a server. No `--token`: a process list would show it."""
    parser.add_argument(
        option,
        metavar="FILE",
        help=f"a file with the token to log in with{where} (default: what $RUNNEL_TOKEN says)",
    )


def server_of(chosen: argparse.Namespace) -> str | None:
    """The server that a command means, or None: it means a folder. The rule that every command follows (`RULE`)."""
    said = chosen.data or getattr(chosen, "folder", None)
    if chosen.server:
        if said:
            raise CommandError("usage_error", f"a server and a folder were named: {chosen.server!r} and {said!r}", 2)
        return server_url(chosen.server, chosen)
    if said:
        return None
    settings = load_settings()
    if settings.where("server") != "RUNNEL_SERVER" and settings.where("data") == "RUNNEL_DATA":
        return None
    return None if settings.general.server is None else server_url(settings.general.server, chosen)


def location_of(chosen: argparse.Namespace) -> str:
    """The location for `runnel.open`: a server, or a folder, opened through its running server if it has one."""
    url = server_of(chosen)
    if url is not None:
        return url
    if chosen.data:
        return str(chosen.data)
    settings = load_settings()
    folder = settings.general.data
    if settings.where("data") == DEFAULT and not (Path(folder) / manifest.NAME).exists():
        return server_url(DEFAULT_SERVER, chosen)
    return folder


def server_url(url: str, chosen: argparse.Namespace) -> str:
    """The address of a server, with where its token is: a file or a variable, and never the token itself.

    What is no address would be opened as a folder.
    """
    if "://" not in url:
        meant = intended_address(url)
        raise BadAddress(url, f"did you mean {meant}?" if meant else "a folder is named with --data")
    return with_token(url, getattr(chosen, "token_file", None))


def with_token(url: str, file: str | None) -> str:
    """The address of a server, with the file of its token, or RUNNEL_TOKEN; as it is, where it names one itself.

    Folders and clusters take no token: a file for one is refused.
    """
    from runnel.client.address import SCHEMES

    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SCHEMES:
        if file is not None:
            raise CommandError("usage_error", f"a token is for a server, and {url!r} is none", 2)
        return url
    file = file or (f"env:{TOKEN_VARIABLE}" if os.environ.get(TOKEN_VARIABLE) else None)
    if file is None or "token_file=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}token_file={quote(file, safe='')}"


def load_settings() -> Settings:
    """The values from the environment and the file. Unknown variables are ignored here."""
    return load(environment=os.environ, strict=False)
