"""Kills a relay, its broker's server and PostgreSQL while rows are written: `python -m tests.postgres.relay_kills`.

A trial is a seed and a number of kills. Writers insert, in transactions of one to three rows over several rooms; one of
them also in some that are too large for an entry of the journal. In the end the records are compared with the table:
every row that is in it came once, no other did, and they came in the order of the commits, each transaction whole.
`runnel.testing.History` judges what a subscriber of everything saw.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psycopg

import runnel
from runnel import Record
from runnel.testing import History
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.postgres.relaying import stored
from tools.postgres import PostgresServer, installations

ROOT = Path(__file__).parents[2]
ROOMS, WRITERS = 3, 3
PAUSE = 0.3  # seconds before a kill, at most
WHILE_STREAMING = 0.75  # the share of kills that come when rows arrive again; others may come while something starts
CREATE = "CREATE TABLE chat (id text PRIMARY KEY, room text NOT NULL, writer text, number int, filler text)"
LARGE_EVERY = 40  # transactions of the first writer
LARGE_ROWS, LARGE_VALUE = 1200, 16_000  # of a large one: two parts


class Writer(threading.Thread):
    """Inserts rows until it is stopped, and connects again when PostgreSQL was killed."""

    def __init__(self, name: str, dsn: str, seed: int) -> None:
        super().__init__(name=name)
        self._dsn, self._rng = dsn, random.Random(seed)
        self.stopping = threading.Event()
        self.intended: list[tuple[str, str]] = []  # topic and id
        self.committed: list[str] = []
        self._transactions = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                with psycopg.connect(self._dsn, connect_timeout=5) as connection:
                    while not self.stopping.is_set():
                        self.write(connection)
                        self.stopping.wait(self._rng.uniform(0.0, 0.04))
            except psycopg.Error:
                self.stopping.wait(0.05)

    def write(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        self._transactions += 1
        if self.name == "w0" and self._transactions % LARGE_EVERY == 1:
            self._write_large(connection)
            return
        rows = []
        for _ in range(self._rng.randint(1, 3)):
            number = len(self.intended)
            id, room = f"{self.name}-{number}", f"r{self._rng.randrange(ROOMS)}"
            self.intended.append((f"chat.{room}", id))
            rows.append((id, room, self.name, number))
        for row in rows:
            connection.execute("INSERT INTO chat VALUES (%s, %s, %s, %s)", row)
        connection.commit()
        self.committed += [row[0] for row in rows]

    def _write_large(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        first, room = len(self.intended), f"r{self._rng.randrange(ROOMS)}"
        ids = [f"{self.name}-{number}" for number in range(first, first + LARGE_ROWS)]
        self.intended += [(f"chat.{room}", id) for id in ids]
        connection.execute(
            "INSERT INTO chat SELECT %s || i, %s, %s, i, repeat('x', %s) FROM generate_series(%s::int, %s::int) i",
            (f"{self.name}-", room, self.name, LARGE_VALUE, first, first + LARGE_ROWS - 1),
        )
        connection.commit()
        self.committed += ids


class Program:
    """A process of runnel that is killed and started again."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "RUNNEL"))}
        command = [sys.executable, "-m", "runnel", *self._arguments]
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=self._log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode()[-5000:]


