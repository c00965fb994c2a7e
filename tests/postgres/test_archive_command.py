"""`runnel archive`: set up, run and look."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import runnel
from runnel.cli.main import main
from runnel.core.errors import HistoryUnavailable
from tests.patience import PATIENCE
from tests.postgres.conftest import NEWEST, Database
from tests.postgres.relaying import run_sql
from tests.postgres.test_relay_command import wait_for

pytestmark = pytest.mark.parametrize("postgres", [NEWEST], indirect=True)


@pytest.fixture
def file(tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("RUNNEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "runnel.toml"
    path.write_text(
        f'data = "{tmp_path / "data"}"\n[archive]\ndsn = "{database.dsn}"\npattern = "a.>"\ntable = "app.events"\n'
        'batch_bytes = "1MiB"\nbatch_seconds = "10ms"\npartition = "month"\nretention = "90d"\n'
    )
    return path


def test_init_run_and_status(file: Path, database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["archive", "status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["state"] == "missing"
    run_sql(database.dsn, "CREATE SCHEMA app")
    assert main(["archive", "init"]) == 0
    assert 'CREATE TABLE IF NOT EXISTS "app"."events"' in capsys.readouterr().out
    assert run_sql(database.dsn, "SELECT to_regclass('app.events')") is None
    assert main(["archive", "init", "--apply"]) == 0
    assert main(["archive", "init", "--apply"]) == 0
    assert main(["pub", "a.b", "hello", "--data", "data"]) == 0
    env = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "RUNNEL_"))}
    command = [sys.executable, "-m", "runnel", "archive", "run", "--config", str(file)]
    archive = subprocess.Popen(command, env=env, cwd=file.parent, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: run_sql(database.dsn, "SELECT count(*) FROM app.events") == 1, lambda: "no row")
        capsys.readouterr()
        assert main(["archive", "status", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["state"], found["rows"], found["lag"], found["gaps"]) == ("running", 1, 0, [])
    finally:
        archive.send_signal(signal.SIGTERM)
        _, errors = archive.communicate(timeout=PATIENCE)
    assert archive.returncode == 0, errors
    assert "Traceback" not in errors
    run_sql(database.dsn, "INSERT INTO app.runnel_archive_gap VALUES ('app.events', now(), 'a.>', 1, 2, 1, 'lost')")
    capsys.readouterr()
    assert main(["archive", "status"]) == 1
    out = capsys.readouterr().out
    assert "stopped" in out
    assert "! " in out
    assert "records of a.> in [1, 2): lost" in out


def test_a_server_and_an_archive_beside_it_serve_old_records(file: Path, database: Database) -> None:
    """`[history]` of a server is the table that the archive of the same file fills."""
    run_sql(database.dsn, "CREATE SCHEMA app")
    with file.open("a") as config:
        config.write(f'[history]\nkind = "postgres"\ndsn = "{database.dsn}"\ntable = "app.events"\npattern = "a.>"\n')
        config.write('[journal]\ntail_bytes = "1KiB"\nsegment_bytes = "4KiB"\n')
    env = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "RUNNEL_"))}

    def started(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "runnel", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, cwd=file.parent, stdout=pipe, stderr=pipe, text=True)

    processes = [started("serve", "--port", "0", "--json-port", "off", "--http-port", "0", "--json")]
    try:
        assert processes[0].stdout is not None
        listeners = {one["name"]: one["url"] for one in json.loads(processes[0].stdout.readline())["listeners"]}
        asyncio.run(without_an_archive(listeners["native"]))
        processes.append(started("archive", "run", "--server", listeners["native"]))
        rows = "SELECT count(*) FROM app.events WHERE topic = 'a.first'"
        wait_for(
            lambda: run_sql(database.dsn, "SELECT to_regclass('app.events')") and run_sql(database.dsn, rows) == 1,
            lambda: "no row",
        )
        asyncio.run(with_an_archive(listeners))
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE)
            assert (process.returncode, "Traceback" in errors) == (0, False), errors


async def without_an_archive(url: str) -> None:
    async with runnel.open(url) as broker, asyncio.timeout(PATIENCE):
        await broker.publish("a.first", b"")
        await broker.topic("a.early", retention_count=1).publish_many([b"0", b"1"])
        with pytest.raises(HistoryUnavailable, match="`runnel archive run` creates"):
            await broker.bounds("a.early")


async def with_an_archive(listeners: dict[str, str]) -> None:
    async with runnel.open(listeners["native"]) as broker, asyncio.timeout(PATIENCE):
        topic = broker.topic("a.b", retention_count=3)
        for number in range(300):
            await topic.publish(b"%d" % number * 20, key=b"k")
        while (await broker.backend.bounds(("a.b",), history=False))[0].first < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # the archive holds them, by segments, until they are in its table
        found = []
        async with broker.subscribe("a.b", start="earliest") as records:
            async for record in records:
                found.append(record.offset)
                if record.offset == 299:
                    break
        assert found == [*range(300)]
        async with httpx.AsyncClient(base_url=listeners["http"]) as client:
            page = (await client.get("/topics/a.b/records", params={"from": 10, "limit": 5})).json()
            assert [record["offset"] for record in page["records"]] == [10, 11, 12, 13, 14]
            metrics = (await client.get("/metrics")).text
        (served,) = [line for line in metrics.splitlines() if line.startswith("runnel_history_records_total")]
        assert int(served.split()[1]) > 0


def test_mistakes_are_one_line(file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    good = file.read_text()
    for text, says in (
        (good.replace('"90d"', '"90 moons"'), "archive.retention"),
        (good.replace("month", "week"), "partition"),
        (good.replace("pattern", "patern"), "patern"),
        ("data = 'x'\n", "no table [archive]"),
        ("[archive", "not TOML"),
        ('[archive]\npattern = "a"\ntable = "t"\n', "RUNNEL_ARCHIVE_DSN"),
    ):
        file.write_text(text)
        assert main(["archive", "run"]) == 2
        err = capsys.readouterr().err
        assert says in err
        assert err.count("\n") == 1
    assert main(["archive", "run", "--config", "nothing.toml"]) == 2
    file.write_text(good)
    assert main(["config", "check", str(file)]) == 0
    monkeypatch.setenv("RUNNEL_ARCHIVE_DSN", "postgresql://postgres@127.0.0.1:1/none")
    capsys.readouterr()
    assert main(["archive", "init", "--apply"]) == 1
    assert "postgres_error" in capsys.readouterr().err
