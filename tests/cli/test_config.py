"""`runnel config`: what acts, where it came from, and what is wrong with a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.config.keys import keys
from tests.cli.conftest import Command


def test_every_setting_is_shown_with_its_value_and_source(
    runnel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runnel.toml").write_text('[serve]\nping = "30s"\n')
    monkeypatch.setenv("RUNNEL_SERVE_PORT", "9000")
    rows = [line.split(maxsplit=2) for line in runnel("config", "show").out.splitlines()]
    assert rows[0] == ["SETTING", "VALUE", "FROM"]
    assert ["serve.port", "9000", "RUNNEL_SERVE_PORT"] in rows
    assert ["serve.ping", "30s", "runnel.toml:2"] in rows
    assert ["journal.fsync", "commit", "default"] in rows
    assert len(rows) == len(keys()) + 1
    assert len(runnel("config", "show", "--said").out.splitlines()) == 3
    found = runnel("config", "show", "--json").json()
    assert found["file"] == "runnel.toml"
    assert found["settings"]["serve.ping"] == {"value": 30.0, "from": "runnel.toml:2"}
    assert found["settings"]["serve.json_port"] == {"value": 7789, "from": "default"}


def test_without_settings_config_show_says_so(runnel: Command) -> None:
    assert runnel("config", "show", "--said").out == "every setting has its default\n"
    assert runnel("config", "show", "--json").json()["file"] is None


def test_a_file_that_is_fine(runnel: Command, tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_text('data = "x"\n[serve]\nunix = "a.sock"\n')
    done = runnel("config", "check", "some.toml")
    assert (done.status, done.out) == (0, "some.toml is fine: 2 settings\n")
    assert runnel("config", "check", "some.toml", "--json").json() == {
        "file": "some.toml",
        "fine": True,
        "problems": [],
    }
    shown = runnel("config", "show", "--config", "some.toml", "--json").json()["settings"]
    assert shown["serve.unix"] == {"value": "a.sock", "from": "some.toml:3"}


def test_an_invalid_file_reports_all_its_errors(runnel: Command, tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_text("[serve]\nprot = 1\nport = 99999\n")
    done = runnel("config", "check", "some.toml")
    assert done.status == 1
    assert done.out.splitlines() == [
        "some.toml:2: there is no key 'serve.prot'; did you mean 'port'?",
        "some.toml:3: serve.port is 99999: a port is a whole number from 0 (any) to 65535",
    ]
    found = runnel("config", "check", "some.toml", "--json").json()
    assert (found["fine"], found["problems"][0]["where"]) == (False, "some.toml:2")


@pytest.mark.parametrize("command", [("config", "show"), ("serve",), ("pub", "t", "v"), ("topic", "list")])
def test_a_command_that_meets_a_file_that_makes_no_sense_says_so_and_does_nothing(
    runnel: Command, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "runnel.toml").write_text("prot = 1\n[serve]\nhots = 2\n")
    done = runnel(*command)
    assert (done.status, done.out) == (2, "")
    first, second = done.err.splitlines()
    assert first.startswith("runnel: runnel.toml:1: there is no key 'prot'")
    assert second == "runnel: runnel.toml:3: there is no key 'serve.hots'; did you mean 'host'? (invalid_config)"


def test_the_tables_of_relay_archive_and_history_are_checked(runnel: Command, tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    file = tmp_path / "some.toml"
    file.write_text(
        '[relay]\nslot = "Not-A-Slot"\npublication = "p"\n[[relay.table]]\ntable = "chat"\ntopic = "chat.{room}"\n'
        '[archive]\npattern = "chat.>"\ntable = "events"\npartiton = "day"\n'
        '[history]\nkind = "postgres"\ntabel = "events"\npattern = 5\n'
    )
    done = runnel("config", "check", "some.toml")
    assert done.status == 1
    assert done.out.splitlines() == [
        "some.toml: [history]: there is no key 'tabel'; did you mean 'table'?",
        "some.toml: [history]: 'table' is missing",
        "some.toml: [history]: pattern is 5: expected text",
        "some.toml: [relay]: slot='Not-A-Slot': a slot's name has 1 to 63 of a-z, 0-9 and _",
        "some.toml: [archive]: archive='what was given': Object contains unknown field `partiton`",
    ]
    right = file.read_text().replace("Not-A-Slot", "s").replace("partiton", "partition").replace("tabel", "table")
    file.write_text(right.replace("pattern = 5\n", ""))
    assert runnel("config", "check", "some.toml").out == "some.toml is fine: 0 settings\n"
    file.write_text('[history]\nkind = "postgres"\ntable = "events"\n')
    served = runnel("serve", "--config", "some.toml", "--port", "0")
    assert (served.status, served.err) == (
        2,
        "runnel: some.toml: [history]: 'dsn' is missing; or set RUNNEL_HISTORY_DSN (invalid_config)\n",
    )
