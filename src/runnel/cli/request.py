"""`runnel request`: publish a request and print the reply."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.errors import FINE
from runnel.cli.opened import opened
from runnel.cli.options import read_headers
from runnel.cli.output import of_record, print_document
from runnel.cli.server_address import add_server, location_of
from runnel.config import units
from runnel.core.errors import InvalidOption
from runnel.core.pattern import check_name
from runnel.core.record import Record

EXAMPLE = """\
examples:
  runnel request square 12                              prints the reply; `runnel reply square --command …` answers
  runnel request square 12 --timeout 30s --json
  runnel request resize - < cat.jpg > small.jpg         the value is the standard input, whole

Exit code 1 if no subscriber is there (no_responders), no reply comes in time (request_timeout), or the responder failed
(request_failed).
"""


def add_to(commands: Commands) -> None:
    """Make `runnel request` known."""
    parser = add_command(commands, "request", "publish a request, and print the reply", EXAMPLE, run)
    parser.add_argument("topic", metavar="TOPIC", help="the topic that responders subscribe to")
    parser.add_argument("value", metavar="VALUE", help="the request; -: the standard input")
    parser.add_argument("--timeout", default="5s", metavar="TIME", help="how long to wait for the reply (default: 5s)")
    parser.add_argument("--key", metavar="KEY", help="the key of the request")
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="a header of the request; may be repeated"
    )
    add_server(parser)
    add_json(parser)


def run(chosen: argparse.Namespace) -> int:
    """Send the request, and print the value of the reply unchanged."""
    check_name(chosen.topic)
    value = sys.stdin.buffer.read() if chosen.value == "-" else os.fsencode(chosen.value)
    reply = asyncio.run(_request(chosen, location_of(chosen), value, read_duration("timeout", chosen.timeout)))
    if chosen.json:
        print_document(of_record(reply))
        return FINE
    sys.stdout.flush()
    sys.stdout.buffer.write(reply.value + (b"\n" if sys.stdout.isatty() else b""))  # a file gets exactly the reply
    sys.stdout.buffer.flush()
    return FINE


async def _request(chosen: argparse.Namespace, where: str, value: bytes, timeout: float) -> Record[bytes]:
    headers = read_headers(chosen.header) or None
    async with opened(where) as broker:
        return await broker.request(chosen.topic, value, timeout=timeout, key=chosen.key, headers=headers)


def read_duration(option: str, given: str) -> float:
    """A length of time from the command line, in seconds."""
    try:
        return units.seconds(given)
    except ValueError as error:
        raise InvalidOption(option, given, str(error)) from None
