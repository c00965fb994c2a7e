"""A server that is killed all the time, over a network that is bad all the time: `python -m tests.chaos.storm`.

Processes publish, read and work at a server, half of them through a proxy that cuts, tears, delays and freezes their
connections. The server is killed (-9) and started again on its folder, under load, while it opens, as everybody
comes back, as it stops, after it hung; now and then a client is killed. In the end everything is read and drained,
and all that was told is judged. A seed repeats the choices; what the system makes of them differs from run to run.
Exit code 0: all promises were kept; 1: some were not.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import runnel
from runnel.core.dead_letter import POSITION, TOPIC
from runnel.core.position import Position
from runnel.testing import history_events as events
from runnel.testing.history_events import Event
from tests.chaos.proxy import Proxy, Weather
from tests.chaos.storm_judge import Found, judge, notes
from tests.chaos.words import CREW, DEAD, GROUPS, MADE, NAMES, OPTIONS, PUBLISHED, TOPICS, last_of
from tests.crash.kill_worker import Letter, Note
from tests.crash.killing import Broken, parse
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
MANNERS = {"load": 5, "rush": 2, "opening": 2, "closing": 2, "hung": 1}  # how the server dies, and how often each
SERVING = (
    *("--json", "--json-port", "off", "--http-port", "off", "--log-level", "error", "--deadline", "5s"),
    *("--ping", "1s", "--ping-timeout", "1s"),
    *("--journal-segment-bytes", "256KiB", "--journal-tail-bytes", "64KiB"),
)
FSYNC = ("commit", "commit", "interval", "os")  # of each life one: a killed process loses nothing in any of them
CLIENT = "backoff_max=0.3&ping=1&connect_timeout=1&credit=65536"
KILL = -signal.SIGKILL


@dataclass
class Storm:
    """One folder, one port, one seed."""

    seed: int
    kills: int
    folder: Path
    progress: Callable[[str], object] = lambda line: None
    told: list[Event | Note] = field(default_factory=list)
    found: Found = field(default_factory=Found)
    manners: Counter[str] = field(default_factory=Counter)  # of the server's deaths
    client_kills: int = 0
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0
    troubles: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._port = free_port(self._rng)
        self._server: Process | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # of the server; closed when it was read
        self._crew: dict[str, Member] = {}
        self._lives: Counter[str] = Counter()

    # -- the story ----------------------------------------------------------------------------------------------

    async def run(self) -> Storm:
        """Kill until it was often enough, let everything come to its end, and judge."""
        began = time.monotonic()
        for name, (_, topics) in NAMES.items():
            self.told += (events.Subscribed(0.0, name, topic, 0, None) for topic in topics)
            self.told.append(events.Ended(0.0, name, None, None))  # until its first life
        for group, (_, topics) in GROUPS.items():
            self.told += (events.Grouped(0.0, group, topic, 0, None) for topic in topics)
        try:
            await self._serve()
            async with Proxy(self._port, random.Random(self._rng.getrandbits(32))) as proxy:
                self.troubles = proxy.seen
                weather = Weather(proxy, random.Random(self._rng.getrandbits(32)))
                await self._declare()
                for key in CREW:
                    await self._hire(key, proxy)
                for member in self._crew.values():
                    await member.wait("ready")
                bad = asyncio.create_task(weather.run())
                try:
                    while self.manners.total() < self.kills:
                        await self._trouble(proxy)
                        self.progress(str(self))
                finally:
                    bad.cancel()
                    await asyncio.gather(bad, return_exceptions=True)
                await proxy.listen()
                weather.clear()
                await self._end()
            await self._stop()
        except Broken as error:
            self.broken.append(str(error))
        except TimeoutError:
            self.broken.append(f"it did not come to its end in {PATIENCE} s: {self._standing()}")
        finally:
            await self._clean_up()
            self.broken += self._complaints()
        if self.broken:
            self.broken += notes(self.told)
        else:
            await self._read_all()
            self.broken += judge(self.told, self.found)
        self.seconds = time.monotonic() - began
        return self

    async def _trouble(self, proxy: Proxy) -> None:
        """One death of the server; and perhaps of a client."""
        rng = self._rng
        manner = rng.choices(list(MANNERS), list(MANNERS.values()))[0]
        delay, victim = rng.random(), rng.choice(list(CREW)) if rng.random() < 0.3 else None
        server = self._server
        assert server is not None
        if victim is not None:
            await self._dismiss(victim)
            await self._hire(victim, proxy)
        match manner:
            case "load":
                await asyncio.sleep(0.5 + 2.5 * delay)
            case "rush":
                await asyncio.sleep(0.3 * delay)
            case "closing":
                await asyncio.sleep(0.5 + delay)
                server.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.3 * delay)
            case "hung":
                await asyncio.sleep(0.5)
                server.send_signal(signal.SIGSTOP)
                await asyncio.sleep(3.0 * delay)
            case "opening":
                await asyncio.sleep(0.5 + delay)
        await self._kill(manner)
        if manner == "opening" and self.manners.total() < self.kills:
            await self._start()
            await asyncio.sleep(0.8 * delay)
            await self._kill(manner)
        await self._serve()

    async def _end(self) -> None:
        """No more is published; everybody reads to the end, and groups settle everything."""
        for member in self._crew.values():
            member.say(b"stop\n")
        async with runnel.open(f"runnel://127.0.0.1:{self._port}?timeout=none") as broker, asyncio.timeout(PATIENCE):
            for key in ("p", "q"):
                await self._crew[key].ended()
            for topic in PUBLISHED:
                await self._publish_last(broker, topic)
            for group, (pattern, _) in GROUPS.items():
                # Publishing has ended: what is left only becomes less.
                while (left := await asyncio.to_thread(_left, broker, group, pattern)) != 0:
                    self.progress(f"{group} has {left} left")
                    await asyncio.sleep(0.2)
            for topic in MADE:
                await self._publish_last(broker, topic)
            for key in ("r", "s"):
                await self._crew[key].ended()
            for key in ("m", "n"):
                self._crew[key].say(b"finish\n")
                await self._crew[key].ended()

    async def _publish_last(self, broker: runnel.Broker, topic: str) -> None:
        letter = Letter(last_of(topic))
        self.told.append(events.Intended(time.monotonic(), topic, letter.id, "end"))
        position = await broker.publish(topic, letter.value, key=letter.key, headers=letter.headers)
        self.told.append(events.Acknowledged(time.monotonic(), topic, letter.id, position.epoch, position.offset))

    async def _read_all(self) -> None:
        """Open the folder here, and read what there is."""
        async with runnel.open(self.folder) as broker:
            for topic in TOPICS:
                who = f"last.{topic}"
                async with broker.subscribe(topic, start="earliest") as records:
                    self.told.append(events.Subscribed(time.monotonic(), who, topic, 0, None))
                    async for record in records:
                        place, id = (topic, record.epoch, record.offset), Letter.id_of(record.value)
                        self.told.append(events.Delivered(time.monotonic(), who, *place, id, record.sequence))
                        self.found.held[place] = id
                        if record.key is not None:
                            self.found.keys[place] = record.key
                        if id == last_of(topic):
                            break
            if DEAD in await broker.topics():
                await broker.publish(DEAD, b"end")
                async with broker.subscribe(DEAD, start="earliest") as letters:
                    async for letter in letters:
                        if letter.value == b"end":
                            break
                        position = Position.parse(letter.headers[POSITION])
                        self.found.dead.append((letter.headers[TOPIC], position.epoch, position.offset))

    # -- the server ---------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        where = ("--data", str(self.folder), "--port", str(self._port), "--fsync", self._rng.choice(FSYNC))
        self._server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "runnel", "serve", *where, *SERVING),
            cwd=ROOT,
            env=_environment(),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=self._errors,
        )

    async def _serve(self) -> None:
        """Start it, and return when its doors are open."""
        await self._start()
        server = self._server
        assert server is not None
        assert server.stdout is not None
        async with asyncio.timeout(PATIENCE):
            if not await server.stdout.readline():
                raise Broken(f"the server ended by itself, with code {await server.wait()}")

    async def _kill(self, manner: str) -> None:
        server = self._server
        assert server is not None
        with suppress(ProcessLookupError):
            server.kill()
        code = await server.wait()
        self.told.append(events.Restarted(time.monotonic()))
        if code == KILL or (manner == "closing" and code == 0):
            self.manners[manner] += code == KILL
        else:
            raise Broken(f"the server ended by itself, with code {code} ({manner})")

    async def _stop(self) -> None:
        """The last one stops as it should."""
        server = self._server
        assert server is not None
        server.terminate()
        async with asyncio.timeout(PATIENCE):
            if code := await server.wait():
                self.broken.append(f"the server stopped with code {code}")

    async def _declare(self) -> None:
        async with runnel.open(f"runnel://127.0.0.1:{self._port}") as broker:
            for topic in TOPICS:
                await broker.topic(topic, **OPTIONS.get(topic, {})).declare()

    # -- the clients --------------------------------------------------------------------------------------------

    async def _hire(self, key: str, proxy: Proxy) -> None:
        through, roles = CREW[key]
        self._lives[key] += 1
        url = f"runnel://127.0.0.1:{proxy.port if through else self._port}?{CLIENT}"
        member = Member(f"{key}{self._lives[key]}", self.told)
        await member.start(url, self._rng.getrandbits(32), roles)
        self._crew[key] = member

    async def _dismiss(self, key: str) -> None:
        """Kill a client, and say what its death means."""
        member = self._crew[key]
        with suppress(ProcessLookupError):
            member.process.kill()
        code = await member.finished()
        if code != KILL:
            raise Broken(f"client {member.who} ended by itself, with code {code}")
        self.client_kills += 1
        readers = {said.subscriber for said in member.own if isinstance(said, events.Subscribed | events.Resumed)}
        self.told += (events.Ended(time.monotonic(), reader, None, None) for reader in sorted(readers))

    async def _clean_up(self) -> None:
        for process in (self._server, *(member.process for member in self._crew.values())):
            if process is not None and process.returncode is None:
                process.kill()
        if self._server is not None:
            await self._server.wait()
        for member in self._crew.values():
            await member.finished()

    def _complaints(self) -> list[str]:
        """What the server had to say on its error stream: it logs nothing there but its own faults."""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace")
        self._errors.close()
        return [f"the server said:\n{said[:2000]}"] if said else []

    # -- what came of it ----------------------------------------------------------------------------------------

    @property
    def reconnects(self) -> int:
        """How often a client came back."""
        connected = sum(1 for said in self.told if isinstance(said, Note) and said.what == "connected")
        return connected - self._lives.total()

    @property
    def longest_outage(self) -> float:
        """The longest time that a client was without a connection, in seconds."""
        lost: dict[str, float] = {}
        longest = 0.0
        for said in self.told:
            if isinstance(said, Note) and said.what == "reconnecting":
                lost.setdefault(said.who, said.at)
            elif isinstance(said, Note) and said.what == "connected" and said.who in lost:
                longest = max(longest, said.at - lost.pop(said.who))
        return longest

    def _standing(self) -> str:
        """Who has not ended, for whoever looks into why."""
        return ", ".join(who.who for who in self._crew.values() if who.process.returncode is None) or "the server"

    def __str__(self) -> str:
        how = ", ".join(f"{count} {manner}" for manner, count in sorted(self.manners.items()))
        bad = ", ".join(f"{count} {trouble}" for trouble, count in sorted(self.troubles.items()))
        kinds = Counter(type(said).__name__ for said in self.told)
        unknown = sum(1 for said in self.told if isinstance(said, Note) and said.what == "unknown")
        return (
            f"{self.manners.total()} kills of the server ({how}), {self.client_kills} of clients; connections {bad}; "
            f"{self.reconnects:,} reconnects, longest outage {self.longest_outage:.1f} s; "
            f"{kinds['Intended']:,} publishes, {len(self.found.held):,} records in the end, "
            f"{kinds['Delivered']:,} deliveries, {kinds['Leased']:,} leases, {unknown} transactions tried again; "
            f"{len(self.broken)} violations"
        )


class Member:
    """A client's process, and all it told."""

    process: Process

    def __init__(self, who: str, told: list[Event | Note]) -> None:
        self.who = who
        self.own: list[Event | Note] = []
        self._told, self._more, self._over = told, asyncio.Event(), False

    async def start(self, url: str, seed: int, roles: Sequence[str]) -> None:
        """Begin."""
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.client", url, "--who", self.who, "--seed", str(seed), *roles),
            cwd=ROOT,
            env=_environment(),
            stdin=PIPE,
            stdout=PIPE,
            limit=1 << 24,
        )
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break  # cut short by the kill
            said = parse(line)
            self.own.append(said)
            self._told.append(said)
            self._more.set()
        self._over = True
        self._more.set()

    def say(self, command: bytes) -> None:
        """Tell it something."""
        assert self.process.stdin is not None
        self.process.stdin.write(command)

    async def wait(self, what: str) -> None:
        """Return when it has told that."""
        async with asyncio.timeout(PATIENCE):
            while not any(isinstance(said, Note) and said.what == what for said in self.own):
                if self._over:
                    raise Broken(f"client {self.who} ended before it was {what}")
                self._more.clear()
                await self._more.wait()

    async def ended(self) -> None:
        """Return when it has come to its end, which has to be a good one."""
        if code := await self.finished():
            raise Broken(f"client {self.who} ended with code {code}")

    async def finished(self) -> int:
        """Have all it told, once it is dead; its exit code."""
        code = await self.process.wait()
        await self._listening
        if self.process.stdin is not None:
            self.process.stdin.close()
        return code


