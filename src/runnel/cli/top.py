"""`runnel top`: what a server does, live: rates, lag, drops."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from runnel.cli.address import add_server, where_of
from runnel.cli.colour import BOLD, DIM, RED, YELLOW, is_colourful, painted
from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.document import print_document, print_line
from runnel.cli.keyboard import awaiting
from runnel.cli.problem import FINE
from runnel.cli.rates import View, between
from runnel.cli.screen import Screen
from runnel.cli.table import Size, human_age, table
from runnel.config import units
from runnel.core.errors import InvalidOption

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
    from runnel.core.statistics import Statistics

EXAMPLE = """\
examples:
  runnel top                                    q or Ctrl-C ends it
  runnel top --server runnel://host:7788 --interval 5s
  runnel top --once                             one look, for scripts and mails
  runnel top --json | jq .published             a JSON line each interval

Rates are per second, over the last interval. LAG is what subscribers and groups have not read or settled; DROPPED is
what was too much for an in-memory subscriber, since the server started.
"""

_MOST = 1000  # rows of each table, where nobody scrolls


def add_to(commands: Commands) -> None:
    """Make `runnel top` known."""
    parser = add_command(commands, "top", "rates, lag and drops of a server, live", EXAMPLE, run)
    parser.add_argument("--interval", default="1s", metavar="TIME", help="between two looks (default: 1s)")
    parser.add_argument("--once", action="store_true", help="print one view and stop")
    add_server(parser)
    add_json(parser, "a JSON line for each view; with --once, one document")


def run(chosen: argparse.Namespace) -> int:
    """Show what a server does."""
    try:
        interval = units.seconds(chosen.interval)
    except ValueError as error:
        raise InvalidOption("interval", chosen.interval, str(error)) from None
    if not interval >= 0.1:
        raise InvalidOption("interval", chosen.interval, "expected a tenth of a second, or more")
    asyncio.run(_watch(chosen, where_of(chosen), interval))
    return FINE


async def _watch(chosen: argparse.Namespace, where: str, interval: float) -> None:
    import runnel

    async with runnel.open(where) as broker:
        if chosen.once or chosen.json or not sys.stdout.isatty():
            await _print(chosen, broker, where, interval)
            return
        colourful = is_colourful(sys.stdout)
        with Screen() as screen, awaiting("q") as ended:
            screen.show([f"runnel top · {where}", "", "looking ..."])
            async for view in _views(broker, interval, ended):
                screen.show(drawn(view, heading(where, await _info(broker)), screen.size[1], colourful))


async def _print(chosen: argparse.Namespace, broker: Broker, where: str, interval: float) -> None:
    async for view in _views(broker, interval):
        if chosen.json:
            (print_document if chosen.once else print_line)(msgspec.to_builtins(view))
        else:
            print("\n".join(drawn(view, heading(where, await _info(broker)), _MOST, is_colourful(sys.stdout))))
        sys.stdout.flush()
        if chosen.once:
            return


async def _views(broker: Broker, interval: float, ended: asyncio.Event | None = None) -> AsyncIterator[View]:
    """A view after each interval, until it is to end."""
    ended = ended or asyncio.Event()
    before, at = await _look(broker), time.monotonic()
    while True:
        try:
            async with asyncio.timeout(interval):
                await ended.wait()
            return
        except TimeoutError:
            pass
        now, then = await _look(broker), time.monotonic()
        yield between(before, now, then - at)
        before, at = now, then


async def _look(broker: Broker) -> Statistics:
    return await asyncio.to_thread(broker.statistics)


async def _info(broker: Broker) -> dict[str, Any]:
    """What a server says of itself; a broker in this process says nothing."""
    info = getattr(broker, "info", None)
    return {} if info is None else await info()


def heading(where: str, info: dict[str, Any]) -> str:
    """The first line: whom it is about."""
    parts = [f"runnel top · {where}"]
    if "uptime" in info:
        parts.append(f"up {human_age(info['uptime'])}")
    if "connections" in info:
        parts.append(f"{info['connections']:,} connections")
    return " · ".join([*parts, time.strftime("%H:%M:%S")])


def drawn(view: View, title: str, height: int, colourful: bool) -> list[str]:
    """The page: sums, then topics, groups and subscribers, as many of each as there is room for."""
    dropped = f"dropped {view.dropped:,.0f}/s ({view.dropped_ever:,} ever)"
    lines = [
        painted(title, BOLD, colourful),
        f"published {view.published:,.0f}/s, {Size(int(view.published_bytes))}/s   delivered {view.delivered:,.0f}/s   "
        + painted(dropped, RED if view.dropped else "", colourful and bool(view.dropped))
        + (
            painted(f"   {view.waiting_publishers:,} publishers wait", YELLOW, colourful)
            if view.waiting_publishers
            else ""
        ),
    ]
    tables = [one for one in (_topics(view), _groups(view), _readers(view)) if len(one) > 1]
    if not tables:
        return [*lines, "", painted("there are no topics yet", DIM, colourful)]
    room = max(3 * len(tables), height - len(lines) - 2 * len(tables))  # a blank line and heads before each
    for left, one in zip(range(len(tables), 0, -1), sorted(tables, key=len), strict=True):
        share = max(1, room // left)  # what a short table leaves, a long one gets
        rows = one[1 : 1 + share]
        room -= len(rows)
        one[1:] = rows
    for one in tables:
        lines += ["", painted(one[0], DIM, colourful), *one[1:]]
    return lines


def _topics(view: View) -> list[str]:
    heads = ("TOPIC", "IN/S", "BYTES/S", "END", "KEPT", "SUBSCRIBERS")
    rows = (
        (
            one.topic,
            round(one.published),
            Size(int(one.published_bytes)),
            one.end,
            Size(one.kept_bytes),
            one.subscribers,
        )
        for one in view.topics
    )
    return table(heads, rows).splitlines() if view.topics else []


def _groups(view: View) -> list[str]:
    heads = ("GROUP", "READS", "DONE/S", "LAG", "OUT", "AGAIN/S", "DEAD", "OLDEST", "MEMBERS", "STATE")
    rows = (
        (
            one.group,
            one.reads,
            round(one.acked),
            one.lag,
            one.in_flight,
            round(one.redelivered),
            one.dead_lettered,
            human_age(one.oldest),
            one.members,
            "paused" if one.paused else "active",
        )
        for one in view.groups
    )
    return table(heads, rows).splitlines() if view.groups else []


def _readers(view: View) -> list[str]:
    heads = ("SUBSCRIBER", "READS", "OUT/S", "LAG", "DROPPED/S", "DROPPED")
    rows = (
        (one.subscriber, one.reads, round(one.delivered), one.lag, round(one.dropped), one.dropped_ever)
        for one in view.readers
    )
    return table(heads, rows).splitlines() if view.readers else []
