"""`runnel security-log`: logins, refusals, and the actions of administrators."""

from __future__ import annotations

import argparse
import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from runnel.cli.command import Commands, add_command, add_json, check_count
from runnel.cli.errors import FINE
from runnel.cli.opened import opened
from runnel.cli.output import escaped, print_line
from runnel.cli.server_address import add_server, location_of
from runnel.core.errors import UnknownTopic
from runnel.security.audit import EVENTS_TOPIC, LOGINS_TOPIC, REFUSALS_TOPIC, SecurityEvent

PAGE, PAGE_BYTES = 1000, 4 << 20

EXAMPLE = """\
examples:
  runnel security-log                            logins, admin actions and changes of tokens
  runnel security-log --actions                  admin actions and changes of tokens alone
  runnel security-log --refusals                 what was refused: those alike within a second are one line
  runnel security-log --last 100 --json
  runnel security-log --data /var/lib/runnel     of a folder, without a server

Needs the console role `admin` at a server. Logins, refusals and the rest are kept for 90 days, 1 GiB of each at most.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel security-log` known."""
    summary = "logins, refusals, and the actions of administrators"
    parser = add_command(commands, "security-log", summary, EXAMPLE, run)
    add_server(parser)
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--actions", action="store_true", help="admin actions and changes of tokens alone")
    part.add_argument("--refusals", action="store_true", help="failed logins and refusals instead")
    parser.add_argument("--last", metavar="N", type=int, help="the newest N only")
    add_json(parser, "one JSON object a line")


def run(chosen: argparse.Namespace) -> int:
    """Print the events."""
    check_count(chosen.last)
    asyncio.run(_print(chosen, location_of(chosen)))
    return FINE


async def _print(chosen: argparse.Namespace, where: str) -> None:
    topics: tuple[str, ...] = (EVENTS_TOPIC, LOGINS_TOPIC)
    if chosen.refusals or chosen.actions:
        topics = (REFUSALS_TOPIC,) if chosen.refusals else (EVENTS_TOPIC,)
    async with opened(where) as broker:
        events = _in_order([_events(broker.backend, one, chosen.last) for one in topics])
        if chosen.last is not None and len(topics) > 1:
            for event in deque([one async for one in events], maxlen=chosen.last):
                _show(event, chosen)
            return
        async for event in events:
            _show(event, chosen)


def _show(event: SecurityEvent, chosen: argparse.Namespace) -> None:
    if chosen.json:
        print_line(msgspec.to_builtins(event))
    else:
        print(_line(event))


async def _in_order(sources: Iterable[AsyncIterator[SecurityEvent]]) -> AsyncIterator[SecurityEvent]:
    """The events of all of them by their time."""
    heads = [(event, one) for one in sources if (event := await anext(one, None)) is not None]
    while heads:
        heads.sort(key=lambda head: head[0].time)
        event, source = heads.pop(0)
        yield event
        if (following := await anext(source, None)) is not None:
            heads.append((following, source))


async def _events(backend: Any, topic: str, last: int | None) -> AsyncIterator[SecurityEvent]:
    start: Any = "earliest" if last is None else -last
    while True:
        try:
            page = await backend.history(topic, start, PAGE, PAGE_BYTES)
        except UnknownTopic:
            return  # nothing happened yet
        for record in page.records:
            yield msgspec.json.decode(record.value, type=SecurityEvent)
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
