"""A place is read directly or over a connection, as its options say."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.arrow.location import open_range_reader
from runnel.arrow.range_reader import durable_only
from runnel.core.errors import NotSupported, Unreachable
from runnel.core.topic_bounds import TopicBounds
from runnel.journal.read.inspection import NoJournal
from runnel.spark.options import BrokerLocation
from tests.journal.folders import fill


def test_a_folder_is_read_directly(tmp_path: Path) -> None:
    fill(tmp_path, batches=2)
    reading = open_range_reader(BrokerLocation(path=str(tmp_path)))
    assert [one.topic for one in reading.bounds([">"])] == ["jobs", "orders"]
    reading.close()


def test_a_folder_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoJournal):
        open_range_reader(BrokerLocation(path=str(tmp_path / "nothing")))


def test_a_missing_server_is_reported() -> None:
    with pytest.raises(Unreachable):
        open_range_reader(BrokerLocation(url="runnel://127.0.0.1:1", client={"wait": 0.0}))


def test_what_is_in_memory_is_left_out_and_refused_by_name() -> None:
    found = [TopicBounds("a", 1, 0, 5), TopicBounds("m", 1, 0, 5, durable=False)]
    assert [one.topic for one in durable_only(found, [">"])] == ["a"]
    with pytest.raises(NotSupported, match="'m'"):
        durable_only(found, ["a", "m"])
