"""Kills a process that publishes and consumes, again and again: `python -m tests.crash.killing --kills 1000`.

A trial is a folder and a seed: a worker is started on the folder, killed at a moment that the seed chooses (while it
opens, under load, as a segment rolls, as it closes), and started again; sometimes another process looks at the folder
meanwhile. In the end the folder is opened here, read, drained, and all that was told is judged. The seed repeats the
choices; what the system makes of them differs from run to run.
Exit code 0: all promises were kept; 1: some were not.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import msgspec

import runnel
from runnel import Broker
from runnel.core.dead_letter import POSITION, TOPIC
from runnel.core.position import Position
from runnel.core.record import Gap
from runnel.journal.read.inspection import Inspection
from runnel.testing import history_events as events
from runnel.testing.history_events import Event
from tests.crash.kill_judge import Found, Told, judge
from tests.crash.kill_worker import (
    AUDIT,
    BILLING,
    CACHE,
    DEAD,
    DURABLE,
    FOR_EVER,
    GROUPS,
    JOBS,
    MIRRORED,
    NAMES,
    OPTIONS,
    TRANSFORMED,
    Letter,
    Life,
    Note,
    Report,
)
from tests.crash.transforming import PAY, PAYERS, Payer
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
MOMENTS = {"opening": 2, "load": 4, "roll": 2, "closing": 2}  # when to kill, and how often each
DELAYS = {"opening": 0.05, "load": 0.15, "roll": 0.0, "closing": 0.006}  # at most so many seconds after that
KILLS = 8  # of a trial


class Broken(AssertionError):
    """A trial found a promise that was not kept."""


# -- one worker -----------------------------------------------------------------------------------------------------


def parse(line: bytes) -> Event | Note:
    """A line of a worker."""
    if line.startswith(b"{"):
        return msgspec.json.decode(line, type=Note)
    found: Event = events.decode(line)
    return found


class Worker:
    """A process that works, and all it has told so far."""

    def __init__(self, arguments: Sequence[str]) -> None:
        # A killed process has nothing to say about coverage, and is slower for being measured.
        env = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        self.told: list[Event | Note] = []
        self.notes: dict[str, int] = {}
        self._more = threading.Condition()
        self._over = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by let_go
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.kill_worker", *arguments],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break  # cut short by the kill
            said = parse(line)
            with self._more:
                self.told.append(said)
                if isinstance(said, Note):
                    self.notes[said.what] = len(self.told)
                    self._more.notify_all()
        with self._more:
            self._over = True
            self._more.notify_all()

    def wait(self, what: str) -> bool:
        """Return when the worker has told that; False: it ended without a word of it."""
        with self._more:
            if not self._more.wait_for(lambda: what in self.notes or self._over, PATIENCE):
                self.kill()
                raise Broken(f"the worker did not come to {what!r}; it had told {self.notes}\n{self.errors()}")
            return what in self.notes

    def close(self) -> None:
        """Ask it to close its broker."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(b"close\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it is gone already

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)  # it is not reaped yet, so its pid is its own

    def end(self) -> int:
        """Have all it told, once it is dead; its exit code."""
        code = self.process.wait(PATIENCE)
        self._thread.join(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        return code

    def errors(self) -> str:
        """What it printed as errors."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-4000:]

    def let_go(self) -> None:
        self._errors.close()


# -- one trial ------------------------------------------------------------------------------------------------------


@dataclass
class Trial:
    """One folder, killed again and again."""

    seed: int
    kills: int
    folder: Path
    moments: Counter[str] = field(default_factory=Counter)
    told: Told = field(default_factory=Told)
    broken: list[str] = field(default_factory=list)
    recovering: list[float] = field(default_factory=list)  # seconds that openings took
    inspections: int = 0
    found: Found = field(default_factory=Found)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._life = 0
        self._seen: Inspection | None = None

    def run(self) -> Trial:
        """Kill until it was often enough, then judge."""
        self._say(*(events.Subscribed(0.0, name, topic, 0, None) for name in NAMES for topic in self._topics(name)))
        self._say(*(events.Ended(0.0, name, None, None) for name in NAMES))  # until its first life
        self._say(*(events.Grouped(0.0, group, t, 0, None) for group, (_, topics) in GROUPS.items() for t in topics))
        try:
            while sum(self.moments.values()) < self.kills:
                self._live()
        finally:
            self._look_away()
        asyncio.run(self._last_life())
        self.broken += judge(self.told, self.found)
        return self

    @staticmethod
    def _topics(name: str) -> Sequence[str]:
        return MIRRORED if name == "mirror" else (NAMES[name],)

    def _say(self, *said: Event | Note) -> None:
        for one in said:
            self.told.add(self._life, one)

    def _start(self) -> tuple[Worker, bool]:
        """A worker, and whether it syncs every commit."""
        self._life += 1
        rng = self.rng
        options = {
            "segment_bytes": rng.choice([8192, 16384, 65536]),
            "tail_bytes": rng.choice([2048, 16384, 1 << 20]),
            "fsync": rng.choice(["commit", "commit", "commit", "interval", "os"]),
        }
        # One draw each, whatever happened so far: a seed makes the same choices every time.
        known = self.told.offsets(JOBS) or [0]
        start = known[int(rng.random() * len(known))]
        arguments = ["--life", str(self._life), "--seed", str(rng.getrandbits(32)), "--start", str(start)]
        worker = Worker([str(self.folder), *arguments, "--options", msgspec.json.encode(options).decode()])
        return worker, options["fsync"] == "commit"

    def _live(self) -> None:
        """One life, from start to kill."""
        moment = self.rng.choices(list(MOMENTS), list(MOMENTS.values()))[0]
        delay = self.rng.random() * DELAYS[moment]
        looking = moment == "load" and self.rng.random() < 0.5
        worker, synced = self._start()
        try:
            alive = worker.wait("opening" if moment == "opening" else "ready")
            if self._seen is not None:  # since before its owner was killed; meanwhile another one owns the folder
                self._read([], f"life {self._life}: an inspection of the life before")
                self._look_away()
            if alive and looking:
                self._inspect(worker, synced)
            if alive and moment == "roll":
                self._until_rolling(worker)
            if alive and moment == "closing":
                worker.close()
                worker.wait("closing")
            time.sleep(delay)  # the moment of the kill, chosen by the seed: nothing is waited for
            worker.kill()
            self._account(worker, worker.end(), moment)
            if self._seen is not None:
                self._read([], f"life {self._life}: after its owner was killed, an inspection")
        finally:
            if worker.process.poll() is None:
                worker.kill()
                worker.end()
            worker.let_go()

    def _until_rolling(self, worker: Worker) -> None:
        """Return when a file appears that was not there: a segment rolls, a checkpoint is being written."""
        before = set(os.listdir(self.folder))
        until = time.monotonic() + PATIENCE
        while before.issuperset(os.listdir(self.folder)) and worker.process.poll() is None:
            if time.monotonic() > until:
                raise Broken(f"seed {self.seed}: no segment rolled in {PATIENCE} s of load")

    def _account(self, worker: Worker, code: int, moment: str) -> None:
        """A life is over: keep what it told, and say what its death means."""
        self._say(*worker.told)
        notes = [said for said in worker.told if isinstance(said, Note)]
        at = {said.what: said.at for said in notes}
        if "opened" in at:
            self.recovering.append(at["opened"] - at["opening"])
        if code == -signal.SIGKILL:
            self.moments[moment] += 1
        elif code or "ended" not in at:
            self.broken.append(f"life {self._life} ended by itself with code {code}:\n{worker.errors()}")
        now = time.monotonic()
        members = {(said.group, said.member) for said in worker.told if isinstance(said, events.Leased)}
        self._say(*(events.Left(now, group, member) for group, member in members))
        readers = {said.subscriber for said in worker.told if isinstance(said, events.Subscribed | events.Resumed)}
        self._say(*(events.Ended(now, reader, None, None) for reader in sorted(readers)), events.Restarted(now))
        if self.broken:
            raise Broken("\n".join(self.broken))

    # -- somebody else who looks --------------------------------------------------------------------------------

    def _inspect(self, worker: Worker, synced: bool) -> None:
        """Look at the folder while the worker works: all that was acknowledged before is seen."""
        told = worker.told[:] if synced else []
        owed = [said for said in told if isinstance(said, events.Acknowledged) and said.topic in FOR_EVER]
        self._seen = Inspection(self.folder).__enter__()
        self.inspections += 1
        self._read(owed, f"life {self._life}: an inspection")

    def _look_away(self) -> None:
        if self._seen is not None:
            self._seen.close()
            self._seen = None

    def _read(self, owed: Sequence[events.Acknowledged], who: str) -> None:
        assert self._seen is not None
        if doubled := [name for name, count in Counter(one.name for one in self._seen.topics).items() if count > 1]:
            self.broken.append(f"{who} found more than one topic of the name {doubled}")
        found: dict[tuple[str, int, int], str] = {}
        for record in self._seen.read(*DURABLE):
            if isinstance(record, Gap):
                self.broken.append(f"{who} met a gap: {record}")
                continue
            letter = Letter(Letter.id_of(record.value))
            if wrong := letter.differs(record):
                self.broken.append(f"{who} read at {record.position} of {record.topic}: {wrong}")
            found[record.topic, record.epoch, record.offset] = letter.id
        for place, id in self.told.acknowledged.items():
            if place in found and found[place] != id:
                self.broken.append(f"{who} read {found[place]} at {place}, where {id} was acknowledged")
        for said in owed:
            if (there := found.get((said.topic, int(said.epoch), said.offset))) != said.id:
                self.broken.append(f"{who} found {there} instead of {said.id}, which was acknowledged before")

    # -- the end ------------------------------------------------------------------------------------------------

    async def _last_life(self) -> None:
        """Open the folder here, let every name and group come to the end, and read what there is."""
        self._life += 1
        report, found = Report(lambda line: self._say(parse(line))), self.found
        try:
            async with asyncio.timeout(PATIENCE), runnel.open(self.folder) as broker:
                life = Life(broker, report, str(self._life), self.rng)
                ends = [f"end.{topic}" for topic in (*DURABLE, CACHE)]
                reading = [asyncio.create_task(self._read_out(broker, report, name)) for name in NAMES]
                await asyncio.sleep(0)
                for topic, id in zip((*DURABLE, CACHE), ends, strict=True):
                    await broker.topic(topic, **OPTIONS.get(topic, {})).declare()
                    await life.publish("end", topic, id)
                # The last one of a pattern comes behind all others: the mirror reads up to it.
                await asyncio.gather(*reading, *(self._read_all(broker, report, topic, found) for topic in DURABLE))
                await asyncio.gather(
                    self._drain(broker, life, BILLING), self._drain(broker, life, AUDIT), self._pay(broker, life)
                )
                await self._read_dead(broker, found)
                for topic in TRANSFORMED:
                    await life.publish("end", topic, f"end.{topic}")
                    await self._read_all(broker, report, topic, found)
                found.marks = dict(await broker.marks())
        except TimeoutError:
            self.broken.append(f"seed {self.seed}: the last life did not come to its end in {PATIENCE} s")

    @staticmethod
    async def _read_out(broker: Broker, report: Report, name: str) -> None:
        """A name reads on, until it has everything."""
        last = f"end.{CACHE}" if name == "mirror" else f"end.{NAMES[name]}"
        async with broker.subscribe(NAMES[name], name=name) as records:
            for topic in Trial._topics(name):
                report.history.resumed(name, topic)
            async for record in records:
                report.saw(name, record)
                if Letter.id_of(record.value) == last:
                    return

    @staticmethod
    async def _read_all(broker: Broker, report: Report, topic: str, found: Found) -> None:
        """A newcomer reads a topic from its beginning."""
        who = f"last.{topic}"
        async with broker.subscribe(topic, start="earliest") as records:
            report.history.subscribed(who, topic, 0)
            async for record in records:
                report.saw(who, record)
                place = (topic, record.epoch, record.offset)
                found.held[place] = Letter.id_of(record.value)
                if record.key is not None:
                    found.keys[place] = record.key
                if Letter.id_of(record.value) == f"end.{topic}":
                    return

    @staticmethod
    async def _drain(broker: Broker, life: Life, group: str) -> None:
        """A group works until nothing is left."""
        pattern, topics = GROUPS[group]
        async with broker.subscribe(pattern, group=group, name=f"last.{group}") as deliveries:
            async for delivery in deliveries:
                life.drain(group, f"last.{group}", delivery)
                if not broker.group(group, pattern).statistics().lag:
                    break
        await asyncio.sleep(0)
        for topic in topics:
            life.history.drained(group, topic)

    @staticmethod
    async def _pay(broker: Broker, life: Life) -> None:
        """What is left to be paid is paid."""
        payer = Payer(life, "last")
        async with broker.subscribe(PAY, group=PAYERS, name=payer.who) as deliveries:
            async for delivery in deliveries:
                life.lease(PAYERS, payer.who, delivery)
                await payer.pay([delivery])
                if not broker.group(PAYERS, PAY).statistics().lag:
                    break
        life.history.drained(PAYERS, PAY)

    @staticmethod
    async def _read_dead(broker: Broker, found: Found) -> None:
        if DEAD not in await broker.topics():
            return
        await broker.publish(DEAD, b"end")
        async with broker.subscribe(DEAD, start="earliest") as letters:
            async for letter in letters:
                if letter.value == b"end":
                    return
                position = Position.parse(letter.headers[POSITION])
                found.dead.append((letter.headers[TOPIC], position.epoch, position.offset))


# -- many trials ----------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """What came of one trial, or of many."""

    seed: int
    trials: int = 0
    moments: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    events: int = 0
    inspections: int = 0
    slowest: float = 0.0  # seconds that an opening took
    broken: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @property
    def kills(self) -> int:
        return sum(self.moments.values())

    def add(self, other: Result) -> None:
        self.trials += other.trials
        self.moments += other.moments
        self.acknowledged += other.acknowledged
        self.events += other.events
        self.inspections += other.inspections
        self.slowest = max(self.slowest, other.slowest)
        self.broken += other.broken

    def __str__(self) -> str:
        when = ", ".join(f"{count} {moment}" for moment, count in sorted(self.moments.items()))
        return (
            f"{time.monotonic() - self.began:6.0f} s  {self.kills:,} kills ({when}) in {self.trials} trials, "
            f"{self.acknowledged:,} records acknowledged, {self.events:,} events, {self.inspections} inspections, "
            f"slowest opening {1000 * self.slowest:.0f} ms, {len(self.broken)} violations"
        )


def attempt(seed: int, kills: int = KILLS, *, keep: bool = False) -> Result:
    """One trial in a folder of its own. Whatever goes wrong is in what came of it."""
    folder = tempfile.mkdtemp(prefix=f"runnel-kill-{seed}-")
    trial = Trial(seed, kills, Path(folder) / "data")
    try:
        trial.run()
    except Broken as error:
        trial.broken = trial.broken or [str(error)]
    except Exception:
        trial.broken.append(traceback.format_exc())
    if keep and trial.broken:
        say(f"the folder is kept: {folder}")
    else:
        shutil.rmtree(folder)
    told, slowest = trial.told, max(trial.recovering, default=0.0)
    counts = (len(told.acknowledged), len(told.lines), trial.inspections)
    return Result(seed, 1, trial.moments, *counts, slowest, trial.broken)


def torture(kills: int, seed: int, progress: Callable[[str], object], jobs: int | None = None) -> Result:
    """Trials from `seed` on until so many kills were made; what came of them."""
    tally = Result(seed)
    told = time.monotonic()
    with ProcessPoolExecutor(jobs or os.cpu_count(), get_context("spawn")) as pool:
        for done in as_completed([pool.submit(attempt, seed + n) for n in range(-(-kills // KILLS))]):
            result = done.result()
            tally.add(result)
            if result.broken:
                progress(f"VIOLATION, tried again with --seed {result.seed}: " + "\n  ".join(result.broken)[:3000])
            if time.monotonic() - told > 5:
                told = time.monotonic()
                progress(str(tally))
    return tally


def say(line: str) -> None:
    """Tell at once: torture takes its time."""
    print(line, flush=True)  # noqa: T201


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill; the exit code."""
    parser = argparse.ArgumentParser(description="kill -9 a process that publishes and consumes, again and again")
    parser.add_argument("--kills", type=int, default=1_000, help="how many at least")
    parser.add_argument("--seed", type=int, help="try this one again")
    parser.add_argument("--first", type=int, default=1, help="the seed to begin with")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many trials at once")
    parser.add_argument("--keep", action="store_true", help="with --seed: keep the folder of a trial that failed")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        trial = attempt(options.seed, keep=options.keep)
        say("\n".join(trial.broken)[:6000] or f"{trial}, all well")
        return int(bool(trial.broken))
    tally = torture(options.kills, options.first, say, options.jobs)
    say(str(tally))
    return int(bool(tally.broken))


if __name__ == "__main__":
    sys.exit(main())
