"""`runnel security-log`: who logged in, who was refused, and what administrators did."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec

import runnel
from runnel.cli.command import Commands, add_command, add_json, check_count
from runnel.cli.errors import FINE
from runnel.cli.output import escaped, print_line
from runnel.cli.server_address import add_server, location_of
from runnel.core.errors import UnknownTopic
from runnel.security.audit import EVENTS_TOPIC, REFUSALS_TOPIC, SecurityEvent

PAGE, PAGE_BYTES = 1000, 4 << 20

EXAMPLE = """\
examples:
  runnel security-log                            logins, admin actions and changes of tokens
  runnel security-log --refusals                 what was refused: those alike within a second are one line
  runnel security-log --last 100 --json
  runnel security-log --data /var/lib/runnel     of a folder, without a server

Needs the console role `admin` at a server. Events are kept for 90 days, 1 GiB of them at most.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel security-log` known."""
    summary = "who logged in, who was refused, and what administrators did"
    parser = add_command(commands, "security-log", summary, EXAMPLE, run)
    add_server(parser)
    parser.add_argument("--refusals", action="store_true", help="failed logins and refusals instead")
    parser.add_argument("--last", metavar="N", type=int, help="the newest N only")
    add_json(parser, "one JSON object a line")


def run(chosen: argparse.Namespace) -> int:
    """Print the events."""
    check_count(chosen.last)
    asyncio.run(_print(chosen, location_of(chosen)))
    return FINE


async def _print(chosen: argparse.Namespace, where: str) -> None:
    topic = REFUSALS_TOPIC if chosen.refusals else EVENTS_TOPIC
    async with runnel.open(where) as broker:
        async for value in _events(broker.backend, topic, chosen.last):
            event = msgspec.json.decode(value, type=SecurityEvent)
            if chosen.json:
                print_line(msgspec.to_builtins(event))
            else:
                print(_line(event))


async def _events(backend: Any, topic: str, last: int | None) -> AsyncIterator[bytes]:
    start: Any = "earliest" if last is None else -last
    while True:
        try:
            page = await backend.history(topic, start, PAGE, PAGE_BYTES)
        except UnknownTopic:
            return  # nothing happened yet
        for record in page.records:
            yield record.value
        start = page.next
        if page.next >= page.end:
            return


def _line(event: SecurityEvent) -> str:
    time = datetime.fromtimestamp(event.time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    who = f"{event.principal or '-'} from {event.peer} ({event.listener})"
    what = f"{event.action} {event.target}".strip()
    times = f" ×{event.count}" if event.count > 1 else ""
    why = f": {event.why}" if event.why else ""
    return escaped(f"{time}  {event.outcome:8} {event.kind:8} {who}  {what}{times}{why}")
