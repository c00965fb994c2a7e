"""Kills a relay, its broker's server and PostgreSQL while rows are written: `python -m tests.postgres.relay_kills`.

A trial is a seed and a number of kills. Writers insert, in transactions of one to three rows over several rooms; one of
them also in some that are too large for an entry of the journal. In the end the records are compared with the table:
every row that is in it came once, no other did, and they came in the order of the commits, each transaction whole.
`runnel.testing.History` judges what a subscriber of everything saw.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
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
from tests.postgres.killing import KillTrial, Program, run_trials
from tests.postgres.relaying import stored
from tools.postgres import PostgresServer

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


class Trial(KillTrial):
    """Kills a relay, the server that it publishes to, and PostgreSQL."""

    def __init__(self, seed: int, kills: int, folder: Path, *, over_tcp: bool, version: int) -> None:
        super().__init__(seed, kills, folder, version=version)
        self._over_tcp = over_tcp

    def _run(self, postgres: PostgresServer) -> None:
        data, file = self.folder / "data", self.folder / "relay.toml"
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
                self._kill_one(postgres, programs, [*programs, "relay", "postgres"], PAUSE)
            for writer in writers:
                writer.stopping.set()
            for writer in writers:
                writer.join()
            self._wait_for_rows(postgres, programs, prober)
            self._stop(programs, 0)
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
                self._expect_in_time(deadline, "the relay did not catch up", programs)

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
    return run_trials(
        __doc__,
        300,
        25,
        lambda seed, kills, folder, version: Trial(seed, kills, folder, over_tcp=bool(seed % 2), version=version),
    )


if __name__ == "__main__":
    sys.exit(main())
