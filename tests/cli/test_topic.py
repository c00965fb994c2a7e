"""`runnel topic`: list, create, config, delete."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from runnel.cli.topic import parse_options, shown
from runnel.core.errors import InvalidOption
from runnel.journal.read.inspection import Inspection
from tests.cli.conftest import Command, Terminal
from tests.journal.folders import Owner, fill, publish_numbered


def test_topics_are_listed_with_what_they_hold(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=60)
    heads, jobs, orders = runnel("topic", "list").out.splitlines()
    assert heads.split()[:4] == ["TOPIC", "FIRST", "END", "RECORDS"]
    assert jobs.split()[:4] == ["jobs", "0", "90", "90"]
    assert orders.endswith("ago  -")
    found = runnel("topic", "list", "data", "--json").json()
    assert [(one["topic"], one["first"], one["end"], one["records"]) for one in found] == [
        ("jobs", 0, 90, 90),
        ("orders", 0, 90, 90),
    ]
    assert runnel("topic", "list", "--match", "absent.>", "--json").json() == []
    assert [one["topic"] for one in runnel("topic", "list", "--match", "orders", "--json").json()] == ["orders"]


def test_a_topic_is_made_in_a_folder_that_may_be_new(runnel: Command, tmp_path: Path) -> None:
    before = int(time.time() * 1000) << 11
    done = runnel(
        "topic", "create", "orders", "--option", "retention_age=604800", "--option", "backoff=1,5,30", "--json"
    )
    assert done.status == 0
    made = done.json()
    assert made["made"] is True
    assert made["epoch"] >= before
    assert made["options"] == {"retention_age": 604800, "backoff": [1, 5, 30]}
    with Inspection(tmp_path / "data") as seen:
        assert [(topic.name, topic.epoch) for topic in seen.topics] == [("orders", made["epoch"])]
    again = runnel("topic", "create", "orders", "--option", "backoff=[1,5,30]", "--option", "retention_age=604800")
    assert again.status == 0
    assert "was there already" in again.out
    other = runnel("topic", "create", "orders", "--option", "retention_age=5")
    assert other.status == 1
    assert other.err.endswith("(topic_conflict)\n")


def test_epochs_rise_over_every_life_of_a_topic(runnel: Command) -> None:
    epochs = []
    for _ in range(3):
        epochs.append(runnel("topic", "create", "t", "--json").json()["epoch"])
        assert runnel("topic", "delete", "t", "--yes").status == 0
    assert epochs == sorted(set(epochs))


def test_options_are_shown_changed_and_taken_back(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=4)
    assert runnel("topic", "config", "orders").out == "every option has its default\n"
    done = runnel("topic", "set", "orders", "retention_age=86400", "compression=zstd")
    assert done.out == "retention_age  86400\ncompression    zstd\n"
    assert runnel("topic", "config", "orders", "--json").json()["options"]["retention_age"] == 86400
    done = runnel("topic", "set", "orders", "retention_age=7d", "retention_bytes=10GiB", "backoff=1s,1min")
    assert done.out.splitlines()[:2] == ["retention_age    604800", "retention_bytes  10737418240"]
    done = runnel("topic", "set", "orders", "retention_age=soon")
    assert "expected a duration, such as 15s" in done.err
    done = runnel("topic", "set", "orders", "retention=5")
    assert "retention=5: a topic has no such option; did you mean 'retention_age'?" in done.err
    done = runnel("topic", "set", "orders", "retention_bytes=default", "backoff=default")
    done = runnel("topic", "set", "orders", "retention_age=default")
    assert done.out == "compression  zstd\n"
    with Inspection(tmp_path / "data") as seen:
        orders = seen.topic("orders")
        assert orders is not None
        assert (orders.options, orders.first, orders.end) == ({"compression": "zstd"}, 0, 6)
        assert len(list(seen.read("orders"))) == 6


def test_a_topic_is_deleted_with_its_groups(runnel: Command, tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 4)
        owner.group("billing", "orders")
    done = runnel("topic", "delete", "orders", "--yes", "--json")
    assert done.status == 0
    assert done.json()["groups"] == ["billing"]
    assert [one["topic"] for one in runnel("topic", "list", "--json").json()] == ["jobs"]
    assert runnel("group", "list", "--json").json() == []
    assert runnel("log", "verify").status == 0


@pytest.mark.parametrize(("said", "status"), [("y\n", 0), ("no\n", 1), ("", 1)])
def test_on_a_terminal_deleting_asks(
    runnel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, status: int
) -> None:
    fill(tmp_path / "data")
    monkeypatch.setattr("sys.stdin", Terminal(said))
    done = runnel("topic", "delete", "orders")
    assert done.status == status
    assert "Delete 'orders' with offsets [0, 90)? [y/N]" in done.out
    assert ("orders" in runnel("topic", "list").out) is bool(status)


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (("create", "a b"), 2, "invalid_name"),
        (("create", "a.*"), 2, "invalid_name"),
        (("create", "t", "--option", "retention=5"), 2, "invalid_option"),
        (("create", "t", "--option", "retention_age"), 2, "invalid_option"),
        (("create", "t", "--option", "retention_age=soon"), 2, "invalid_option"),
        (("create", "t", "--option", "durable=false"), 2, "invalid_option"),
        (("create", "t", "--option", "durable=False"), 2, "invalid_option"),
        (("create", "t", "--option", "durable=no"), 2, "invalid_option"),
        (("create", "t", "--option", "durable=maybe"), 2, "invalid_option"),
        (("create", "t", "--option", "durable=0"), 2, "invalid_option"),
        (("create", "t", "--option", "encoding=5"), 2, "invalid_option"),
        (("create", "t", "--option", "dead_letter=a b"), 2, "invalid_option"),
        (("create", "t", "--option", "compact=maybe"), 2, "invalid_option"),
        (("delete", "orders"), 2, "usage_error"),
        (("delete", "orders", "--json"), 2, "usage_error"),
        (("config", "absent"), 1, "unknown_topic"),
        (("set", "absent", "max_deliver=3"), 1, "unknown_topic"),
        (("set", "orders", "max_deliver=0"), 2, "invalid_option"),
        (("set", "orders", "nothing=default"), 2, "invalid_option"),
        (("set", "orders"), 2, "usage_error"),
        (("delete", "absent", "--yes"), 1, "unknown_topic"),
        (("list", "--match", "a..b"), 2, "invalid_pattern"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_changes_nothing(
    runnel: Command, tmp_path: Path, arguments: tuple[str, ...], status: int, code: str
) -> None:
    fill(tmp_path / "data")
    done = runnel("topic", *arguments)
    assert (done.status, done.out) == (status, "")
    assert done.err.endswith(f"({code})\n")
    assert done.err.count("\n") == 1
    assert runnel("topic", "list", "--json").json()[1]["options"] == {}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("a=5", 5),
        ("a=1.5", 1.5),
        ("a=true", True),
        ("a=null", None),
        ("a=zstd", "zstd"),
        ("a=1,5,30", [1, 5, 30]),
        ("a=[1,2]", [1, 2]),
        ("a=x=y", "x=y"),
        ("a=", ""),
        ("a=x,y", "x,y"),
        ("durable=True", True),
        ("durable=yes", True),
        ("durable=FALSE", False),
        ("durable=no", False),
        ("durable=null", None),
        ("dead_letter=2026", "2026"),
        ('compression="zstd"', "zstd"),
    ],
)
def test_values_of_options(said: str, meant: object) -> None:
    assert list(parse_options([said]).values()) == [meant]


def test_the_space_of_a_deleted_topic_comes_back_at_once_where_no_other_shares_it(
    runnel: Command, tmp_path: Path
) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 60, ["orders"])
        publish_numbered(owner, 60, 120, ["jobs"])
    before = runnel("info", "--json").json()["bytes"]
    done = runnel("topic", "delete", "orders", "--yes", "--json").json()
    assert done["freed_bytes"] > 0.4 * before
    assert done["left_bytes"] < 8192  # the segment in which the one ends and the other begins
    assert runnel("info", "--json").json()["bytes"] <= before - done["freed_bytes"] + 1000
    assert " of disk came back\n" in runnel("topic", "delete", "jobs", "--yes").out
    assert runnel("log", "verify").status == 0


def test_records_are_counted_not_reckoned_from_offsets(runnel: Command, tmp_path: Path) -> None:
    for _ in range(3):  # each opening after a crash goes on 2^31 offsets higher
        owner = Owner(tmp_path / "data", fsync="os")
        publish_numbered(owner, 0, 2)
        owner.crash()
    jobs, orders = runnel("topic", "list", "--json").json()
    assert orders["end"] > 1 << 31
    assert (orders["records"], jobs["records"]) == (9, 9)
    assert len(runnel("log", "cat", "orders").out.splitlines()) == 9


def test_an_option_without_a_value_is_refused() -> None:
    with pytest.raises(InvalidOption, match="NAME=VALUE"):
        parse_options(["a"])


def test_values_are_shown_as_they_would_be_said() -> None:
    assert [shown(value) for value in (5, True, "zstd", (1, 5))] == ["5", "true", "zstd", "1,5"]


def test_a_topic_shows_how_far_the_archive_is(runnel: Command, tmp_path: Path) -> None:
    done = runnel("topic", "create", "orders", "--option", "retention_until=archived", "--json")
    assert done.json()["options"] == {"retention_until": "archived"}
    wrong = runnel("topic", "create", "others", "--option", "retention_until=lake")
    assert wrong.status == 2
    assert "expected 'archived'" in wrong.err
    for value in "abc":
        assert runnel("pub", "orders", value, "--data", "data").status == 0
    shown = runnel("topic", "show", "orders")
    for line in ("confirmed", "moved", "gone"):
        assert f"{line} " in shown.out
    assert "offsets below 0 are in the archive only" in shown.out
    archive = runnel("topic", "show", "orders", "--json").json()["archive"]
    assert archive.pop("unconfirmed_bytes") > 0
    assert archive == {"confirmed": 0, "moved": 0, "gone": 0}
    runnel("topic", "trim", "orders", "--before", "2", "--yes")
    archive = runnel("topic", "show", "orders", "--json").json()["archive"]
    assert (archive["moved"], archive["gone"]) == (2, 2)
