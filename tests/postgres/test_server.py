"""The PostgreSQL of the tests: it starts, survives what tests do to it, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from tests.patience import PATIENCE
from tests.postgres.conftest import NEWEST, Database
from tools.postgres import PostgresServer, installations


def one(dsn: str, query: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def test_a_server_is_of_the_version_asked_for_and_can_replicate(postgres: PostgresServer, database: Database) -> None:
    version = next(version for version, folder in installations().items() if folder == postgres.binaries)
    assert str(one(database.dsn, "SHOW server_version")).startswith(f"{version}.")
    assert one(database.dsn, "SHOW wal_level") == "logical"
    assert one(database.dsn, "SELECT lsn FROM pg_create_logical_replication_slot('slot', 'pgoutput')") is not None


def test_what_was_committed_is_there_after_a_kill_and_after_a_restart(database: Database) -> None:
    server = database.server
    connection = psycopg.connect(database.dsn)
    connection.execute("CREATE TABLE t (id int)")
    connection.execute("INSERT INTO t VALUES (1)")
    connection.commit()
    connection.execute("INSERT INTO t VALUES (2)")
    server.kill()
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(database.dsn)
    server.start()
    assert one(database.dsn, "SELECT array_agg(id) FROM t") == [1]
    server.restart()
    assert one(database.dsn, "SELECT array_agg(id) FROM t") == [1]


def test_settings_count_from_the_next_start() -> None:
    with PostgresServer(installations()[NEWEST], settings={"application_name": "it's"}) as server:
        assert one(server.dsn, "SELECT reset_val FROM pg_settings WHERE name = 'application_name'") == "it's"
        server.settings["max_slot_wal_keep_size"] = "1MB"
        server.restart()
        assert one(server.dsn, "SHOW max_slot_wal_keep_size") == "1MB"
        server.settings["wal_level"] = "nonsense"
        with pytest.raises(RuntimeError, match='invalid value for parameter "wal_level": "nonsense"'):
            server.restart()
        assert not server.is_running
    assert not server.folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to run it as another user")
def test_binaries_in_a_folder_that_only_root_may_enter_are_copied(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    prefix = installations()[NEWEST].parent
    for package in (prefix.parent, prefix.parent.with_name(f"{prefix.parent.name}.libs")):
        (tmp_path / package.name).symlink_to(package)
    with PostgresServer(tmp_path / prefix.parent.name / prefix.name / "bin") as server:
        assert server.binaries.is_relative_to(server.folder)
        assert one(server.dsn, "SELECT 1") == 1
        assert "pg_recvlogical" in server.run("pg_recvlogical", "--version")
    (tmp_path / "elsewhere").symlink_to(prefix)
    with pytest.raises(PermissionError, match="install it where every user may read it"):
        PostgresServer(tmp_path / "elsewhere" / "bin")


def test_the_server_of_a_process_that_is_killed_ends_and_its_folder_is_removed() -> None:
    program = (
        "from tools.postgres import *; import time\n"
        f"server = PostgresServer(installations()[{NEWEST}])\n"
        "server.start(); print(server.folder, flush=True); time.sleep(1000)"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        pid = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while (folder.exists() or alive(pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not folder.exists()
    assert not alive(pid)


def alive(pid: int) -> bool:
    """Whether it runs; one that has ended and that no process has waited for does not."""
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(status.strip()) and not status.startswith("Z")
