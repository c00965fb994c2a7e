"""Topics, groups, subscriptions and markers of a server, through the commands that also know folders."""

from __future__ import annotations

import pytest

import runnel as package
from tests.cli.conftest import Command


def test_a_topic_is_made_listed_shown_trimmed_and_deleted(runnel: Command, server: str, topic: str) -> None:
    at = ("--server", server)
    made = runnel("topic", "create", topic, "--option", "retention_count=100", *at, "--json").json()
    assert (made["topic"], made["made"], made["options"]) == (topic, True, {"retention_count": 100})
    assert "was there already" in runnel("topic", "create", topic, "--option", "retention_count=100", *at).out
    assert "(topic_conflict)" in runnel("topic", "create", topic, "--option", "retention_count=5", *at).err
    assert runnel("pub", topic, "x", "--count", "10", *at).status == 0
    heads, row = runnel("topic", "list", "--match", topic, *at).out.splitlines()
    assert heads.split() == ["TOPIC", "FIRST", "END", "SIZE", "PUBLISHED", "SUBSCRIBERS"]
    assert row.split()[:3] == [topic, "0", "10"]
    assert runnel("topic", "show", topic, *at, "--json").json()["end"] == 10
    assert "groups         -\n" in runnel("topic", "show", topic, *at).out
    done = runnel("topic", "trim", topic, "--before", "4", "--yes", *at)
    assert done.out == f"topic {topic!r} begins at offset 4 now; it began at 0\n"
    again = runnel("topic", "trim", topic, "--before", "4", "--yes", *at)
    assert "nothing was done" in again.out
    assert "(offset_out_of_range)" in runnel("topic", "trim", topic, "--before", "11", "--yes", *at).err
    assert runnel("topic", "trim", topic, "--before", "2100-01-01", "--yes", *at, "--json").json()["first"] == 10
    assert runnel("topic", "delete", topic, "--yes", *at).out == f"topic {topic!r} deleted\n"
    assert "(unknown_topic)" in runnel("topic", "delete", topic, "--yes", *at).err


def test_options_are_shown_and_changed(runnel: Command, server: str, topic: str) -> None:
    at = ("--server", server)
    runnel("pub", topic, "x", *at)
    assert runnel("topic", "config", topic, *at).out == "every option has its default\n"
    assert runnel("topic", "set", topic, "retention_age=86400", "backoff=1", *at).status == 0
    assert runnel("topic", "config", topic, *at, "--json").json()["options"] == {"retention_age": 86400, "backoff": [1]}
    assert runnel("topic", "set", topic, "backoff=default", *at).out == "retention_age  86400\n"
    assert "options        retention_age=86400\n" in runnel("topic", "show", topic, *at).out
    for changed in ("durable=false", "max_deliver=0"):
        assert runnel("topic", "set", topic, changed, *at).status != 0


def test_records_are_printed_up_to_what_is_there(runnel: Command, server: str, topic: str) -> None:
    at = ("--server", server)
    for name, value in (("a", "1"), ("b", "2"), ("a", "3")):
        runnel("pub", f"{topic}.{name}", value, *at)
    runnel("pub", f"{topic}.many", "x", "--count", "2500", *at)
    assert [one["value"] for one in runnel("log", "cat", f"{topic}.*", "--json", *at).lines()[:4]] == [*"123", "x"]
    assert [one["value"] for one in runnel("log", "cat", f"{topic}.a", "--from", "1", "--json", *at).lines()] == ["3"]
    assert len(runnel("log", "cat", f"{topic}.many", *at).out.splitlines()) == 2500
    assert len(runnel("log", "cat", f"{topic}.many", "--count", "7", *at).out.splitlines()) == 7
    assert "(unknown_topic)" in runnel("log", "cat", f"{topic}.c", *at).err
    assert "(invalid_option)" in runnel("log", "cat", f"{topic}.*", "--from", "1", *at).err


def test_a_program_has_to_say_yes(runnel: Command, server: str, topic: str) -> None:
    runnel("pub", topic, "x", "--server", server)
    assert "add --yes" in runnel("topic", "delete", topic, "--server", server).err
    assert runnel("topic", "show", topic, "--server", server).status == 0


