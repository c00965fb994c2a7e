"""`runnel reload`: have a server read its certificates, limits, rules, tokens and keys again."""

from __future__ import annotations

import argparse
import asyncio

import runnel
from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.errors import FINE
from runnel.cli.output import print_done
from runnel.cli.server_address import DEFAULT_SERVER, add_token, load_settings, server_url

EXAMPLE = """\
examples:
  runnel reload
  runnel reload --server runnel://10.0.0.7:7788 --token-file ops.token

Reads the certificates, the limits and the log level of the configuration, and the rules, tokens and keys of --auth.
Needs the console role `admin`, if the server has --auth. SIGHUP does the same. Connections stay; what the new rules no
longer allow ends within a second. New connections get the new certificate and the new limits. If a file is wrong,
nothing changes, and the error says why.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel reload` known."""
    parser = add_command(
        commands, "reload", "make a server read certificates, limits, log level, rules and tokens again", EXAMPLE, run
    )
    parser.add_argument("--server", metavar="URL", help=f"(default: $RUNNEL_SERVER, else {DEFAULT_SERVER})")
    add_token(parser)
    add_json(parser)


def run(chosen: argparse.Namespace) -> int:
    """Ask the server."""
    url = server_url(chosen.server or load_settings().general.server or DEFAULT_SERVER, chosen)

    async def ask() -> None:
        async with runnel.open(url) as broker:
            await broker.backend.administer("reload", {})

    asyncio.run(ask())
    said = "The server has read its certificates, limits, log level, rules and tokens again."
    print_done(said, {"reloaded": True}, as_json=chosen.json)
    return FINE