class Trial:
    """One PostgreSQL, one folder, one seed; `run` returns it with what was `broken`."""

    def __init__(self, seed: int, kills: int, folder: Path, *, over_tcp: bool, version: int) -> None:
        self.seed, self.kills, self.folder, self._version = seed, kills, folder, version
        self._rng = random.Random(seed)
        self._over_tcp = over_tcp
        self.broken: list[str] = []
        self.killed: Counter[str] = Counter()
        self.rows = 0

    def run(self) -> Trial:
        with PostgresServer(installations()[self._version], port=free_port()) as postgres:
            self._run(postgres)
        return self

    def _run(self, postgres: PostgresServer) -> None:
        data, file = self.folder / "data", self.folder / "relay.toml"
        self.folder.mkdir(parents=True, exist_ok=True)
        file.write_text(
            f'[relay]\ndsn = "{postgres.dsn}"\nslot = "s"\npublication = "p"\nstatus_interval = 0.2\n'
            '[[relay.table]]\ntable = "chat"\ntopic = "chat.{room}"\nkey = "id"\n'
        )
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            connection.execute(CREATE)
            connection.execute("CREATE PUBLICATION p FOR TABLE chat WITH (publish = 'insert')")
            connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        port = free_port()
        programs: dict[str, Program] = {}
        where = ("--data", str(data))
        if self._over_tcp:
            silent = ("--json-port", "off", "--http-port", "off")
            programs["server"] = Program("serve", *where, "--port", str(port), *silent)
            where = ("--server", f"runnel://127.0.0.1:{port}")
        programs["relay"] = Program("relay", "run", "--config", str(file), *where)
        writers = [Writer(f"w{number}", postgres.dsn, self.seed * 100 + number) for number in range(WRITERS)]
        prober = Writer("prober", postgres.dsn, self.seed)  # never started: it writes when rows are waited for
        for writer in writers:
            writer.start()
        try:
            for _ in range(self.kills):
                if self._rng.random() < WHILE_STREAMING:
                    self._wait_for_rows(postgres, programs, prober)
                time.sleep(self._rng.uniform(0.0, PAUSE))
                victim = self._rng.choice([*programs, "relay", "postgres"])
                self.killed[victim] += 1
                if victim == "postgres":
                    postgres.kill()
                    postgres.start()
                else:
                    programs[victim].kill()
            for writer in writers:
                writer.stopping.set()
            for writer in writers:
                writer.join()
            self._wait_for_rows(postgres, programs, prober)
            for name, program in reversed(programs.items()):
                if (status := program.stop()) != 0:
                    self.broken.append(f"the {name} ended with {status}:\n{program.log}")
        finally:
            for writer in writers:
                writer.stopping.set()
            for program in programs.values():
                program.end()
        with psycopg.connect(postgres.dsn) as connection:
            table = {row[0] for row in connection.execute("SELECT id FROM chat").fetchall()}
        records = asyncio.run(self._read(data))
        self.broken += judge(records, table, [*writers, prober])
        self.broken += [
            f"{record.headers['pg-lsn']} came in parts" for record in records if "pg-last" in record.headers
        ]
        self.rows = len(table)

    def _wait_for_rows(self, postgres: PostgresServer, programs: dict[str, Program], prober: Writer) -> None:
        """Write a row, and wait until the relay has confirmed a message behind it, and so every commit before it.

        A relay confirms a row only when its server has stored it, so both run: they can be told to stop afterwards.
        """
        with psycopg.connect(postgres.dsn) as connection:
            prober.write(connection)
            connection.autocommit = True
            row = connection.execute("SELECT pg_logical_emit_message(true, 'runnel', 'x')").fetchone()
            assert row is not None
            query = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = 's'"
            deadline = time.monotonic() + PATIENCE
            while connection.execute(query, row).fetchone() != (True,):
                if time.monotonic() > deadline:
                    logs = "\n".join(f"{name}:\n{program.log}" for name, program in programs.items())
                    raise AssertionError(f"seed {self.seed}: the relay did not catch up\n{logs}")
                time.sleep(0.02)

    async def _read(self, data: Path) -> list[Record[bytes]]:
        async with runnel.open(data) as broker:
            gaps = [one.value for one in await stored(broker, "relay.s") if b'"gap"' in one.value]
            self.broken += [f"a gap was told: {gap.decode()}" for gap in gaps]
            return await stored(broker, "chat.*")


def judge(records: list[Record[bytes]], table: set[str], writers: list[Writer]) -> list[str]:
    """Each promise that was not kept, as a sentence. `records` are all of them, in the order of their sequences."""
    broken = []
    seen = Counter(json.loads(record.value)["id"] for record in records)
    committed = {id for writer in writers for id in writer.committed}
    broken += [f"{id} was committed and is not in the table" for id in sorted(committed - table)]
    broken += [f"{id} is in the table and was not relayed" for id in sorted(table - seen.keys())]
    broken += [f"{id} was relayed and is not in the table" for id in sorted(seen.keys() - table)]
    broken += [f"{id} was relayed {times} times" for id, times in seen.items() if times > 1]
    places = [(lsn(record.headers["pg-lsn"]), int(record.headers["pg-index"])) for record in records]
    broken += [
        f"{places[at]} came after {places[at - 1]}" for at in range(1, len(places)) if places[at] < places[at - 1]
    ]
    history = History()
    for writer in writers:
        for topic, id in writer.intended:
            history.intend(topic, id, publisher=f"{writer.name} {topic}")
    for room in range(ROOMS):
        history.subscribed("reader", f"chat.r{room}", start=0)
    for record in records:
        id = json.loads(record.value)["id"]
        history.acknowledged(record.topic, id, record.epoch, record.offset)
        history.delivered("reader", record.topic, record.epoch, record.offset, id, record.sequence)
    broken += [str(violation) for violation in history.check().violations]
    return broken


def lsn(text: str) -> int:
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--each", type=int, default=25, help="kills of one trial")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    done, found, seed = 0, 0, chosen.seed
    while done < chosen.kills:
        with tempfile.TemporaryDirectory() as folder:
            versions = sorted(installations())
            trial = Trial(
                seed, chosen.each, Path(folder), over_tcp=bool(seed % 2), version=versions[seed // 2 % len(versions)]
            ).run()
        done, seed = done + chosen.each, seed + 1
        found += bool(trial.broken)
        victims = ", ".join(f"{times} x {name}" for name, times in sorted(trial.killed.items()))
        print(f"seed {trial.seed}: {victims}; {trial.rows} rows, {len(trial.broken)} broken", flush=True)  # noqa: T201
        for sentence in trial.broken[:20]:
            print("  ", sentence)  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
