"""`runnel relay`: set up, run, look, and try."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from runnel.cli.main import main
from tests.patience import PATIENCE
from tests.postgres.conftest import NEWEST, Database
from tests.postgres.relaying import CREATE_CHAT, run_sql

pytestmark = pytest.mark.parametrize("postgres", [NEWEST], indirect=True)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def file(tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("RUNNEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    run_sql(database.dsn, CREATE_CHAT)
    path = tmp_path / "runnel.toml"
    path.write_text(
        f'data = "{tmp_path / "data"}"\n[relay]\ndsn = "{database.dsn}"\nslot = "s"\npublication = "p"\n'
        '[[relay.table]]\ntable = "chat"\ntopic = "chat.{room}"\nkey = "id"\n'
    )
    return path


@pytest.fixture
def runnel(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["relay", *arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def test_init_prints_the_sql_and_applies_it(file: Path, runnel: Run, database: Database) -> None:
    status, out, _ = runnel("init")
    assert status == 1
    assert 'CREATE PUBLICATION "p" FOR TABLE "public"."chat" WITH (publish = \'insert\');' in out
    assert run_sql(database.dsn, "SELECT count(*) FROM pg_publication") == 0
    status, out, _ = runnel("init", "--apply")
    assert status == 0
    assert run_sql(database.dsn, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 's'") == 1
    assert runnel("init", "--config", str(file))[0] == 0


def test_what_commands_did_is_there_as_json(file: Path, runnel: Run) -> None:
    def facts(*arguments: str) -> dict[str, Any]:
        status, out, err = runnel(*arguments, "--json")
        assert status in (0, 1), err
        found: dict[str, Any] = json.loads(out)
        return found

    found = facts("init")
    assert (found["applied"], "publication" in found["problems"][0]["what"], found["left"] != []) == (False, True, True)
    assert facts("init", "--apply")["left"] == []
    assert facts("snapshot", "--table", "chat") == {"slot": "s", "table": "public.chat"}
    assert facts("pause") == {"relay": "s", "paused": True, "changed": True}
    assert facts("resume") == {"relay": "s", "paused": False, "changed": True}
    assert facts("skip", "--lsn", "0/16B3748") == {"relay": "s", "lsn": "0/16B3748"}
    file.write_text(file.read_text() + 'keep = 60\nkeep_column = "at"\n')
    run_sql(file.read_text().split('dsn = "')[1].split('"')[0], "ALTER TABLE chat ADD at timestamptz DEFAULT now()")
    assert facts("retain")["rows"] == 0


def test_init_by_a_role_that_may_not_says_what_to_do(
    file: Path, runnel: Run, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"visitor_{database.name}"
    run_sql(database.dsn, f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        monkeypatch.setenv("RUNNEL_RELAY_DSN", database.dsn.replace("postgres@", f"{role}@"))
        status, _, err = runnel("init", "--apply")
        assert status == 1
        assert "permission denied" in err
        assert "the owner of the tables: RUNNEL_RELAY_DSN=" in err
    finally:
        run_sql(database.dsn, f"DROP ROLE {role}")


def test_run_status_and_snapshot(file: Path, runnel: Run, database: Database) -> None:
    status, out, _ = runnel("status", "--json")
    found = json.loads(out)
    assert (status, found["slot_state"], found["published"]) == (1, "missing", None)
    assert any("there is no publication 'p'" in problem for problem in found["problems"])
    runnel("init", "--apply")
    run_sql(database.dsn, "INSERT INTO chat (room) VALUES ('a')")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "RUNNEL_"))}
    command = [sys.executable, "-m", "runnel", "relay", "run", "--config", str(file)]
    relay = subprocess.Popen(command, env=env, cwd=file.parent, stderr=subprocess.PIPE, text=True)
    try:

        def said() -> dict[str, Any]:
            return status_of(runnel)

        wait_for(lambda: said()["published"] not in (None, "0/0 row 0"), said)
        assert said()["slot_state"] == "active"
        assert runnel("snapshot", "--table", "chat")[0] == 0
        wait_for(lambda: said()["snapshots"] == {"public.chat": "complete"}, said)
        status, out, _ = runnel("status")
        assert status == 0
        assert "snapshot of public.chat" in out
    finally:
        relay.send_signal(signal.SIGTERM)
        _, errors = relay.communicate(timeout=PATIENCE)
    assert relay.returncode == 0, errors
    assert "Traceback" not in errors
    assert main(["sub", "chat.>", "--data", str(file.parent / "data"), "--from", "earliest", "--count", "2"]) == 0


def status_of(runnel: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(runnel("status", "--json")[1])
    return found


def wait_for(is_so: Callable[[], bool], said: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, said()
        time.sleep(0.05)


def test_run_without_setup_gives_the_sql(file: Path, runnel: Run) -> None:
    status, _, err = runnel("run")
    assert status == 1
    assert "SELECT pg_create_logical_replication_slot('s', 'pgoutput', false, false, true);" in err
    assert err.count("\n") > 4


def test_tail_shows_what_would_be_published_and_leaves_no_slot(file: Path, runnel: Run, database: Database) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("CREATE PUBLICATION p FOR TABLE chat WITH (publish = 'insert')")

        def write() -> None:
            query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'runnel_tail_%' AND active"
            wait_for(lambda: connection.execute(query).fetchone() == (1,), lambda: "no slot is active")
            connection.execute("INSERT INTO chat (room) VALUES ('a'), ('b.c')")

        writer = threading.Thread(target=write)
        writer.start()
        status, out, _ = runnel("tail", "--count", "3", "--json")
        writer.join()
        lines = [json.loads(line) for line in out.splitlines()]
        assert status == 0
        assert [line["topic"] for line in lines] == ["relay.s", "chat.a", "relay.s.dead"]
        assert lines[1]["key"] == "1"
        slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'runnel_tail_%'"
        wait_for(lambda: connection.execute(slots).fetchone() == (0,), lambda: "the slot is still there")


def test_mistakes_are_one_line(file: Path, runnel: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, says, expected in (
        (("status", "--config", "nothing.toml"), "there is no file 'nothing.toml'", 2),
        (("snapshot", "--table", "other"), "expected one of public.chat", 2),
        (("tail", "--count", "-1"), "expected 0 or more", 2),
    ):
        status, _, err = runnel(*arguments)
        assert says in err
        assert (status, err.count("\n")) == (expected, 1)
    monkeypatch.setenv("RUNNEL_RELAY_DSN", "postgresql://postgres@127.0.0.1:1/none")
    status, _, err = runnel("init")
    assert (status, "postgres_error" in err) == (1, True)
    assert main(["config", "check", str(file)]) == 0
