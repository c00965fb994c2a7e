"""Thousands of clients that come at once: `python -m tests.chaos.rush`. Those who are connected hardly notice.

They connect in the same moment, as after a server came back. The server lets them in at its `accept_rate`, while a few
clients that are connected publish and receive all the time.
Exit code 0: everybody got in, at no more than that rate, and nobody else was cut off or left waiting; 1: not so.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import runnel
from runnel.server.options import ServerOptions
from tests.chaos.crowd import percentiles, stamp, stamped
from tests.chaos.serving import crowds, serving, share

PACE = 0.02  # seconds between two publishes of one who is connected
WORST = 1_000.0  # milliseconds: whoever is connected waits no longer, however many come


@dataclass
class Figures:
    """What came of it."""

    clients: int
    calm: int
    before: dict[str, float] = field(default_factory=dict)  # publish to receive, of those who are connected
    during: dict[str, float] = field(default_factory=dict)
    entered: int = 0
    seconds: float = 0.0  # until the last one was in
    rate: float = ServerOptions().accept_rate
    memory: int = 0  # bytes for each of them
    reconnects: int = 0  # of those who were connected
    worst: float = WORST

    @property
    def broken(self) -> list[str]:
        """What ought not to be."""
        found = []
        if self.entered != self.clients:
            found.append(f"{self.entered} of {self.clients} got in")
        if self.seconds < 0.9 * (self.clients - self.rate / 10) / self.rate:
            found.append(f"all were let in within {self.seconds:.1f} s, at more than {self.rate:.0f} a second")
        if self.during["max"] > self.worst:
            found.append(f"who was connected waited for {self.during['max']} ms")
        if self.reconnects:
            found.append(f"{self.reconnects} of those who were connected were cut off")
        return found

    def __str__(self) -> str:
        return (
            f"{self.clients} clients at once, all in after {self.seconds:.1f} s ({self.rate:.0f} a second allowed), "
            f"{self.memory / 1024:.1f} KiB each; publish to receive of {self.calm} who were connected: "
            f"p50 {self.before['p50']} ms, p99 {self.before['p99']} ms before; "
            f"p50 {self.during['p50']} ms, p99 {self.during['p99']} ms, at most {self.during['max']} ms meanwhile"
        )


async def rush(folder: Path, clients: int, calm: int, seconds: float, worst: float = WORST) -> Figures:
    """Let many come at once. `worst`: the milliseconds that those who are connected may wait, on this machine."""
    figures = Figures(clients, calm, worst=worst)
    late: list[float] = []
    async with serving(folder, "--accept-rate", f"{figures.rate:.0f}") as server:
        async with crowds(server.port, *share(clients), credit=0, nice=10) as many:
            tasks = [asyncio.create_task(_calm(server.url, number, late, figures)) for number in range(calm)]
            await asyncio.sleep(1.0)  # what comes first is slow: everything is made
            late.clear()
            await asyncio.sleep(seconds)
            figures.before, memory = percentiles(late), server.memory
            late.clear()
            found = await asyncio.gather(*(one.ask("connect") for one in many))
            figures.during = percentiles(late)
            figures.entered = sum(one["in"] for one in found)
            figures.seconds = max(one["last"] for one in found) - min(one["began"] for one in found)
            figures.memory = (server.memory - memory) // clients
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in tasks:
                if not task.cancelled():
                    task.result()
    return figures


async def _calm(url: str, number: int, late: list[float], figures: Figures) -> None:
    """One who is connected: it publishes and receives what it published."""
    async with runnel.open(url) as broker, broker.subscribe(f"calm.{number}") as records:
        reading = aiter(records)
        try:
            while True:
                await broker.publish(f"calm.{number}", stamp(100))
                began = stamped((await anext(reading)).value)
                late.append(time.monotonic() - began)
                await asyncio.sleep(PACE)
        finally:
            figures.reconnects += broker.connection.connections - 1


def main() -> int:
    """Rush; the exit code."""
    parser = argparse.ArgumentParser(description="let thousands of clients come at once")
    parser.add_argument("--clients", type=int, default=5_000)
    parser.add_argument("--calm", type=int, default=10, help="who is connected and works")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to measure before they come")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="runnel-rush-") as folder:
        figures = asyncio.run(rush(Path(folder), options.clients, options.calm, options.seconds))
    print(figures, *figures.broken, sep="\n")  # noqa: T201
    return int(bool(figures.broken))


if __name__ == "__main__":
    sys.exit(main())
