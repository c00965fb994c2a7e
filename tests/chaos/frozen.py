"""Many clients, a fifth of them frozen: `python -m tests.chaos.frozen`. The others notice nothing, memory is bounded.

All subscribe to one topic. A while later one process that holds a fifth of the connections is stopped (SIGSTOP): its
sockets stay open, and nobody reads from them. They get more than the others, and have credit without end, so that only
the bounds of their connections hold. The server goes on until the pings tell that nobody is there.
Exit code 0: everybody else got everything in order, and the server's memory stayed below its bound; 1: not so.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import runnel
from runnel.core.batch_format import pack
from runnel.server.options import ServerOptions
from runnel.wire.frames import SMALL_BUFFER
from tests.chaos.crowd import TOPIC, percentiles, stamp
from tests.chaos.serving import Many, Serving, crowds, serving, share
from tests.patience import PATIENCE

SIZE = 1_000  # bytes of a value
AT_ONCE = 20  # records of a publish
EVERY = 0.2  # seconds between two publishes
HIGH_WATER, TAIL = 256 << 10, 1 << 20
ENOUGH = 1 << 40  # credit that is never used up
BULK, BULK_SIZE = "bulk", 128 << 10  # what the frozen alone are sent too, and how large each of it is
FLOOD = 16 << 20  # bytes of that
PING = 4.0  # seconds of silence before a ping, and again until the end


@dataclass
class Figures:
    """What came of it."""

    clients: int
    frozen: int
    before: list[dict[str, Any]] = field(default_factory=list)
    during: list[dict[str, Any]] = field(default_factory=list)
    records: int = 0
    publishing: dict[str, float] = field(default_factory=dict)  # how long a publish took while some were frozen
    idle: int = 0  # bytes of memory with nobody there
    most: int = 0  # at most, while some were frozen
    unsent: int = 0  # bytes that waited for one of them, at most
    noticed: float = 0.0  # seconds until the frozen ones were gone

    @property
    def bound(self) -> int:
        """What the server may take for them: of each connection its two buffers and a frame, and the tail."""
        frame = len(pack([bytes(BULK_SIZE)]))
        objects = 16 << 10  # what Python takes for a connection, a subscription and their timers
        return self.clients * (SMALL_BUFFER + HIGH_WATER + frame + objects) + 2 * TAIL

    @property
    def broken(self) -> list[str]:
        """What ought not to be."""
        found = [f"memory grew by {self.most - self.idle:,} bytes"] if self.most - self.idle > self.bound else []
        whole = {"fewest": self.records, "most": self.records, "astray": 0, "lost": 0}
        strays = [crowd for crowd in self.during if not whole.items() <= crowd.items()]
        return found + [f"{self.records} records were published, and a crowd got {crowd}" for crowd in strays]

    def __str__(self) -> str:
        def worst(figures: list[dict[str, Any]], name: str) -> float:
            return max(float(crowd[name]) for crowd in figures)

        return (
            f"{self.clients} clients, {self.frozen} frozen, {self.records} records of {SIZE} bytes to each: "
            f"publish to receive p50 {worst(self.before, 'p50')} ms and p99 {worst(self.before, 'p99')} ms before, "
            f"p50 {worst(self.during, 'p50')} ms and p99 {worst(self.during, 'p99')} ms while frozen; "
            f"publishing p99 {self.publishing['p99']} ms; memory grew by {(self.most - self.idle) / 2**20:.1f} MiB of "
            f"{self.bound / 2**20:.0f} allowed, up to {self.unsent / 1024:.0f} KiB waited for one of them; "
            f"the frozen were gone after {self.noticed:.1f} s"
        )


async def freeze(folder: Path, clients: int, frozen: int, seconds: float, ping: float = PING) -> Figures:
    """Freeze some of many, and see how the others do."""
    figures = Figures(clients, frozen)
    options = ServerOptions(high_water=HIGH_WATER, ping=ping, ping_timeout=ping)
    flags = (
        *("--high-water", str(options.high_water), "--journal-tail-bytes", str(TAIL)),
        *("--ping", f"{options.ping}s", "--ping-timeout", f"{options.ping_timeout}s"),
    )
    async with serving(folder, *flags) as server, runnel.open(server.url) as broker:
        for topic in (TOPIC, BULK):
            await broker.topic(topic).declare()
        await _publish(broker, figures, 3)
        figures.records, figures.idle = 0, server.memory
        async with (
            crowds(server.port, *share(clients - frozen)) as good,
            crowds(server.port, frozen, credit=ENOUGH, pattern="*") as bad,
        ):
            await asyncio.gather(*(one.ask("connect") for one in (*good, *bad)))
            await _publish(broker, figures, int(seconds / 2 / EVERY))
            figures.before = await _all(good, figures.records)
            await _all(bad, figures.records)
            for one in bad:
                one.freeze()
            watching = asyncio.create_task(_watch(broker, server, figures))
            bulk = asyncio.create_task(_flood(broker))
            figures.publishing = percentiles(await _publish(broker, figures, int(seconds / EVERY)))
            figures.during = await _all(good, figures.records)
            while not figures.unsent and not watching.done():  # noqa: ASYNC110  # another task looks every while
                await asyncio.sleep(0.05)  # until the flood is more than the system keeps for those that are frozen
            bulk.cancel()
            async with asyncio.timeout(PATIENCE):
                await watching
    return figures


async def _publish(broker: runnel.Broker, figures: Figures, times: int) -> list[float]:
    """Publish at a steady pace; how long each took."""
    topic, took = broker.topic(TOPIC), []
    loop = asyncio.get_running_loop()
    for _ in range(times):
        began = loop.time()
        await topic.publish_many([stamp(SIZE) for _ in range(AT_ONCE)])
        took.append(loop.time() - began)
        figures.records += AT_ONCE
        await asyncio.sleep(max(0.0, EVERY - took[-1]))
    return took


async def _flood(broker: runnel.Broker) -> None:
    """Send the frozen more than the system keeps for them."""
    for _ in range(FLOOD // BULK_SIZE):
        await broker.publish(BULK, stamp(BULK_SIZE))
        await asyncio.sleep(0.02)


async def _all(crowd: list[Many], records: int) -> list[dict[str, Any]]:
    return await asyncio.gather(*(one.ask(f"count {records}") for one in crowd))


async def _watch(broker: Any, server: Serving, figures: Figures) -> None:
    """Look at what the server holds until those who are frozen are gone."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while (
        there := len(connections := await broker.backend.link.call("connections", {}))
    ) > figures.clients - figures.frozen + 1:
        figures.most = max(figures.most, server.memory)
        figures.unsent = max(figures.unsent, *(one["unsent_bytes"] for one in connections))
        await asyncio.sleep(0.2)
    figures.noticed = loop.time() - began
    if there < figures.clients - figures.frozen:
        raise AssertionError(f"only {there} connections are left")


def main() -> int:
    """Freeze; the exit code."""
    parser = argparse.ArgumentParser(description="freeze a part of many clients")
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--frozen", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to publish while they are frozen")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="runnel-frozen-") as folder:
        figures = asyncio.run(freeze(Path(folder), options.clients, options.frozen, options.seconds))
    print(figures, *figures.broken, sep="\n")  # noqa: T201
    return int(bool(figures.broken))


if __name__ == "__main__":
    sys.exit(main())
