"""`runnel bench`: a load on a server, and how long records take from publish to read.

Publishers and subscribers run in this process or in several. A record carries the time it was due, so with `--rate`
latency counts from then; its values are random, so nothing can be compressed away.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import secrets
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import msgspec

import runnel
from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.errors import FINE, FOUND, USAGE, CommandError
from runnel.cli.output import Elapsed, Size, is_colourful, many, pairs, print_document
from runnel.cli.server_address import add_server, location_of
from runnel.config import units
from runnel.core.errors import InvalidOption, RunnelError
from runnel.core.options import positive
from runnel.core.pattern import check_name
from runnel.core.record import Gap

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
Exit code 1: records were lost without a reported gap.
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
    with Elapsed("measuring"):
        outcomes = asyncio.run(_measured(chosen, load, processes))
    found = report(load, outcomes, processes)
    if chosen.json:
        print_document(found)
    else:
        print(shown(found, load))
    return FOUND if found["lost"] else FINE


def load_of(chosen: argparse.Namespace) -> tuple[BenchLoad, int]:
    """The work of each publisher, and the number of processes."""
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
        raise CommandError("usage_error", "one process has a folder open: say --processes 1, or serve it first", USAGE)
    topic = check_name(chosen.topic or f"bench.{secrets.token_hex(4)}")
    each = None if messages is None else max(1, messages // chosen.publishers)
    rate = None if chosen.rate is None else chosen.rate / chosen.publishers
    where = location_of(chosen)
    load = BenchLoad(
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


async def _measured(chosen: argparse.Namespace, load: BenchLoad, processes: int) -> list[BenchOutcome]:
    if processes == 1:  # it may have the folder to itself, so it tidies up, too
        return await run_load(load, chosen.publishers, chosen.subscribers, processes)
    async with runnel.open(load.where) as broker:
        try:
            return await run_load(load, chosen.publishers, chosen.subscribers, processes)
        finally:
            if load.temporary and load.topic in await broker.topics():
                await broker.delete(load.topic)


def report(load: BenchLoad, outcomes: list[BenchOutcome], processes: int) -> dict[str, Any]:
    """The results of a run."""
    publishers = [one for one in outcomes if one.role == "publisher"]
    readers = [one for one in outcomes if one.role == "subscriber"]
    published = sum(one.count for one in publishers)
    took = max(one.ended for one in publishers) - min(one.began for one in publishers)
    delivered, dropped = sum(one.count for one in readers), sum(one.missed for one in readers)
    read = [one for one in readers if one.count]
    # From the first publish on: a rate over the reading time alone would leave out waits.
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
        "publish_latency": percentiles(value for one in publishers for value in one.latencies),
        "delivered": delivered,
        "delivered_per_second": delivered / until if read and until > 0 else 0.0,
        "dropped": dropped,
        "lost": published * len(readers) - delivered - dropped,
        "latency": percentiles(value for one in readers for value in one.latencies),
    }


def shown(found: dict[str, Any], load: BenchLoad) -> str:
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
        lines.append(("LOST", f"{found['lost']:,} records never came, and no gap was reported"))
    return pairs(lines, colourful=is_colourful(sys.stdout))


def _latencies(found: dict[str, float] | None) -> str:
    if found is None:
        return "nothing to tell"
    return "  ".join(f"{name} {human_latency(value)}" for name, value in found.items())


# -- Workers in processes --------------------------------------------------------------------------------
# The coordinator and the workers exchange small messages: ready, go, published, total, outcomes. Subscribers are
# open before the first record is published; they learn the total when publishing has ended.


Message = tuple[Any, ...]
Say = Callable[[Message], None]
Hear = Callable[[], Awaitable[Message]]


class WorkerChannel(NamedTuple):
    """How the conductor talks to one crew."""

    say: Say
    hear: Hear


def share_out(count: int, among: int) -> list[int]:
    """So many, over so many, as evenly as it goes; none gets 0."""
    among = min(count, among)
    return [count // among + (at < count % among) for at in range(among)] if among else []


def workers_by_process(publishers: int, subscribers: int, processes: int) -> list[tuple[int, int]]:
    """The roles of each process: publishers and subscribers apart, where there are two processes or more."""
    if processes == 1:
        return [(publishers, subscribers)]
    for_publishers = max(1, processes // 2) if subscribers else processes
    found = [(count, 0) for count in share_out(publishers, for_publishers)]
    return found + [(0, count) for count in share_out(subscribers, max(1, processes - for_publishers))]


async def run_worker(
    load: BenchLoad, publishers: int, subscribers: int, say: Say, hear: Hear, *, alone: bool = False
) -> None:
    """One crew: it says when it is ready, publishes at the start signal, and reads until it has the total.

    If it is the only one, it also tidies up.
    """
    try:
        async with runnel.open(load.where) as broker:
            options: dict[str, Any] = {} if load.durable is None else {"durable": load.durable}
            await broker.topic(load.topic, **options).declare()
            total: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            here = asyncio.Semaphore(0)

            async def expected() -> int:
                return await asyncio.shield(total)

            reading = [asyncio.ensure_future(receive(broker, load, here.release, expected)) for _ in range(subscribers)]
            for _ in reading:
                await _first_or_error(here.acquire(), reading)
            say(("ready",))
            await hear()
            outcomes = await asyncio.gather(*(publish(broker, load) for _ in range(publishers)))
            say(("published", sum(one.count for one in outcomes)))
            total.set_result((await hear())[1])
            outcomes += await asyncio.gather(*reading)
            if load.temporary and alone:
                await broker.delete(load.topic)
        say(("outcomes", outcomes))
    except RunnelError as error:
        say(("error", error.code, str(error)))


async def _first_or_error(waiting: Any, others: Sequence[asyncio.Future[Any]]) -> None:
    """Wait; an error of one of the others is an error here."""
    mine = asyncio.ensure_future(waiting)
    done, _ = await asyncio.wait([mine, *others], return_when=asyncio.FIRST_COMPLETED)
    if mine not in done:
        mine.cancel()
        for one in done:
            one.result()


async def run_workers(lines: list[WorkerChannel]) -> list[BenchOutcome]:
    """Have all crews do their work together; what each publisher and subscriber did."""
    await _all(lines, "ready")
    for line in lines:
        line.say(("go",))
    counts = await _all(lines, "published")
    for line in lines:
        line.say(("total", sum(count for (count,) in counts)))
    return [one for (outcomes,) in await _all(lines, "outcomes") for one in outcomes]


async def _all(lines: list[WorkerChannel], expected: str) -> list[Message]:
    found = []
    for message in await asyncio.gather(*(line.hear() for line in lines)):
        if message[0] == "error":
            raise CommandError(message[1], message[2])
        if message[0] != expected:
            raise CommandError("bench_failed", f"a process said {message[0]!r}, not {expected!r}")
        found.append(message[1:])
    return found


async def run_load(load: BenchLoad, publishers: int, subscribers: int, processes: int) -> list[BenchOutcome]:
    """The whole load, in this process or in others."""
    if processes == 1:
        there: asyncio.Queue[Message] = asyncio.Queue()
        back: asyncio.Queue[Message] = asyncio.Queue()
        crew = asyncio.ensure_future(run_worker(load, publishers, subscribers, back.put_nowait, there.get, alone=True))
        try:
            return await run_workers([WorkerChannel(there.put_nowait, back.get)])
        finally:
            crew.cancel()
            await asyncio.wait([crew])
    context = multiprocessing.get_context("spawn")
    started: list[BaseProcess] = []
    lines = []
    try:
        for members in workers_by_process(publishers, subscribers, processes):
            mine, theirs = context.Pipe()
            process = context.Process(target=_child, args=(load, *members, theirs), daemon=True)
            process.start()
            theirs.close()  # so that its end is noticed here
            started.append(process)
            lines.append(WorkerChannel(mine.send, partial(asyncio.to_thread, _received, mine)))
        return await run_workers(lines)
    finally:
        for child in started:
            child.terminate()


def _received(pipe: Connection) -> Message:
    try:
        return tuple(pipe.recv())
    except EOFError:
        return ("error", "bench_failed", "a process of the load ended before it was done")


def _child(load: BenchLoad, publishers: int, subscribers: int, pipe: Connection) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles it
    try:
        import uvloop

        loop_factory = uvloop.new_event_loop
    except ImportError:
        loop_factory = None

    async def hear() -> Message:
        return await asyncio.to_thread(_received, pipe)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run_worker(load, publishers, subscribers, pipe.send, hear))


# -- One publisher, one subscriber -----------------------------------------------------------------------
# A record begins with 8 bytes: nanoseconds of the machine's monotonic clock, which all its processes share.


STAMP = struct.Struct("<Q")
QUIET_SECONDS = 10.0  # seconds without a record, after which missing records count as lost


class BenchLoad(msgspec.Struct, frozen=True):
    """The work of each publisher and subscriber."""

    where: str
    topic: str
    size: int
    batch: int
    in_flight: int
    messages: int | None  # of one publisher
    seconds: float | None
    rate: float | None  # of one publisher
    policy: str | None = None
    buffer: int | None = None
    durable: bool | None = None  # None: as the place does
    temporary: bool = False  # the topic goes when all is done


class BenchOutcome(msgspec.Struct):
    """The results of one of them. Times are of the monotonic clock; latencies in seconds."""

    role: str
    count: int
    began: float
    ended: float
    latencies: list[float]
    missed: int = 0


async def publish(broker: Any, load: BenchLoad) -> BenchOutcome:
    """Publish until the number or the time is reached; the latencies are those of the awaited calls.

    With a rate a record is due at its time, whatever became of those before it, and its latency counts from then.
    """
    topic, samples = broker.topic(load.topic), LatencySamples()
    filler, sent = os.urandom(max(0, load.size - STAMP.size)), 0
    under_way: set[asyncio.Task[None]] = set()
    began = time.monotonic()
    until = None if load.seconds is None else began + load.seconds

    async def one(values: list[bytes], due: float) -> None:
        await (topic.publish(values[0]) if len(values) == 1 else topic.publish_many(values))
        samples.add(time.monotonic() - due)

    while (load.messages is None or sent < load.messages) and (until is None or time.monotonic() < until):
        count = load.batch if load.messages is None else min(load.batch, load.messages - sent)
        due = time.monotonic()
        if load.rate is not None:
            due = began + sent / load.rate
            if (pause := due - time.monotonic()) > 0:
                await asyncio.sleep(pause)
        value = STAMP.pack(int(due * 1e9)) + filler
        if load.in_flight == 1:
            await one([value] * count, due)
        else:
            task = asyncio.ensure_future(one([value] * count, due))
            under_way.add(task)
            if len(under_way) >= load.in_flight:
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for ended in done:
                    ended.result()
        sent += count
    if under_way:
        await asyncio.gather(*under_way)
    return BenchOutcome("publisher", sent, began, time.monotonic(), samples.values())


async def receive(
    broker: Any, load: BenchLoad, ready: Callable[[], None], expected: Callable[[], Awaitable[int]]
) -> BenchOutcome:
    """Read until all published records arrived; the latencies are from when a record was due to its delivery.

    Eight records of each batch are sampled, evenly, so that sampling does not become the load.
    """
    samples, count, missed, began, ended = LatencySamples(), 0, 0, 0.0, 0.0

    def miss(gap: Gap) -> None:
        nonlocal missed
        missed += gap.count or 0

    options: dict[str, Any] = {"start": "earliest", "on_gap": miss}
    options |= {name: value for name in ("policy", "buffer") if (value := getattr(load, name)) is not None}
    total: asyncio.Future[int] = asyncio.ensure_future(expected())
    async with broker.subscribe(load.topic, **options) as subscription:
        ready()
        batches = subscription.batches()
        coming: asyncio.Future[Any] = asyncio.ensure_future(anext(batches))
        try:
            while not (total.done() and count + missed >= total.result()):
                waiting = {coming} if total.done() else {coming, total}
                patience = QUIET_SECONDS if total.done() else None
                done, _ = await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                if coming in done:
                    values = coming.result().values
                    ended = time.monotonic()
                    began = began or ended
                    count += len(values)
                    for value in values[:: max(1, len(values) // 8)]:
                        samples.add(ended - STAMP.unpack_from(value)[0] / 1e9)
                    coming = asyncio.ensure_future(anext(batches))
        finally:
            coming.cancel()
            total.cancel()
            await asyncio.wait([coming])
    return BenchOutcome("subscriber", count, began, ended, samples.values(), missed)


# -- Latency percentiles ---------------------------------------------------------------------------------


PERCENTILES = (50.0, 90.0, 99.0)
MAX_SAMPLES = 100_000


class LatencySamples:
    """Numbers of which a fair sample is kept: each that was ever added is in it with the same chance."""

    def __init__(self, most: int = MAX_SAMPLES) -> None:
        self._most, self._seen, self._largest = most, 0, 0.0
        self._kept: list[float] = []
        self._chance = random.Random(0)

    def add(self, value: float) -> None:
        """One more."""
        self._seen += 1
        self._largest = max(self._largest, value)
        if len(self._kept) < self._most:
            self._kept.append(value)
        elif (at := self._chance.randrange(self._seen)) < self._most:
            self._kept[at] = value

    def values(self) -> list[float]:
        """Those that were kept, with the largest of all among them."""
        return [*self._kept, self._largest] if self._kept else []


def percentiles(values: Iterable[float]) -> dict[str, float] | None:
    """p50, p90, p99 and the largest; None where there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    last = len(ordered) - 1
    found = {f"p{one:g}": ordered[round(one / 100 * last)] for one in PERCENTILES}
    return found | {"max": ordered[-1]}


def human_latency(seconds: float) -> str:
    """`1.25 ms`, `83 µs`, `2.1 s`."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
