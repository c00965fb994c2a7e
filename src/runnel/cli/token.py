"""`runnel token`: make, list and revoke tokens, in the file beside `--auth FILE` or at a server."""

from __future__ import annotations

import argparse
import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import runnel
from runnel.cli.command import Commands, add_command, add_family, add_json
from runnel.cli.errors import FINE, USAGE, CommandError
from runnel.cli.output import print_document, print_done, print_table
from runnel.cli.server_address import add_token, load_settings, server_url
from runnel.config import units
from runnel.core.errors import InvalidOption

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
Name that file with --auth (or serve.auth in the configuration), or a server with --server, whose administrator you are.
"""
CREATE = """\
examples:
  runnel token create web --allow publish:orders.> --allow subscribe:orders.>
  runnel token create grafana --role viewer > grafana.token

A rule is ACTION:PATTERN; actions are publish, subscribe, group, create and admin. Roles are those of the file, and
`admin`. The token is printed once and stored nowhere: keep it in a file that only its user can read.
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
    listing = add_command(inner, "list", "the tokens, without what they are", LIST, run_list)
    revoke = add_command(inner, "revoke", "take tokens back", REVOKE, run_revoke)
    revoke.add_argument("which", metavar="NAME|ID", help="a principal, or the id of one of its tokens")
    for parser in (create, listing, revoke):
        parser.add_argument("--auth", metavar="FILE", help="the file of the server's --auth (default: serve.auth)")
        parser.add_argument("--server", metavar="URL", help="ask this server, as an administrator")
        add_token(parser)
        add_json(parser)


def run_create(chosen: argparse.Namespace) -> int:
    """Make a token."""
    expires = None if chosen.expires is None else time.time() + _seconds(chosen.expires)
    if chosen.server is not None:
        asked = {"name": chosen.name, "allow": chosen.allow, "roles": chosen.role, "expires": expires}
        found = _ask(chosen, "token_create", asked)
        token, id = found["token"], found["id"]
    else:
        from runnel.security.tokens import make_token
        from runnel.server.access.files import random_bytes

        files = _files(chosen)
        files.read_policy().check_roles(tuple(chosen.role))
        token, stored = make_token(
            chosen.name, random_bytes(), allow=chosen.allow, roles=chosen.role, created=time.time(), expires=expires
        )
        files.edit_tokens(lambda tokens: tokens.with_token(stored))
        id = stored.id
    print_done(token, {"name": chosen.name, "id": id, "token": token}, as_json=chosen.json)
    return FINE


def run_list(chosen: argparse.Namespace) -> int:
    """Print the tokens."""
    found: list[dict[str, Any]]
    if chosen.server is not None:
        found = _ask(chosen, "token_list", {})
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
    if chosen.server is not None:
        gone = _ask(chosen, "token_revoke", {"which": chosen.which})
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


def _files(chosen: argparse.Namespace) -> AuthFiles:
    from runnel.server.access.files import AuthFiles

    file = chosen.auth or load_settings().server.auth
    if file is None:
        raise CommandError("usage_error", "name the file of the server's --auth with --auth, or a server", USAGE)
    files = AuthFiles(Path(file))
    files.read_policy()  # a wrong file is named now
    return files


def _ask(chosen: argparse.Namespace, method: str, args: dict[str, Any]) -> Any:
    if chosen.auth is not None:
        raise CommandError("usage_error", "--auth and --server were both named: say one of them", USAGE)

    async def ask() -> Any:
        async with runnel.open(server_url(chosen.server, chosen)) as broker:
            return await broker.backend.administer(method, args)

    return asyncio.run(ask())


def _seconds(text: str) -> float:
    try:
        return units.seconds(text)
    except ValueError as error:
        raise InvalidOption("expires", text, str(error)) from None


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
