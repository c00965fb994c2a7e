"""`runnel token`: make, list and revoke tokens, in the file beside `--auth FILE` or at a server."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import quote

import runnel
from runnel.cli.command import Commands, add_command, add_family, add_json
from runnel.cli.errors import FINE, USAGE, CommandError
from runnel.cli.output import print_document, print_done, print_table
from runnel.cli.server_address import add_server, load_settings, location_of, server_of
from runnel.config import units
from runnel.core.errors import InvalidOption, Unreachable

if TYPE_CHECKING:
    from runnel.security.tokens import TokenTable
    from runnel.server.access.files import AuthFiles

EXAMPLE = """\
examples:
  runnel token create web --allow publish:orders.> --allow create:orders.>     prints the token, once
  runnel token create ops --role admin --auth auth.toml                        the first one, before there is a server
  runnel token create job --allow group:jobs.* --expires 30d --server runnel://10.0.0.7:7788
  runnel token list
  runnel token revoke web                                                      connections with it end within a second

Tokens are kept as hashes in FILE.tokens beside the file of `runnel serve --auth FILE`, which notices changes by itself.
--auth names that file. Without it a running server is asked, whose administrator you have to be: see below. On its
machine, in its folder, the user that runs the server is its administrator. A configuration with serve.auth names the
file, too, if it or the environment names no server.
"""
CREATE = """\
examples:
  runnel token create web --allow publish:orders.> --allow subscribe:orders.>
  runnel token create grafana --role viewer --output grafana.token

A rule is ACTION:PATTERN; actions are publish, subscribe, group, create and admin. Roles are those of the file, and
`admin`. The token is printed once and stored nowhere else; --output FILE writes it to a new file that only
your user can read, instead of printing it.
"""
LIST = """\
examples:
  runnel token list
  runnel token list --json --server runnel://10.0.0.7:7788
"""
REVOKE = """\
examples:
  runnel token revoke web             all tokens of that name
  runnel token revoke 5f2a90c1d3e4b678   the one with this id
