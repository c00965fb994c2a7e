"""`runnel letters`: dead letters are listed with their reason, replayed once, or discarded."""

from __future__ import annotations

from pathlib import Path

import pytest

import runnel as package
from tests.cli.conftest import Command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which the group `billing` rejected three records of `orders`."""
    with package.blocking.open(tmp_path / "data") as broker:
        broker.topic("orders").publish_many(["a", "b", "c" * 100])
        with broker.subscribe("orders", group="billing") as deliveries:
            for _, delivery in zip(range(3), deliveries, strict=False):
                delivery.reject("no such customer")
    return tmp_path / "data"


LETTERS = "dead-letters.billing"


@pytest.mark.usefixtures("folder")
def test_letters_are_listed_with_where_they_come_from_and_why(runnel: Command) -> None:
    assert runnel("letters", "list").out.splitlines()[1].split() == [LETTERS, "3", "billing"]
    heads, first, _, third = runnel("letters", "list", LETTERS).out.splitlines()
    assert heads.split() == ["OFFSET", "FROM", "AT", "ATTEMPTS", "REASON", "VALUE"]
    assert first.split()[:3] == ["0", "orders", "0"]
    assert "no such customer" in first
    assert third.endswith("c…")
    found = runnel("letters", "list", LETTERS, "--count", "2", "--json").json()
    epoch, _, offset = found[1]["position"].partition(":")
    assert epoch.isdigit()
    assert offset == "1"
    assert [(one["topic"], one["reason"], one["value"]) for one in found] == [
        ("orders", "no such customer", "a"),
        ("orders", "no such customer", "b"),
    ]


@pytest.mark.usefixtures("folder")
def test_letters_are_replayed_and_discarded_each_once(runnel: Command) -> None:
    assert runnel("letters", "replay", LETTERS, "1").out == f"1 letter of '{LETTERS}' replayed\n"
    assert runnel("letters", "replay", LETTERS, "1", "--json").json() == {"topic": LETTERS, "count": 0}
    assert [one["value"] for one in runnel("log", "cat", "orders", "--json").lines()][3:] == ["b"]
    assert runnel("letters", "discard", LETTERS, "0").out == f"1 letter of '{LETTERS}' discarded\n"
    assert [one["offset"] for one in runnel("letters", "list", LETTERS, "--json").json()] == [2]
    assert runnel("letters", "replay", LETTERS, "--all", "--yes", "--json").json()["count"] == 1
    assert runnel("letters", "list", LETTERS).out == f"'{LETTERS}' holds no letters\n"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("replay", LETTERS), "usage_error"),
        (("replay", LETTERS, "1", "--all"), "usage_error"),
        (("discard", LETTERS, "first"), "invalid_option"),
        (("discard", LETTERS, "--all"), "usage_error"),  # there is no terminal to ask on
        (("list", "a..b"), "invalid_name"),
    ],
)
def test_what_makes_no_sense_changes_nothing(runnel: Command, arguments: tuple[str, ...], code: str) -> None:
    done = runnel("letters", *arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.endswith(f"({code})\n")
    assert len(runnel("letters", "list", LETTERS, "--json").json()) == 3


def test_letters_of_a_server(runnel: Command, server: str, topic: str) -> None:
    with package.blocking.open(server) as broker:
        broker.publish(topic, "x")
        with broker.subscribe(topic, group=topic, dead_letter=f"{topic}.dead") as deliveries:
            next(iter(deliveries)).reject("spoiled")
    at = ("--server", server)
    assert [one["reason"] for one in runnel("letters", "list", f"{topic}.dead", "--json", *at).json()] == ["spoiled"]
    assert runnel("letters", "discard", f"{topic}.dead", "--all", "--yes", *at).status == 0
    assert runnel("letters", "list", f"{topic}.dead", "--json", *at).json() == []


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", [("list", "nowhere"), ("replay", "nowhere", "1"), ("discard", "nowhere", "1")])
def test_an_unknown_topic_is_answered_with_commands_not_with_python(runnel: Command, command: tuple[str, ...]) -> None:
    done = runnel("letters", *command)
    said = "there is no topic 'nowhere'; see `runnel topic list`, or make it with `runnel topic create`"
    assert (done.status, done.err) == (1, f"runnel: {said} (unknown_topic)\n")


def test_an_unknown_topic_of_a_server_is_answered_with_commands_too(runnel: Command, server: str) -> None:
    done = runnel("letters", "list", "nowhere", "--server", server)
    assert "see `runnel topic list`" in done.err
