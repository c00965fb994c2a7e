"""A query is seen on the broker: its place and its lag in each topic, and what it holds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from runnel.core.errors import InvalidOption, NameInUse
from runnel.core.position import Position
from runnel.core.statistics import CursorStatistics
from runnel.spark.cursor import QueryCursor, name_in
from runnel.spark.options import BrokerLocation
from tests.spark.rig import Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as made:
        made.publish_many("a", [b"x"] * 10)
        made.publish_many("b", [b"x"] * 4)
        yield made


def seen(served: Served) -> list[CursorStatistics]:
    return list(served.broker.statistics().cursors)


def epoch(served: Served, topic: str) -> int:
    return served.broker.statistics().topics[topic].epoch


def test_where_it_stands_is_stored_for_each_topic(served: Served) -> None:
    cursor = QueryCursor(BrokerLocation(url=served.url), "report", hold=False)
    a, b = epoch(served, "a"), epoch(served, "b")
    cursor.store({"a": Position(a, 3), "b": Position(b, 4)})
    assert seen(served) == [
        CursorStatistics("report/a", "a", 3, 7, False),
        CursorStatistics("report/b", "b", 4, 0, False),
    ]
    cursor.store({"a": Position(a, 10), "b": Position(b, 4)})
    assert [one.lag for one in seen(served)] == [0, 0]
    assert name_in("report", "a") == "report/a"
    cursor.close()
    cursor.close()
    assert len(seen(served)) == 2  # it stays when the query has ended


def test_what_it_has_not_read_is_held_if_it_says_so(served: Served) -> None:
    a = epoch(served, "a")
    cursor = QueryCursor(BrokerLocation(url=served.url), "report", hold=True)
    cursor.store({"a": Position(a, 3)})
    assert [one.hold for one in seen(served)] == [True]
    assert [one.name for one in served.broker.statistics().journal.holders] == ["report/a"]  # type: ignore[union-attr]
    cursor.close()


def test_only_what_moved_is_reported(served: Served) -> None:
    cursor = QueryCursor(BrokerLocation(url=served.url), "report", hold=False)
    place = {"a": Position(epoch(served, "a"), 3)}
    cursor.store(place)
    served.run(served.broker.forget("report/a"))
    cursor.store(place)  # nothing moved
    assert seen(served) == []
    cursor.close()


def test_a_name_that_has_a_reader_is_an_error(served: Served) -> None:
    async def reading() -> None:
        async with served.broker.subscribe("a", name="report/a"):
            cursor = QueryCursor(BrokerLocation(url=served.url), "report", hold=False)
            import asyncio

            with pytest.raises(NameInUse):
                await asyncio.to_thread(cursor.store, {"a": Position(epoch_now, 3)})
            cursor.close()

    epoch_now = epoch(served, "a")
    served.run(reading())


def test_a_name_that_stands_in_another_topic_is_an_error(served: Served) -> None:
    served.run(served.broker.place({"report/a": ("b", Position(epoch(served, "b"), 1))}))
    cursor = QueryCursor(BrokerLocation(url=served.url), "report", hold=False)
    with pytest.raises(InvalidOption, match="holds a position on 'b'"):
        cursor.store({"a": Position(epoch(served, "a"), 3)})
    cursor.close()


def test_a_broker_that_does_not_answer_is_reported_and_the_query_continues(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    cursor = QueryCursor(BrokerLocation(url="runnel://127.0.0.1:1", client={"wait": 0.0}), "report", hold=False)
    with caplog.at_level(logging.WARNING, "runnel.spark"):
        cursor.store({"a": Position(1, 3)})
    assert "'report' was not stored" in caplog.text
    with caplog.at_level(logging.WARNING, "runnel.spark"):
        gone = QueryCursor(BrokerLocation(url=served.url), "report", hold=False)
        gone.store({"a": Position(99, 3)})  # of a topic that was deleted and made again
    assert "epoch 99" in caplog.text
    gone.close()