"""


def add_to(commands: Commands) -> None:
    """Make `runnel token` and its commands known."""
    inner = add_family(
        commands,
        "token",
        "make, list and revoke tokens of a server",
        EXAMPLE,
        "The tokens with which peers log in to a server that runs with --auth.",
    )
    create = add_command(inner, "create", "make a token, and print it once", CREATE, run_create)
    create.add_argument("name", metavar="NAME", help="the principal of the token")
    create.add_argument("--allow", metavar="RULE", action="append", default=[], help="such as publish:orders.>")
    create.add_argument("--role", metavar="ROLE", action="append", default=[], help="a role of the file, or admin")
    create.add_argument("--expires", metavar="TIME", help="how long it is in force, such as 30d (default: no end)")
    create.add_argument(
        "--output", metavar="FILE", help="write it to this new file, with mode 0600, and do not print it"
    )
    listing = add_command(inner, "list", "the tokens, without what they are", LIST, run_list)
    revoke = add_command(inner, "revoke", "take tokens back", REVOKE, run_revoke)
    revoke.add_argument("which", metavar="NAME|ID", help="a principal, or the id of one of its tokens")
    for parser in (create, listing, revoke):
        parser.add_argument("--auth", metavar="FILE", help="the file of the server's --auth, instead of a server")
        add_server(parser)
        add_json(parser)


def run_create(chosen: argparse.Namespace) -> int:
    """Make a token."""
    if chosen.output is None:
        token, id = _create(chosen)
        print_done(token, {"name": chosen.name, "id": id, "token": token}, as_json=chosen.json)
        return FINE
    with _new_file(chosen.output) as file:  # before there is a token that would be lost
        token, id = _create(chosen)
        file.write(f"{token}\n")
    said = f"the token of {chosen.name!r} is in {chosen.output!r}, which only your user can read"
    print_done(said, {"name": chosen.name, "id": id, "file": chosen.output}, as_json=chosen.json)
    return FINE


def _create(chosen: argparse.Namespace) -> tuple[str, str]:
    """A new token, and its id."""
    expires = None if chosen.expires is None else time.time() + _seconds(chosen.expires)
    server = _server(chosen)
    if server is not None:
        asked = {"name": chosen.name, "allow": chosen.allow, "roles": chosen.role, "expires": expires}
        found = _ask(server, "token_create", asked)
        return found["token"], found["id"]
    from runnel.security.tokens import make_token
    from runnel.server.access.files import random_bytes

    files = _files(chosen)
    files.read_policy().check_roles(tuple(chosen.role))
    token, stored = make_token(
        chosen.name, random_bytes(), allow=chosen.allow, roles=chosen.role, created=time.time(), expires=expires
    )
    files.edit_tokens(lambda tokens: tokens.with_token(stored))
    return token, stored.id


@contextmanager
def _new_file(name: str) -> Iterator[TextIO]:
    """A file that only this user can read. It is gone if the block fails."""
    try:
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise CommandError(
            "usage_error", f"{name!r} is there already: remove it, or name another file", USAGE
        ) from None
    try:
        with open(handle, "w") as file:
            yield file
    except BaseException:
        os.unlink(name)
        raise


def run_list(chosen: argparse.Namespace) -> int:
    """Print the tokens."""
    found: list[dict[str, Any]]
    server = _server(chosen)
    if server is not None:
        found = _ask(server, "token_list", {})
    else:
        import msgspec

        found = [msgspec.structs.asdict(one) for one in _files(chosen).read_tokens()]
        for one in found:
            del one["hash"]
    if chosen.json:
        print_document(found)
    else:
        heads = ("NAME", "ID", "CREATED", "EXPIRES", "ROLES", "ALLOWS")
        rows = [
            (
                one["name"],
                one["id"],
                _day(one["created"]),
                "never" if one.get("expires") is None else _day(one["expires"]),
                " ".join(one["roles"]) or "-",
                " ".join(one["allow"]) or "-",
            )
            for one in found
        ]
        if rows:
            print_table(heads, rows)
        else:
            print("There are no tokens: runnel token create NAME --allow RULE")
    return FINE


def run_revoke(chosen: argparse.Namespace) -> int:
    """Take tokens back."""
    server = _server(chosen)
    if server is not None:
        gone = _ask(server, "token_revoke", {"which": chosen.which})
    else:
        gone = []

        def without(tokens: TokenTable) -> TokenTable:
            left, found = tokens.without(chosen.which)
            if not found:
                why = "there is no token with this name or id; see `runnel token list`"
                raise InvalidOption("token", chosen.which, why)
            gone.extend(one.id for one in found)
            return left

        _files(chosen).edit_tokens(without)
    print_done(f"revoked: {', '.join(gone)}", {"revoked": gone}, as_json=chosen.json)
    return FINE


def _server(chosen: argparse.Namespace) -> str | None:
    """The server to ask, by the rule of all commands; None: the file of --auth, or of serve.auth."""
    if chosen.auth is not None:
        if chosen.server or chosen.data:
            said = "--server" if chosen.server else "--data"
            raise CommandError("usage_error", f"--auth and {said} were both named: say one of them", USAGE)
        return None
    if (url := server_of(chosen)) is not None:
        return url
    if not chosen.data and load_settings().server.auth is not None:
        return None
    where = location_of(chosen)
    if "://" in where:
        return where
    from runnel.journal.read.inspection import owner_of
    from runnel.opening.folder_listener import socket_of

    owner = owner_of(Path(where))
    if owner is None or not owner.shares:
        raise CommandError("usage_error", f"no server runs in the folder {where!r}: {_OTHERWISE}", USAGE)
    return f"runnel+unix://{quote(str(socket_of(Path(where).absolute())))}"


_OTHERWISE = "name the file of its --auth with --auth FILE, or another server with --server URL"


def _files(chosen: argparse.Namespace) -> AuthFiles:
    from runnel.server.access.files import AuthFiles

    file = chosen.auth or load_settings().server.auth
    assert file is not None, "else a server is asked"
    files = AuthFiles(Path(file))
    files.read_policy()  # a wrong file is named now
    return files


def _ask(server: str, method: str, args: dict[str, Any]) -> Any:
    async def ask() -> Any:
        async with runnel.open(server) as broker:
            return await broker.backend.administer(method, args)

    try:
        return asyncio.run(ask())
    except Unreachable as error:
        raise CommandError(error.code, f"cannot reach {error.address}: {error.why}; {_OTHERWISE}") from None


def _seconds(text: str) -> float:
    try:
        return units.seconds(text)
    except ValueError as error:
        raise InvalidOption("expires", text, str(error)) from None


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
