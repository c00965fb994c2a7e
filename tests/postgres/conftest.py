"""One PostgreSQL of each version for all tests that need one, and a database of its own for each test.

A test that uses `postgres` or `database` runs on every version; on one only, where the version does not matter and the
test takes long: `@pytest.mark.parametrize("postgres", [NEWEST], indirect=True)`.
"""

from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

import runnel
from runnel import Broker
from tests.ports import free_port
from tools.postgres import PostgresServer, installations

collect_ignore_glob = [] if find_spec("psycopg") and installations() else ["test_*.py"]  # said in tests/conftest.py

NEWEST = max(installations(), default=0)
NUMBERS = count(1)


class Database(NamedTuple):
    """An empty database, dropped after the test together with its replication slots."""

    server: PostgresServer
    name: str

    @property
    def dsn(self) -> str:
        return self.server.dsn_of(self.name)


@pytest.fixture(scope="session", params=[*installations()], ids=lambda version: f"pg{version}")
def postgres(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server that tests share. A test may kill and start it; one that changes its settings makes another."""
    with PostgresServer(installations()[request.param], port=free_port()) as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    """A new database for one test."""
    import psycopg

    if not postgres.is_running:  # a test failed after it had killed it
        postgres.start()
    made = Database(postgres, f"test_{next(NUMBERS)}")
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {made.name}")
    yield made
    if not postgres.is_running:
        postgres.start()
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        own = "FROM pg_replication_slots WHERE database = %s"
        connection.execute(f"SELECT pg_terminate_backend(active_pid, 30000) {own} AND active", [made.name])
        connection.execute(f"SELECT pg_drop_replication_slot(slot_name) {own}", [made.name])
        connection.execute(f"DROP DATABASE {made.name} WITH (FORCE)")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with runnel.open(tmp_path / "data") as opened:
        yield opened
