"""Kills an archive, its server and PostgreSQL: `python -m tests.postgres.archive_kills`.

A trial is a seed and a number of kills while records are published. In the end the table is compared with the topics:
every record is in it once, with all that it carries, and no other row is.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psycopg

import runnel
from runnel import Record
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.postgres.archiving import table_records
from tests.postgres.killing import KillTrial, Program, run_trials
from tests.postgres.relaying import stored
from tools.postgres import PostgresServer

TOPICS = 3
PAUSE = 0.25  # seconds before a kill, at most
FEW = 5  # kills, for which a second archive is not worth its start


class Publisher(threading.Thread):
    """Publishes to a server until it is stopped, whatever happens to the server."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__()
        self._url, self._rng, self.stopping = url, random.Random(seed), threading.Event()
        self.published = 0

    def run(self) -> None:
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        async with runnel.open(self._url, wait=PATIENCE) as broker:
            while not self.stopping.is_set():
                number, topic = self.published, f"t.{self._rng.randrange(TOPICS)}"
                with suppress(runnel.RunnelError):
                    for _ in range(self._rng.randint(1, 40)):
                        broker.topic(topic).publish_nowait(f"{number}", key=f"{number % 5}", headers={"n": f"{number}"})
                    await broker.publish(topic, f"{number}")
                self.published += 1
                await asyncio.sleep(self._rng.uniform(0.0, 0.02))


class Trial(KillTrial):
    """Kills an archive, its server and PostgreSQL."""

    def __init__(self, seed: int, kills: int, folder: Path, *, pattern: str, version: int) -> None:
        super().__init__(seed, kills, folder, version=version)
        self._pattern = pattern

    def _run(self, postgres: PostgresServer) -> None:
        data, file, port = self.folder / "data", self.folder / "archive.toml", free_port()
        file.write_text(
            f'[archive]\ndsn = "{postgres.dsn}"\npattern = "{self._pattern}"\ntable = "events"\n'
            'batch_records = 100\nbatch_seconds = "20ms"\n'
        )
        url = f"runnel://127.0.0.1:{port}"
        silent = ("--json-port", "off", "--http-port", "off")
        archive = ("archive", "run", "--config", str(file), "--server", url)
        programs = {
            "server": Program("serve", "--data", str(data), "--port", str(port), *silent),
            "archive": Program(*archive),
        }
        if self.kills > FEW:
            programs["second archive"] = Program(*archive)
        publisher = Publisher(url, self.seed)
        publisher.start()
        try:
            for _ in range(self.kills):
                if self._rng.random() < 0.75:  # else while something starts
                    self._wait_for_rows(postgres, programs, self._count(postgres) + 1)
                self._kill_one(postgres, programs, [*programs, "postgres"], PAUSE)
            publisher.stopping.set()
            publisher.join()
            self._wait_for_rows(postgres, programs, asyncio.run(self._published(url)))
            self._stop(programs, 0, -signal.SIGTERM)  # the latter while it starts
        finally:
            publisher.stopping.set()
            for program in programs.values():
                program.end()
        self.broken += asyncio.run(self._judged(data, postgres))

    async def _published(self, url: str) -> int:
        async with runnel.open(url, wait=PATIENCE) as broker:
            return sum(bounds.end - bounds.first for bounds in await broker.bounds(self._pattern))

    def _count(self, postgres: PostgresServer) -> int:
        with psycopg.connect(postgres.dsn) as connection, suppress(psycopg.errors.UndefinedTable):
            row = connection.execute("SELECT count(*) FROM events").fetchone()
            assert row is not None
            return int(row[0])
        return 0

    def _wait_for_rows(self, postgres: PostgresServer, programs: dict[str, Program], count: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while (found := self._count(postgres)) < count:
            self._expect_in_time(deadline, f"{found} rows of {count} were written", programs)

    async def _judged(self, data: Path, postgres: PostgresServer) -> list[str]:
        async with runnel.open(data) as broker:
            records = await stored(broker, self._pattern)
        rows = table_records(postgres.dsn)
        self.rows = len(rows)
        with psycopg.connect(postgres.dsn) as connection:
            gaps = [row[0] for row in connection.execute("SELECT reason FROM runnel_archive_gap").fetchall()]
        return [*judge(records, rows), *(f"a gap was told: {gap}" for gap in gaps)]


def judge(records: list[Record[bytes]], rows: list[Record[bytes]]) -> list[str]:
    """Each promise that was not kept, as a sentence. `records` are in the topics, `rows` in the table."""
    broken = []
    published = {(one.topic, one.epoch, one.offset): one for one in records}
    seen = Counter((one.topic, one.epoch, one.offset) for one in rows)
    broken += [f"{place} was published and is not in the table" for place in published.keys() - seen.keys()]
    broken += [f"{place} is in the table and was not published" for place in seen.keys() - published.keys()]
    broken += [f"{place} is in the table {times} times" for place, times in seen.items() if times > 1]
    for row in rows:
        place = (row.topic, row.epoch, row.offset)
        if place in published and row != published[place]:
            broken.append(f"{place} is {row}, not {published[place]}")
    return broken


def main() -> int:
    return run_trials(
        __doc__,
        100,
        20,
        lambda seed, kills, folder, version: Trial(
            seed, kills, folder, pattern="t.0" if seed % 2 else "t.*", version=version
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
