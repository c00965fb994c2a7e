"""Several workers in one folder, killed and checked: `python -m tests.opening.kill_workers --kills 20`."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

import runnel
from runnel.journal.folder_lock import recorded_owner
from runnel.testing import history_events as events
from runnel.testing.history import History
from tests.opening.folder_worker import TOPIC, Work
from tests.patience import PATIENCE
from tests.project.project import ROOT


class Crew:
    """Workers, by name. `notes` is where they tell what they did."""

    def __init__(self, folder: Path, notes: Path) -> None:
        self.folder, self.notes = folder, notes
        self.workers: dict[str, subprocess.Popen[str]] = {}
        self.killed: list[str] = []
        self.deaths: list[float] = []  # when owners were killed
        self._names = (f"w{n}" for n in itertools.count(1))
        notes.mkdir(parents=True, exist_ok=True)

    def start(self, count: int = 1) -> None:
        """Start workers; return when they work."""
        command = [sys.executable, "-m", "tests.opening.folder_worker", str(self.folder), str(self.notes)]
        begun = [next(self._names) for _ in range(count)]
        for name in begun:
            self.workers[name] = subprocess.Popen([*command, name], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for name in begun:
            out = self.workers[name].stdout
            assert out is not None
            assert out.readline() == "ready\n", f"{name} did not come up"

    def owner(self) -> str | None:
        """The worker who owns the folder."""
        pid = recorded_owner(self.folder).pid
        return next((name for name, one in self.workers.items() if one.pid == pid), None)

    def kill(self, name: str) -> None:
        """kill -9."""
        is_owner = name == self.owner()
        worker = self.workers.pop(name)
        if is_owner:
            self.deaths.append(time.monotonic())
        worker.kill()
        worker.wait()
        assert worker.stdout is not None
        worker.stdout.close()
        self.killed.append(name)

    def stop(self) -> list[int]:
        """Have everybody close properly; their exit codes."""
        for worker in self.workers.values():
            worker.send_signal(signal.SIGTERM)
        codes = []
        for worker in self.workers.values():
            codes.append(worker.wait(PATIENCE))
            assert worker.stdout is not None
            worker.stdout.close()
        return codes

    def end(self) -> None:
        """Leave no process behind, whatever happened."""
        for worker in self.workers.values():
            if worker.poll() is None:
                worker.kill()
                worker.wait()
            if worker.stdout is not None:
                worker.stdout.close()

    # -- judging ------------------------------------------------------------------------------------------------

    def history(self) -> History:
        """What all of them told."""
        files = sorted(self.notes.glob("*.history"))
        told = History.read(line for file in files for line in file.read_bytes().splitlines(keepends=True))
        for name in self.killed:
            told.ended(name)
        return told

    async def judged(self) -> History:
        """The history, with all that lies in the folder in the end."""
        told = self.history()
        async with runnel.open(self.folder) as broker:
            end = broker.statistics().topics[TOPIC].end
            told.subscribed("in the end", TOPIC, 0)
            async with broker.subscribe(TOPIC, start="earliest", strict=True) as records:
                async for record in records:
                    told.saw("in the end", record)
                    if record.offset == end - 1:
                        break
            told.ended("in the end", TOPIC, end)
        return told

    def worked(self) -> list[Work]:
        """What the members of the group did, in the order of time."""
        decode = msgspec.json.Decoder(Work).decode
        lines = [line for file in self.notes.glob("*.work") for line in file.read_bytes().splitlines(keepends=True)]
        return sorted((decode(line) for line in lines if line.endswith(b"\n")), key=lambda one: one.at)

    def takeovers(self, told: History) -> list[float]:
        """How long after the death of each owner somebody's next publish was answered, that began after it."""
        begun = {one.id: one.at for one in told.events if isinstance(one, events.Intended)}
        answered = sorted((one.at, begun[one.id]) for one in told.events if isinstance(one, events.Acknowledged))
        found = (next((at - death for at, since in answered if since > death), float("inf")) for death in self.deaths)
        return list(found)


def redelivered(worked: list[Work]) -> list[int]:
    """Offsets that somebody got although their ack was confirmed before."""
    acked: dict[int, float] = {}
    wrong = []
    for one in worked:
        if one.what == "acked":
            acked.setdefault(one.offset, one.at)
        elif one.offset in acked:
            wrong.append(one.offset)
    return wrong


def until(condition: Callable[[], bool]) -> None:
    """Return when it is so, however busy the machine is."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.05)


def chaos(folder: Path, notes: Path, *, kills: int, workers: int = 4, seed: int = 1, pause: float = 0.3) -> Crew:
    """Kill workers, every other time the owner; each is replaced. Then stop the rest properly."""
    chosen = random.Random(seed)
    crew = Crew(folder, notes)
    try:
        crew.start(workers)
        for number in range(kills):
            time.sleep(pause * chosen.uniform(0.5, 1.5))  # under load, for a while: not a wait for anything
            if number % 2 == 0:
                until(lambda: crew.owner() is not None)
            name = (crew.owner() if number % 2 == 0 else None) or chosen.choice(list(crew.workers))
            crew.kill(name)
            crew.start()
        until(lambda: max(crew.takeovers(crew.history()), default=0.0) < float("inf"))
        until(lambda: any(one.what == "acked" for one in crew.worked()))
        assert crew.stop() == [0] * workers
    finally:
        crew.end()
    return crew


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="runnel-crew-", dir=os.environ.get("TMPDIR")) as place:
        crew = chaos(Path(place) / "data", Path(place) / "notes", kills=chosen.kills, seed=chosen.seed)
        told = asyncio.run(crew.judged())
        verdict, worked = told.check(), crew.worked()
        took = sorted(crew.takeovers(told))
        acks = sum(isinstance(one, events.Acknowledged) for one in told.events)
        report = [
            f"{chosen.kills} killed, {len(took)} of them owners; {acks} publishes acknowledged",
            f"taken over after (ms): {', '.join(f'{1000 * one:.0f}' for one in took)}",
            f"the group acked {sum(one.what == 'acked' for one in worked)}, redelivered {len(redelivered(worked))}",
            f"{verdict}",
        ]
        sys.stdout.write("\n".join(report) + "\n")
    return 0 if verdict.clean and not redelivered(worked) else 1


if __name__ == "__main__":
    raise SystemExit(main())
