"""Browsers by the thousand: `python -m tests.chaos.browsers`. Many at once, and many that come and go.

First 10,000 event streams are open at once, as far as the system's limits allow: what does each take of memory, how
fast do events get to all of them, and how late is the last one? Then browsers lose their streams 10,000 times, at any
byte, and come back with the last id they saw, while records are published and the server is killed or restarted. None
may miss a record without being told, and none may see one twice.
Exit code 0: so it was; 1: not so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import running
from tests.chaos.browser import Browser
from tests.chaos.crowd import percentiles
from tests.chaos.serving import Serving, web_serving
from tests.patience import PATIENCE
from tests.ports import free_port

TOPICS = ("t.a", "t.b", "u")
QUERIES = {  # what browsers read, and which topics that is
    "topic=t.a": ("t.a",),
    "topic=t.a&topic=u": ("t.a", "u"),
    "pattern=t.*": ("t.a", "t.b"),
    "pattern=>": TOPICS,
}
RESERVE = 200  # handles for everything else
ENOUGH = 64 << 10  # bytes of memory that a connection may take


# -- many at once -----------------------------------------------------------------------------------------------


@dataclass
class AtOnce:
    """What came of many streams at once."""

    asked: int
    connections: int
    limit: str  # what kept it from being more
    found: dict[str, Any]
    publishes: int
    together: int

    @property
    def memory(self) -> float:
        """Bytes of the server's memory for each, when events have come."""
        return float(max(self.found["memory"], self.found["memory_after"]) / self.connections)

    @property
    def broken(self) -> list[str]:
        """What ought not to be."""
        found = [f"{self.found['over']} events came twice"] if self.found["over"] else []
        if self.memory > ENOUGH:
            found.append(f"a connection takes {self.memory:,.0f} bytes of memory")
        return found

    def __str__(self) -> str:
        count = self.connections * self.publishes * self.together
        late = percentiles([age / 1e9 for age in self.found["ages"]])
        limit = f" (of {self.asked:,}: {self.limit})" if self.connections < self.asked else ""
        return (
            f"{self.connections:,} streams at once{limit}: {self.memory / 1024:.1f} KiB of memory each; "
            f"{count / self.found['seconds']:,.0f} deliveries/s, {count / self.found['cpu']:,.0f} for each second of "
            f"the server's CPU; publish to arrival p50 {late['p50']} ms, p99 {late['p99']} ms, at most {late['max']} ms"
        )


async def at_once(folder: Path, connections: int, publishes: int = 20, together: int = 1, looks: int = 20) -> AtOnce:
    """Open so many streams of one topic, and publish to it."""
    asked, limit = connections, ""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        if connections > hard - RESERVE:
            connections, limit = hard - RESERVE, f"RLIMIT_NOFILE is {hard:,}"
        room = str(connections + RESERVE)
        async with web_serving(folder, 0, "--max-connections", room, "--max-streams", room) as server:
            plan: dict[str, Any] = {"task": "deliver", "port": server.port, "pids": [server.pid]}
            plan |= {"connections": connections, "events": "/events?topic=t", "topic": "/topics/t", "lines": True}
            plan |= {"kind": "application/x-ndjson", "publishes": publishes, "together": together}
            plan |= {"looks": looks, "paced": 0.1}
            async with running([sys.executable, "-m", "benchmarks.web_crowd", json.dumps(plan)]) as crowd:
                assert crowd.stdout is not None
                async with asyncio.timeout(10 * PATIENCE):
                    line = await crowd.stdout.readline()
        assert line, "the crowd ended; what it said is above"
        return AtOnce(asked, connections, limit, json.loads(line), publishes, together)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- coming and going -------------------------------------------------------------------------------------------


@dataclass
class Storm:
    """What came of many that come and go."""

    browsers: list[Browser]
    wanted: int  # disconnects
    kills: int = 0
    stops: int = 0
    published: int = 0
    ends: dict[str, int] = field(default_factory=dict)  # of the topics
    seconds: float = 0.0

    @property
    def disconnects(self) -> int:
        """How many streams were lost."""
        return sum(browser.visits for browser in self.browsers)

    @property
    def broken(self) -> list[str]:
        """What ought not to be."""
        found = [fault for browser in self.browsers for fault in browser.faults]
        found += [f"told a gap where nothing is missing: {gap}" for browser in self.browsers for gap in browser.gaps]
        for browser in self.browsers:
            whole = {topic: self.ends[topic] for topic in QUERIES[browser.query]}
            if {topic: browser.expects.get(topic, 0) for topic in whole} != whole:
                found.append(f"{browser.query} has {browser.expects}, not {whole}")
        return found

    def __str__(self) -> str:
        resumed, events = sum(one.resumed for one in self.browsers), sum(one.events for one in self.browsers)
        return (
            f"{len(self.browsers)} browsers lost their streams {self.disconnects:,} times and went on from an id "
            f"{resumed:,} times, over {self.kills} kills and {self.stops} stops of the server, in "
            f"{self.seconds:.0f} s: {events:,} events of {self.published:,} records, "
            f"{len(self.broken)} silent gaps and repeats"
        )


