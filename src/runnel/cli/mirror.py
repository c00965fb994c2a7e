"""`runnel mirror`: copy topics between a folder, a server and a cluster, with their options, and compare both sides."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

import msgspec

import runnel
from runnel.cli.bridge import show_progress
from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.errors import FINE
from runnel.cli.output import Elapsed, many
from runnel.cli.server_address import add_token, with_token
from runnel.core.pattern import check_pattern

if TYPE_CHECKING:
    from runnel.api.mirror import TopicComparison

DIFFERENT = 1

EXAMPLE = """\
examples:
  runnel mirror data/ nats://a,b,c '>'                    a folder to a cluster, until Ctrl-C
  runnel mirror runnel://old:7788 data/ 'orders.>' --once what a server has now to a folder
  runnel mirror nats://a,b,c data/ '>' --verify           a cluster to a folder, and compare both

Keys, headers, options and types of topics go along; offsets and times are given anew, and one header is added,
runnel-bridged. Each record is copied once, also if the mirror is killed and started again: a marker at TO, written in
the transaction of the records, says how far it is. Give it the folder that no other process has open, or the server
that has. --token-file is for FROM and --to-token-file for TO, where they are servers that ask for a token; RUNNEL_TOKEN
is for both. A URL may name its own: runnels://host:7788?token_file=FILE

--verify compares the newest records of each topic on both sides, by a hash of value, key and headers: as many as the
side with fewer has. Exit code 1: they differ. Stop publishers first; what comes meanwhile is a difference.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel mirror` known."""
    parser = add_command(commands, "mirror", "copy topics between a folder, a server and a cluster", EXAMPLE, run)
    parser.add_argument("source", metavar="FROM", help="a folder, or the URL of a server or a cluster")
    parser.add_argument("target", metavar="TO", help="the same")
    parser.add_argument("pattern", metavar="PATTERN", help="the topics to copy")
    add_token(parser, where=" at FROM")
    add_token(parser, "--to-token-file", " at TO")
    parser.add_argument("--name", metavar="NAME", help="the name of the mirror, if one pattern has several")
    parser.add_argument("--once", action="store_true", help="copy what is there now, and end")
    parser.add_argument("--verify", action="store_true", help="copy what is there now, and compare both sides")
    add_json(parser, "the comparison, a topic a line; without --verify, what was copied")


def run(chosen: argparse.Namespace) -> int:
    """Copy until Ctrl-C, or once."""
    check_pattern(chosen.pattern)
    return asyncio.run(_mirror(chosen))


async def _mirror(chosen: argparse.Namespace) -> int:
    from runnel.api.mirror import Mirror, compare

    is_once = chosen.once or chosen.verify
    there, here = with_token(chosen.source, chosen.token_file), with_token(chosen.target, chosen.to_token_file)
    async with runnel.open(there) as source, runnel.open(here) as target:
        mirror = Mirror(source, chosen.pattern, target, name=chosen.name, once=is_once)
        until = "" if is_once else "; Ctrl-C stops"
        print(f"copying {chosen.pattern!r} to {chosen.target}{until}", file=sys.stderr, flush=True)
        await show_progress(mirror, as_json=chosen.json and not chosen.verify)
        if not chosen.verify:
            return FINE
        status = FINE
        compared = compare(source, target, chosen.pattern)
        while True:
            with Elapsed("comparing"):
                one = await anext(compared, None)
            if one is None:
                return status
            if not one.same:
                status = DIFFERENT
            print(msgspec.json.encode(one).decode() if chosen.json else _shown(one), flush=True)


def _shown(one: TopicComparison) -> str:
    sides = f"{many(one.source, 'record')} and {one.target:,}"
    return f"{one.topic}: {'equal' if one.same else 'DIFFERENT'}, {sides}, {one.hash}"
