"""`runnel log marks`: how far an import is, seen without the program that does it."""

from __future__ import annotations

from pathlib import Path

from runnel.opening import open as open_broker
from tests.cli.conftest import Command
from tests.journal.folders import Owner, fill, publish_numbered


async def test_marks_and_the_next_numbers_of_producers(runnel: Command, tmp_path: Path) -> None:
    async with open_broker(tmp_path / "data") as broker:
        for name, value in (("import.orders", 41_000), ("import.text", "page\n2"), ("import.raw", b"\xff\x00")):
            async with broker.transaction() as tx:
                tx.publish("orders", b"x")
                tx.mark(name, value)
        producer = broker.producer()
        await producer.publish("orders", b"a")
        await producer.publish("orders", b"b")
        done = runnel("log", "marks", "data")  # beside its owner
        assert done.status == 0
        lines = [line.split() for line in done.out.splitlines()]
        assert lines[:2] == [["MARK", "VALUE"], ["import.orders", "41000"]]
        assert ["import.raw", "hex:ff00"] in lines
        assert ["import.text", "'page\\n2'"] in lines
        assert lines[-2][:2] == ["PRODUCER", "NEXT"]
        assert lines[-1][1] == "2"
        found = runnel("log", "marks", "--json").json()
        assert found["marks"] == [
            {"name": "import.orders", "value": 41_000},
            {"name": "import.raw", "value_base64": "/wA="},
            {"name": "import.text", "value": "page\n2"},
        ]
        (one,) = found["producers"]
        assert (str(one["producer"]), one["next"]) == (lines[-1][0], 2)


async def test_a_producer_is_found_by_its_name(runnel: Command, tmp_path: Path) -> None:
    async with open_broker(tmp_path / "data") as broker:
        for name in ("ada", "bob"):
            await broker.producer(name).publish_many("orders", [b"x"] * len(name) * 7)
    (one,) = runnel("log", "marks", "--producer", "bob", "--json").json()["producers"]
    assert (one["name"], one["next"]) == ("bob", 21)
    assert runnel("log", "marks", "--producer", "bob").out.splitlines()[-1].split()[:2] == ["bob", "21"]
    assert runnel("log", "marks", "--producer", "eve").out.endswith("there are no producers of these names\n")


def test_where_there_are_none_that_is_said(runnel: Command, tmp_path: Path) -> None:
    fill(tmp_path / "data", batches=5)
    assert runnel("log", "marks").out == "there are no marks\n\nthere are no producers\n"
    assert runnel("log", "marks", "--json").json() == {"marks": [], "producers": []}


def test_lists_that_are_empty_say_so(runnel: Command, tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 2)
    assert runnel("group", "list").out == "there are no groups\n"
    assert runnel("cursor", "list").out == "there are no named subscriptions\n"
    assert runnel("topic", "list", "--gone").out == "nothing is gone\n"
    assert runnel("group", "list", "--json").json() == runnel("cursor", "list", "--json").json() == []
