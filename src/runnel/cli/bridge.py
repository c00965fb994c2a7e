"""`runnel bridge`: copy the records published in one broker to another, while it runs."""

from __future__ import annotations

import argparse
import asyncio
import sys

import runnel
from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.errors import FINE
from runnel.cli.opened import opened
from runnel.cli.output import ProgressBar, StatusLine, many, print_line
from runnel.cli.server_address import add_server, add_token, location_of, with_token
from runnel.core.pattern import check_pattern

EXAMPLE = """\
examples:
  runnel bridge 'orders.>' --to runnel://central:7788                      from the folder or server here to a server
  runnel bridge 'orders.>' --to runnel://central:7788 --into 'eu.{topic}'  under other names there
  runnel bridge '>' --server runnel://old:7788 --to runnel://new:7788      from one server to another
  runnel bridge 'orders.>' --to archive/                                   to a folder

Each record is copied once, also if the bridge is killed and started again: a marker at the destination says how far it
is. It begins with what is kept (`--start latest`: with what comes), Ctrl-C stops it, and the next run continues. The
token in --token-file is for the source, that in --to-token-file for the destination, RUNNEL_TOKEN for both. A URL may
name its own: runnels://host:7788?token_file=FILE
"""


def add_to(commands: Commands) -> None:
    """Make `runnel bridge` known."""
    parser = add_command(commands, "bridge", "copy records to another broker, as they come", EXAMPLE, run)
    parser.add_argument("pattern", metavar="PATTERN", help="the topics to copy")
    parser.add_argument("--to", required=True, metavar="WHERE", help="the destination: a server URL, or a folder")
    parser.add_argument(
        "--into", default="{topic}", metavar="NAME", help="names of the topics there, such as 'eu.{topic}'"
    )
    parser.add_argument("--name", metavar="NAME", help="the name of the bridge, if one pattern has several")
    parser.add_argument(
        "--start", "--from", choices=("earliest", "latest"), default="earliest", help="where a new bridge begins"
    )
    add_token(parser, "--to-token-file", " at the destination")
    add_server(parser)
    add_json(parser, "what was copied, at the end, as a line")


def run(chosen: argparse.Namespace) -> int:
    """Copy until Ctrl-C."""
    check_pattern(chosen.pattern)
    asyncio.run(_bridge(chosen, location_of(chosen)))
    return FINE


async def _bridge(chosen: argparse.Namespace, where: str) -> None:
    to = with_token(chosen.to, chosen.to_token_file)
    async with opened(where, stays=True) as broker, runnel.open(to) as there:
        bridge = broker.bridge(chosen.pattern, there, name=chosen.name, into=chosen.into, start=chosen.start)
        print(f"copying {chosen.pattern!r} to {chosen.to}; Ctrl-C stops", file=sys.stderr, flush=True)
        await show_progress(bridge, as_json=chosen.json)


async def show_progress(bridge: runnel.Bridge, *, as_json: bool = False) -> None:
    """Run a bridge, and show its progress on the terminal; the totals come last."""
    showing = asyncio.create_task(_show(bridge))
    try:
        await bridge.run()
    finally:
        showing.cancel()
        await asyncio.wait([showing])  # its line is cleared before the next one
        if as_json:
            print_line({"copied": bridge.bridged, "missed": bridge.missed})
        else:
            print(_progress(bridge), file=sys.stderr)


async def _show(bridge: runnel.Bridge) -> None:
    with StatusLine() as ticker, ProgressBar("copying", unit="record") as bar:
        while True:
            if bridge.expected is not None:
                bar(bridge.bridged + bridge.repeated + bridge.missed, bridge.expected)
            elif not ticker(_progress(bridge)):
                return  # no terminal
            await asyncio.sleep(0.5)


def _progress(bridge: runnel.Bridge) -> str:
    return f"{many(bridge.bridged, 'record')} copied, {bridge.missed:,} missed"