def test_a_group_is_listed_paused_resumed_reset_and_deleted(runnel: Command, server: str, topic: str) -> None:
    at = ("--server", server)
    runnel("pub", topic, "x", "--count", "10", *at)
    assert len(runnel("sub", topic, "--group", "g", "--count", "4", "--json", *at).lines()) == 4

    def group() -> dict[str, object]:
        (found,) = (one for one in runnel("group", "list", *at, "--json").json() if one["pattern"] == topic)
        return dict(found)

    assert (group()["group"], group()["lag"], group()["acked"], group()["paused"]) == ("g", 6, 4, False)
    assert "g" in runnel("group", "list", *at).out.split()
    assert runnel("group", "pause", "g", "--topic", topic, *at).out == f"group 'g' on {topic!r} is paused\n"
    assert group()["paused"] is True
    assert runnel("sub", topic, "--group", "g", "--idle", "200ms", *at).out == ""
    assert runnel("group", "resume", "g", "--topic", topic, *at, "--json").json()["paused"] is False
    assert runnel("group", "reset", "g", "--topic", topic, "--to", "2", *at, "--json").json()["lag"] == 8
    assert "continues at latest; 0 to do" in runnel("group", "reset", "g", "--topic", topic, "--to", "latest", *at).out
    assert "(unknown_group)" in runnel("group", "reset", "none", "--to", "latest", *at).err
    assert runnel("group", "delete", "g", "--topic", topic, "--yes", *at).status == 0
    assert "(unknown_group)" in runnel("group", "delete", "g", "--topic", topic, "--yes", *at).err


def test_a_group_in_a_folder_is_not_paused_and_that_is_said(runnel: Command, tmp_path: object) -> None:
    with package.blocking.open("data") as broker:
        broker.publish("t", b"x")
        with broker.subscribe("t", group="g"):
            pass
    done = runnel("group", "pause", "g")
    assert (done.status, done.err.endswith("say --server URL (needs_server)\n")) == (2, True)


def test_a_named_subscription_is_listed_open_or_not_and_forgotten_when_it_is_not(
    runnel: Command, server: str, topic: str
) -> None:
    at = ("--server", server)
    runnel("pub", topic, "x", "--count", "3", *at)
    name = f"reader of {topic}"
    with package.blocking.open(server) as broker, broker.subscribe(topic, name=name):
        (found,) = (one for one in runnel("cursor", "list", *at, "--json").json() if one["name"] == name)
        assert found["pattern"] == topic
        assert name in runnel("cursor", "list", *at).out
        assert "(name_in_use)" in runnel("cursor", "forget", name, "--yes", *at).err
    (found,) = (one for one in runnel("cursor", "list", *at, "--json").json() if one["name"] == name)
    assert (found["place"] + found["lag"], found["hold"]) == (3, False)  # it stands somewhere, and is listed
    assert runnel("cursor", "forget", name, "--yes", *at).out.startswith(f"forgot {name!r}, at offset")
    assert "(unknown_name)" in runnel("cursor", "forget", name, "--yes", *at).err


def test_marks_and_the_next_number_of_a_producer(runnel: Command, server: str, topic: str) -> None:
    with package.blocking.open(server) as broker:
        with broker.transaction() as tx:
            tx.publish(topic, b"x")
            tx.mark(f"import.{topic}", 7)
        broker.producer(f"importer of {topic}").publish_many(topic, [b"a", b"b"])
    found = runnel("log", "marks", "--server", server, "--producer", f"importer of {topic}", "--json").json()
    assert {"name": f"import.{topic}", "value": 7} in found["marks"]
    assert [(one["name"], one["next"]) for one in found["producers"]] == [(f"importer of {topic}", 2)]
    assert f"import.{topic}" in runnel("log", "marks", "--server", server).out


def test_info_names_the_server_and_its_listeners(runnel: Command, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = runnel("info", "--server", server, "--json").json()
    assert (found["server"], found["version"], found["fsync"]) == (server, package.__version__, "commit")
    assert server in [door["url"] for door in found["listeners"]]
    monkeypatch.setenv("RUNNEL_SERVER", server)
    shown = runnel("info").out
    assert f"server       {server}\n" in shown
    assert "what was acknowledged is on disk" in shown
