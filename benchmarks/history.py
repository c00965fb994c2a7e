"""How much history costs.

How long does it take to open a folder of 10 GB, closed or killed, and does memory grow with what it holds?
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.disk import bare_fsync, where
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.load import BATCH

SECONDS, MEGABYTES = "s to open", "MB anonymous"
A_RECORD = 115  # bytes on disk, at most, of a value of 100
ROOM = 1.3
REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Loads:
    """How much history there is."""

    records: int = 100_000_000  # of 100 B: with what surrounds them, a little more than 10 GB
    few: int = 1_000_000  # what `records` is compared with
    tail: int = 500_000  # written since the last opening, when the process is killed: most of a segment
    along: int = 1_000_000  # published while somebody reads along: more than the tail that is kept in memory
    topics: int = 100_000
    fsyncs: int = 100


QUICK = Loads(records=2_000_000, few=100_000, tail=20_000, along=700_000, topics=10_000, fsyncs=30)


class NoRoom(Exception):
    """The disk is too small for the folders of this question."""

    def __init__(self, folder: Path, free: int, needed: int) -> None:
        super().__init__(f"{folder} has {free / 1e9:.1f} GB free, and {needed / 1e9:.1f} GB are needed; try --quick")


def question(*, quick: bool = False, folder: Path, loads: Loads | None = None) -> Question:
    """One large folder, a small one, and one with very many topics; each is written when it is first needed."""
    loads = loads or (QUICK if quick else Loads())
    large = Folder(folder / "large", loads.records)
    small = Folder(folder / "small", loads.few)
    many = Folder(folder / "topics", 0, loads.topics)
    empty = Folder(folder / "empty", 0)
    size = f"{loads.records * 100 / 1e9:g} GB"
    closed, killed = f"{size}, closed", f"{size}, killed"
    few, much = f"{loads.few:,} records", f"{loads.records:,} records"
    topics = f"{loads.topics:,} topics"

    def contender(name: str, one: Folder, task: str, call: str, league: str) -> Contender:
        return Contender(name, partial(_measured, one, task, loads), call, league, needs=("runnel",))

    opened = "async with runnel.open(folder)"
    along = 'the same; subscribe("t", start="earliest").batches(): batch.values; publish_many beside it'
    return Question(
        name="history",
        text=asked(__doc__),
        ranked=SECONDS,
        contenders=[
            contender(closed, large, "open", opened, "opening"),
            contender(killed, large, "killed", opened, "opening"),
            contender("nothing", empty, "open", opened, "memory, opened"),
            contender(topics, many, "open", opened, "memory, opened"),
            contender(few, small, "read", along, "memory, read from the beginning, then along"),
            contender(much, large, "read", along, "memory, read from the beginning, then along"),
        ],
        aims=[
            Aim(closed, SECONDS, at_most=1),
            Aim(killed, SECONDS, at_most=1),
            Aim(much, MEGABYTES, at_most=300),
            Aim(topics, MEGABYTES, at_most=200),
        ],
        notes=[
            where(folder),
            "random values of 100 B in one topic, by publish_many of 1,000, 4 at a time; the many topics have one each",
            f"killed: SIGKILL after {loads.tail:,} more records from 64 tasks, each synced and acknowledged; the clock",
            "runs for the opening after it, and all of them are there again",
            'opened with fsync="commit", crc on, page cache warm; each time by a process of its own',
            "MB anonymous: RssAnon of that process, Python itself and its modules included (see: nothing); the most",
            f"that was seen: after opening, while reading all, and while {loads.along:,} more, no two of them the same",
            "object, were published and read along; by batch, every value in hand",
        ],
    )


class Folder:
    """A folder of a given history. What measurements add to it is counted."""

    def __init__(self, path: Path, records: int, topics: int = 0) -> None:
        self.path, self.records, self.topics = path, records, topics
        self._written = False

    async def written(self) -> None:
        """Return when it is there; only the first time takes long."""
        if self._written:
            return
        needed = int((self.records * A_RECORD + self.topics * 2_000) * ROOM) + (256 << 20)
        if (free := shutil.disk_usage(self.path.parent).free) < needed:
            raise NoRoom(self.path.parent, free, needed)
        await _apart("write", self.path, self.records, self.topics)
        self._written = True


async def _measured(one: Folder, task: str, loads: Loads) -> Figures:
    await one.written()
    disk = bare_fsync(one.path.parent, loads.fsyncs)
    if task == "killed":
        await _apart("die", one.path, loads.tail, 0, ends=-signal.SIGKILL)
        one.records += loads.tail
        task = "open"
    more = loads.along if task == "read" else one.topics
    found = await _apart(task, one.path, one.records, more)
    if task == "read":
        one.records += loads.along
    figures = {SECONDS: found["seconds"], MEGABYTES: found["megabytes"]}
    if "batch" in found:
        figures[BATCH] = found["batch"]
    return figures | disk


async def _apart(task: str, folder: Path, records: int, more: int, *, ends: int = 0) -> dict[str, float]:
    """Do it in a process of its own; what that printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.reopening", task, str(folder), str(records), str(more)),
        cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        said, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode != ends:
        raise RuntimeError(f"{task} of {folder} ended with {process.returncode}, not {ends}; what it said is above")
    found: dict[str, float] = json.loads(said) if said else {}
    return found