async def storm(folder: Path, browsers: int, disconnects: int, restarts: int, seed: int) -> Storm:
    """Let browsers come and go until that many streams were lost."""
    chance, port, began = random.Random(seed), free_port(), time.monotonic()
    queries = list(QUERIES)
    result = Storm([Browser(queries[number % len(queries)]) for number in range(browsers)], disconnects)
    over = asyncio.Event()
    tasks = [asyncio.create_task(_come_and_go(one, port, chance, over)) for one in result.browsers]
    publisher = asyncio.create_task(_publish(result, port, chance, over))
    try:
        for turn in range(restarts + 1):
            async with web_serving(folder, port) as server:
                await _until(result, disconnects * (turn + 1) // (restarts + 1), tasks)
                if turn < restarts:
                    await _end(result, server, kill=chance.random() < 0.6)
                    continue
                over.set()
                await publisher
                await asyncio.gather(*tasks)
                result.ends = {topic: await _end_of(port, topic) for topic in TOPICS}
                for browser in result.browsers:
                    await _rest(browser, port, result.ends)
    finally:
        for task in (*tasks, publisher):
            task.cancel()
        await asyncio.gather(*tasks, publisher, return_exceptions=True)
    result.seconds = time.monotonic() - began
    return result


async def _until(result: Storm, disconnects: int, tasks: list[asyncio.Task[None]]) -> None:
    async with asyncio.timeout(10 * PATIENCE):
        while result.disconnects < disconnects:
            await asyncio.sleep(0.02)
            for task in tasks:
                if task.done():
                    task.result()


async def _end(result: Storm, server: Serving, *, kill: bool) -> None:
    """Kill the server, as leaving its block does, or ask it to stop."""
    if kill:
        result.kills += 1
    else:
        result.stops += 1
        await server.stop()


async def _come_and_go(browser: Browser, port: int, chance: random.Random, over: asyncio.Event) -> None:
    while not over.is_set():
        most = chance.choice([chance.randrange(1, 400), chance.randrange(4_000), chance.randrange(200_000)])
        try:
            await browser.visit(port, most + 1, chance.uniform(0.0, 0.4))
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(chance.uniform(0.01, 0.1))  # the server is not there


async def _rest(browser: Browser, port: int, ends: dict[str, int]) -> None:
    """Read what is still to come, and no longer."""
    async with asyncio.timeout(PATIENCE):
        while any(browser.expects.get(topic, 0) < ends[topic] for topic in QUERIES[browser.query]):
            await browser.visit(port, 1 << 30, 0.2)


# -- publishing -------------------------------------------------------------------------------------------------


async def _publish(result: Storm, port: int, chance: random.Random, over: asyncio.Event) -> None:
    """Publish lines of any number to any topic, all the time. What was not answered may be there or not."""
    while not over.is_set():
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                for request, count in _requests(chance):
                    writer.write(request)
                    head = await reader.readuntil(b"\r\n\r\n")
                    await reader.readexactly(_length(head))
                    result.published += count
                    await asyncio.sleep(chance.uniform(0.0, 0.05))
                    if over.is_set():
                        return
            finally:
                writer.close()
        await asyncio.sleep(0.02)


def _requests(chance: random.Random) -> Iterator[tuple[bytes, int]]:
    while True:
        lines = [b"x" * chance.randrange(200) for _ in range(chance.choice([1, 1, 5, 40, 100]))]
        body = b"\n".join(b"%d%b" % (number, line) for number, line in enumerate(lines))
        head = f"POST /topics/{chance.choice(TOPICS)} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        yield head.encode() + b"Content-Type: application/x-ndjson\r\n\r\n" + body, len(lines)


async def _end_of(port: int, topic: str) -> int:
    """The offset behind the last record of a topic."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /topics/{topic}/records?from=-1&limit=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    body = json.loads(await reader.readexactly(_length(head)))
    writer.close()
    if body.get("code") == "unknown_topic":  # no publish reached it: the storm was short
        return 0
    return int(body["records"][-1]["offset"]) + 1


def _length(head: bytes) -> int:
    lines = head.lower().split(b"\r\n")
    return next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length"))


def main() -> int:
    """Both; the exit code."""
    parser = argparse.ArgumentParser(description="let browsers come by the thousand, and lose their streams")
    parser.add_argument("--connections", type=int, default=10_000, help="streams at once")
    parser.add_argument("--browsers", type=int, default=200, help="who come and go")
    parser.add_argument("--disconnects", type=int, default=10_000)
    parser.add_argument("--restarts", type=int, default=12, help="of the server, meanwhile")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="runnel-browsers-") as made:
        many = asyncio.run(at_once(Path(made) / "many", options.connections))
        print(many, *many.broken, sep="\n", flush=True)  # noqa: T201
        stormy = storm(Path(made) / "storm", options.browsers, options.disconnects, options.restarts, options.seed)
        came = asyncio.run(stormy)
    print(came, *came.broken[:20], sep="\n")  # noqa: T201
    return int(bool(many.broken or came.broken))


if __name__ == "__main__":
    sys.exit(main())
