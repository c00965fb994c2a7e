"""`runnel bench`: a load on a server, and how long records take from being published to being read."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
from typing import TYPE_CHECKING, Any

from runnel.cli.address import add_server, where_of
from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.document import print_document
from runnel.cli.problem import FINE, FOUND, USAGE, Refused
from runnel.cli.samples import human_latency, summary
from runnel.cli.table import Size, many, pairs
from runnel.config import units
from runnel.core.errors import InvalidOption
from runnel.core.options import positive
from runnel.core.pattern import check_name

if TYPE_CHECKING:
    from runnel.cli.bench_load import Load, Outcome

EXAMPLE = """\
examples:
  runnel bench                                              100,000 records of 100 bytes, one to one
  runnel bench --subscribers 10 --batch 1000 --messages 1000000
  runnel bench --batch 1 --in-flight 1 --seconds 5          awaited, one at a time: what a single publish costs
  runnel bench --rate 1000 --batch 1 --seconds 10           latency at a steady pace
  runnel bench --server runnel://host:7788 --json

Publishers and subscribers run in processes of their own (--processes), so they need cores of their own, too: on one
machine they compete with the server. With --rate a latency counts from when a record was due, not from when it could
be sent. Values are random bytes. The topic is made for the run and deleted afterwards, unless it was named.
Exit code 1: something was lost that nobody said was dropped.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel bench` known."""
    parser = add_command(commands, "bench", "a load, with latency percentiles", EXAMPLE, run)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--messages", type=int, metavar="N", help="records in all (default: 100,000)")
    length.add_argument("--seconds", metavar="TIME", help="publish for so long, such as 10s")
    parser.add_argument("--size", default="100", metavar="SIZE", help="of a value (default: 100 bytes; 8 at least)")
    parser.add_argument("--batch", type=int, default=100, metavar="N", help="records of one publish (default: 100)")
    parser.add_argument("--in-flight", type=int, default=8, metavar="N", help="publishes not yet answered (default: 8)")
    parser.add_argument("--publishers", type=int, default=1, metavar="N", help="how many publish (default: 1)")
    parser.add_argument("--subscribers", type=int, default=1, metavar="N", help="how many read all of it (default: 1)")
    parser.add_argument("--rate", type=float, metavar="N", help="records a second in all (default: as fast as it goes)")
    parser.add_argument("--topic", metavar="NAME", help="a topic to use, and to keep (default: one for this run)")
    parser.add_argument(
        "--durable", choices=("yes", "no"), help="whether the topic is kept on disk (default: as the server does)"
    )
    parser.add_argument("--policy", metavar="POLICY", help="what happens to a slow subscriber (default: the place's)")
    parser.add_argument("--buffer", type=int, metavar="N", help="records a subscriber may lag in memory")
    parser.add_argument("--processes", type=int, metavar="N", help="of publishers and subscribers (default: 2)")
    add_server(parser)
    add_json(parser)


def run(chosen: argparse.Namespace) -> int:
    """Make a load; print what it showed."""
    load, processes = load_of(chosen)
    outcomes = asyncio.run(_measured(chosen, load, processes))
    found = report(load, outcomes, processes)
    if chosen.json:
        print_document(found)
    else:
        print(shown(found, load))
    return FOUND if found["lost"] else FINE


def load_of(chosen: argparse.Namespace) -> tuple[Load, int]:
    """What is to be done by each publisher, and in how many processes."""
    from runnel.cli.bench_load import STAMP, Load

    for name in ("batch", "in_flight", "publishers"):
        positive(name.replace("_", "-"), getattr(chosen, name))
    if chosen.subscribers < 0:
        raise InvalidOption("subscribers", chosen.subscribers, "expected 0 or more")
    try:
        size = units.size(chosen.size)
        seconds = None if chosen.seconds is None else units.seconds(chosen.seconds)
    except ValueError as error:
        raise InvalidOption("size or seconds", f"{chosen.size}, {chosen.seconds}", str(error)) from None
    if size < STAMP.size:
        raise InvalidOption("size", size, f"a value holds the time it was due: expected {STAMP.size} bytes or more")
    if chosen.rate is not None and not chosen.rate > 0:
        raise InvalidOption("rate", chosen.rate, "expected records a second, above 0")
    messages = None if seconds is not None else positive("messages", chosen.messages or 100_000)
    processes = positive("processes", chosen.processes or (1 if chosen.data else 2))
    if chosen.data and processes > 1:
        raise Refused("usage_error", "one process has a folder open: say --processes 1, or serve it first", USAGE)
    topic = check_name(chosen.topic or f"bench.{secrets.token_hex(4)}")
    each = None if messages is None else max(1, messages // chosen.publishers)
    rate = None if chosen.rate is None else chosen.rate / chosen.publishers
    where = where_of(chosen)
    load = Load(
        where,
        topic,
        size,
        chosen.batch,
        chosen.in_flight,
        each,
        seconds,
        rate,
        chosen.policy,
        chosen.buffer,
        None if chosen.durable is None else chosen.durable == "yes",
        chosen.topic is None,
    )
    return load, processes


async def _measured(chosen: argparse.Namespace, load: Load, processes: int) -> list[Outcome]:
    import runnel
    from runnel.cli.bench_crew import together

    if processes == 1:  # it may have the folder to itself, so it tidies up, too
        return await together(load, chosen.publishers, chosen.subscribers, processes)
    async with runnel.open(load.where) as broker:
        try:
            return await together(load, chosen.publishers, chosen.subscribers, processes)
        finally:
            if load.temporary and load.topic in await broker.topics():
                await broker.delete(load.topic)


def report(load: Load, outcomes: list[Outcome], processes: int) -> dict[str, Any]:
    """What a run showed."""
    publishers = [one for one in outcomes if one.role == "publisher"]
    readers = [one for one in outcomes if one.role == "subscriber"]
    published = sum(one.count for one in publishers)
    took = max(one.ended for one in publishers) - min(one.began for one in publishers)
    delivered, dropped = sum(one.count for one in readers), sum(one.missed for one in readers)
    read = [one for one in readers if one.count]
    # From the first publish on: a rate over the time that reading took alone would leave out what was waited for.
    until = max((one.ended for one in read), default=0.0) - min(one.began for one in publishers)
    return {
        "server": load.where,
        "topic": load.topic,
        "size": load.size,
        "batch": load.batch,
        "in_flight": load.in_flight,
        "publishers": len(publishers),
        "subscribers": len(readers),
        "processes": processes,
        "cores": os.cpu_count(),
        "rate_asked": None if load.rate is None else load.rate * len(publishers),
        "published": published,
        "publish_seconds": took,
        "published_per_second": published / took if took else 0.0,
        "publish_latency": summary(value for one in publishers for value in one.latencies),
        "delivered": delivered,
        "delivered_per_second": delivered / until if read and until > 0 else 0.0,
        "dropped": dropped,
        "lost": published * len(readers) - delivered - dropped,
        "latency": summary(value for one in readers for value in one.latencies),
    }


def shown(found: dict[str, Any], load: Load) -> str:
    """The same for people, with the conditions, without which figures say nothing."""
    call = "publish" if found["batch"] == 1 else f"publish_many of {found['batch']:,}"
    pace = "as fast as it goes" if found["rate_asked"] is None else f"{found['rate_asked']:,.0f}/s asked"
    rate = found["published_per_second"]
    lines: list[tuple[str, object]] = [
        ("server", found["server"]),
        ("load", f"{many(found['publishers'], 'publisher')}, {many(found['subscribers'], 'subscriber')}, {pace}"),
        ("call", f"{call}, awaited, {found['in_flight']} in flight each; random values of {found['size']:,} bytes"),
        ("processes", f"{found['processes']} of the load on {found['cores']} cores, and the server's"),
        ("published", f"{found['published']:,} in {found['publish_seconds']:.2f} s: {rate:,.0f}/s"),
        ("", f"{Size(int(rate * found['size']))}/s of values"),
        ("publish call", _latencies(found["publish_latency"])),
    ]
    if found["subscribers"]:
        lines.append(("delivered", f"{found['delivered']:,}: {found['delivered_per_second']:,.0f}/s to all together"))
        lines.append(("publish to read", _latencies(found["latency"])))
    if found["dropped"]:
        lines.append(("dropped", f"{found['dropped']:,}: the subscribers were too slow, and said so"))
    if found["lost"]:
        lines.append(("LOST", f"{found['lost']:,} records never came, and nobody said so"))
    return pairs(lines)


def _latencies(found: dict[str, float] | None) -> str:
    if found is None:
        return "nothing to tell"
    return "  ".join(f"{name} {human_latency(value)}" for name, value in found.items())