def _left(broker: runnel.Broker, group: str, pattern: str) -> int:
    return broker.group(group, pattern).statistics().lag


def _environment() -> dict[str, str]:
    # A killed process has nothing to say about coverage, and is slower for being measured.
    return {name: value for name, value in os.environ.items() if not name.startswith(("COV", "RUNNEL"))}


def free_port(rng: random.Random) -> int:
    """A port to come back to: one that the system gives to nobody who connects somewhere while it is free."""
    while True:
        port = rng.randrange(20_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


def storm(seed: int, kills: int, progress: Callable[[str], object], *, keep: bool = False) -> Storm:
    """One storm, in a folder of its own. Whatever goes wrong is in what came of it."""
    folder = tempfile.mkdtemp(prefix=f"runnel-storm-{seed}-")
    made = Storm(seed, kills, Path(folder) / "data", progress)
    asyncio.run(made.run())
    if keep and made.broken:
        Path(folder, "told.jsonl").write_bytes(b"".join(msgspec.json.encode(said) + b"\n" for said in made.told))
        say(f"the folder is kept: {folder}")
    else:
        shutil.rmtree(folder)
    return made


def say(line: str) -> None:
    """Tell at once: a storm takes its time."""
    print(line, flush=True)  # noqa: T201


def main(arguments: Sequence[str] | None = None) -> int:
    """Storm; the exit code."""
    parser = argparse.ArgumentParser(description="kill a server over a bad network, again and again")
    parser.add_argument("--kills", type=int, default=25, help="how many, of the server")
    parser.add_argument("--seed", type=int, default=1, help="what to begin with, or to try again")
    parser.add_argument("--storms", type=int, default=1, help="how many, each with a seed one higher")
    parser.add_argument("--keep", action="store_true", help="keep the folder, and all that was told, if it failed")
    options = parser.parse_args(arguments)
    failed = 0
    for seed in range(options.seed, options.seed + options.storms):
        last = [0.0]

        def tell(line: str, last: list[float] = last) -> None:
            if time.monotonic() - last[0] > 5:
                last[0] = time.monotonic()
                say(f"  {line}")

        made = storm(seed, options.kills, tell, keep=options.keep)
        say(f"seed {seed}, {made.seconds:.0f} s: {made}")
        if made.broken:
            failed += 1
            say("VIOLATION: " + "\n  ".join(made.broken)[:6000])
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
