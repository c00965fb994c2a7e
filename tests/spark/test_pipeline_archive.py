"""The archive: every record of every topic in the lake once, whatever happens to its checkpoint; and its audit."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import deltalake
import msgspec
import pytest

import runnel.arrow
from runnel.arrow.location import BrokerLocation, open_range_reader
from runnel.core.topic_bounds import TRIMMED, TopicBounds, TopicFloors
from runnel.journal.format.removed_offsets import RemovalReason
from runnel.lake import Lake
from runnel.lake.layout import record_schema
from runnel.spark.pipelines import Context
from runnel.spark.pipelines.archive import copy_typed, gone_below, maintenance, starting_offsets
from runnel.spark.pipelines.audit import BLOCK, Digest, Judgement, TableReport, TopicPlan, hidden
from runnel.testing import JumpingClock
from tests.patience import PATIENCE
from tests.security.guarded import Tokens, guarded
from tests.spark.pipeline_rig import in_lake, run_once
from tests.spark.rig import Served, live_through

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


COMPACTED = RemovalReason.COMPACTED.words


async def fill(folder: Path) -> None:
    small: dict[str, Any] = {"segment_bytes": 1 << 13, "clean_bytes_per_second": 1 << 30, "tombstone_age": 0}
    async with runnel.open(folder, **small) as broker:
        await live_through(broker, Random(3))
        await broker.publish("headers", b"h", key=b"k", headers={"name": "value"})
        await publish_whole(broker)
        await broker.publish("short", b"gone soon", expires=0.001)
        await broker.publish("short", b"stays")
        states = broker.topic("states", compact=True)
        for number in range(400):  # several segments of little else, so that the cleaner rewrites them
            await states.publish(b"%d" % number * 30, key=b"k")
        await compact(broker, folder, "states")


class Order(msgspec.Struct):
    number: int


async def publish_whole(broker: runnel.Broker) -> None:
    """Records with all that one can carry."""
    headers = {"content-type": "text/plain", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    await broker.publish("whole", b"w", key=b"k", headers=headers, priority=7, expires=1e6, delay=1e5)
    await broker.publish("whole", b"", priority=1)
    await broker.publish("whole", b"late", delay=1e5)
    await broker.publish("whole", b"short", expires=1e6)
    for number in (3, 4):
        await broker.topic("whole.typed", Order).publish(Order(number), key=b"%d" % number)


def whole(where: Path | None, lake: Path | None) -> list[dict[str, Any]]:
    """The same records with every column, of a journal or of a lake."""
    found: list[dict[str, Any]] = runnel.arrow.read(
        where, ["whole", "whole.typed"], lake=lake, columns=record_schema().names
    ).to_pylist()
    return found


async def compact(broker: runnel.Broker, folder: Path, topic: str) -> None:
    """Have the cleaner take records of a compacted topic, and stop it: it takes nothing while the test reads."""
    store = broker.backend.store
    assert store is not None
    reader = open_range_reader(BrokerLocation(path=str(folder)))
    try:
        async with asyncio.timeout(PATIENCE):
            while COMPACTED not in {reason for _, _, reason in reader.bounds([topic])[0].removed or ()}:
                store.cleaner.wake()
                await asyncio.sleep(0.01)
        await asyncio.to_thread(store.cleaner.stop)
    finally:
        reader.close()


async def publish_more(folder: Path) -> None:
    async with runnel.open(folder) as broker:
        await broker.topic("many").publish_many([b"more"] * 7)
        await broker.publish("later", b"new")


def test_an_archive_has_every_record_once_and_an_audit_judges_it(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = {"path": str(data)}
    asyncio.run(fill(data))
    run_once(spark, "archive", tmp_path, broker, batch_records=1500, typed=("whole.typed",))
    typed = deltalake.DeltaTable(str(tmp_path / "lake" / "tables" / "whole.typed"))
    assert {(row["number"], row["_key"]) for row in typed.to_pyarrow_table().to_pylist()} == {(3, b"3"), (4, b"4")}
    first = in_lake(tmp_path)
    assert first[0]["headers"] == [{"key": "name", "value": b"value"}]
    archived = whole(None, tmp_path / "lake")
    assert archived == whole(data, None)
    assert [row["priority"] for row in archived[:2]] == [7, 1]
    assert None not in (archived[0]["due"], archived[0]["expires"])
    shutil.rmtree(tmp_path / "lake" / "pipelines")  # with its checkpoint: the lake knows how far it is
    asyncio.run(publish_more(data))
    run_once(spark, "archive", tmp_path, broker)
    rows = in_lake(tmp_path)
    assert len({(row["topic"], row["epoch"], row["offset"]) for row in rows}) == len(rows) == len(first) + 8
    (found,) = run_once(spark, "audit", tmp_path, broker)
    assert found.is_fine, found.text
    report = found.facts["report"]
    assert sum(one.rows for one in report.topics) == len(rows)
    holes = {one.topic: one.holes for one in report.topics}
    assert holes["many"] == {TRIMMED: 100}
    assert holes["short"] == {"expired": 1}
    for one in report.topics:
        if one.topic in ("prices", "states"):  # how many the cleaner took is its own affair
            assert one.holes == ({COMPACTED: one.archived - one.rows} if one.rows < one.archived else {})
    assert holes["states"]
    assert holes["headers"] == holes["later"] == {}
    assert report.tables == [TableReport(table="whole.typed", rows=2)]
    assert "1 typed tables with 2 of them" in found.summary

    typed.update_incremental()  # a row of the typed table is lost, and the other one is another
    typed.delete("_offset = 0")
    typed.update({"_key": "X'00'"})
    table = deltalake.DeltaTable(str(tmp_path / "lake" / "records"))  # four things go wrong in the lake
    at = [row["offset"] for row in rows if row["topic"] == "many"]
    missing, doubled, changed = at[3], at[5], at[7]
    table.delete(f"topic = 'many' and offset = {missing}")
    twice = table.to_pyarrow_table(filters=[("topic", "=", "many"), ("offset", "=", doubled)])
    deltalake.write_deltalake(table, twice, mode="append")
    table.update({"value": "X'00'"}, predicate=f"topic = 'many' and offset = {changed}")
    table.update({"priority": "8"}, predicate="topic = 'whole' and offset = 0")
    with Served(data) as served:  # through a server holes have the same reasons
        (found,) = run_once(spark, "audit", tmp_path, {"url": served.url})
    assert not found.is_fine
    assert {one.topic: one.holes for one in found.facts["report"].topics} == holes
    problems = found.facts["report"].problems
    kinds = {(one.kind, one.first) for one in problems if one.topic == "many"}
    assert kinds == {("missing", missing), ("doubled", doubled), ("different", changed)}, found.text
    others = [(one.topic, one.kind, one.first) for one in problems if one.topic != "many"]
    assert others == [("whole", "different", 0), ("whole.typed", "missing", 0), ("whole.typed", "different", 1)]


def test_an_archive_without_a_checkpoint_begins_behind_what_the_lake_holds(tmp_path: Path) -> None:
    class Held(Lake):
        def next_offsets(self, topics: object = None) -> dict[tuple[str, int], int]:
            return {("a", 1): 5, ("a", 3): 2, ("other", 1): 9}

    assert starting_offsets(Held(tmp_path), ["a", "b.>"]) == ('{"a": {"epoch": 3, "offset": 2}, "b.>": "earliest"}')


def test_only_what_a_user_removed_is_erased_from_the_lake() -> None:
    archived = {("kept", 1): 9, ("trimmed", 1): 9, ("again", 1): 9, ("again", 2): 4, ("deleted", 1): 9}
    now = [
        TopicFloors("kept", 1, gone=0, moved=5, confirmed=0, end=9),
        TopicFloors("trimmed", 1, gone=3, moved=3, confirmed=0, end=9),
        TopicFloors("again", 2, gone=0, moved=0, confirmed=0, end=4),
    ]
    found = gone_below(archived, {one.topic: one for one in now})
    assert found == {("trimmed", 1): 3, ("again", 1): 9, ("deleted", 1): 9}


def test_what_is_trimmed_at_a_server_is_erased_from_the_lake_by_maintenance(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.create()
    with Served(tmp_path / "data") as served:
        served.publish_many("orders", [b"x"] * 10)
        rows = runnel.arrow.batches(served.url, "orders", columns=record_schema().names)
        lake.commit(lake.write(rows), application="test", version=0)
        served.run(served.broker.topic("orders").trim(4))
        options = {"maintain_every": 600.0, "expire_after": None}
        no_session: Any = None
        context = Context(no_session, "archive", {"url": served.url}, str(tmp_path / "lake"), options)
        assert "4 trimmed or deleted rows erased" in maintenance(lake, context, [">"]).work().summary
    assert [row["offset"] for row in in_lake(tmp_path)] == list(range(4, 10))


@pytest.mark.parametrize("how", ["url", "path"])
def test_what_is_old_is_trimmed_and_then_erased(tmp_path: Path, how: str) -> None:
    """What is not archived yet stays, as does all of a topic that a subscription holds."""
    lake, clock = Lake(tmp_path / "lake"), JumpingClock(time.time() - 3 * 3600.0)
    lake.create()
    with Served(tmp_path / "data", clock=clock) as served:
        for _ in range(3):
            for topic in ("orders", "held"):
                served.publish_many(topic, [b"x"] * 4)
            served.run(clock.advance(3600.0))
        rows = runnel.arrow.batches(served.url, ["orders", "held"], columns=record_schema().names)
        lake.commit(lake.write(rows), application="test", version=0)
        served.publish_many("orders", [b"not archived"])
        served.run(hold(served.broker, "held"))
        broker = {"url": served.url} if how == "url" else {"path": str(tmp_path / "data")}
        no_session: Any = None
        for hours, left in ((2.5, 4), (0.5, 12)):
            options = {"maintain_every": 600.0, "expire_after": hours * 3600.0}
            context = Context(no_session, "archive", broker, str(tmp_path / "lake"), options)
            assert "rows erased" in maintenance(lake, context, [">"]).work().summary
            assert [row["offset"] for row in in_lake(tmp_path, "orders")] == list(range(left, 12))
            (floors,) = served.run(served.broker.floors("orders"))
            assert (floors.gone, floors.end) == (left, 13)
        assert len(in_lake(tmp_path, "held")) == 12


async def hold(broker: runnel.Broker, topic: str) -> None:
    async with broker.subscribe(topic, name="reader", start="earliest", hold=True):
        pass


async def test_a_topic_that_a_login_may_not_see_is_not_one_that_was_deleted(tmp_path: Path) -> None:
    lake, tokens = Lake(tmp_path / "lake"), Tokens()
    lake.create()
    token = tokens.add("archive", allow=["subscribe:mine.>"])
    async with runnel.open(tmp_path / "data") as broker, guarded(tmp_path, tokens, broker=broker) as server:
        for topic in ("mine.orders", "hidden", "mine.deleted"):
            await broker.topic(topic).publish_many([b"x"] * 3)
        rows = runnel.arrow.batches(tmp_path / "data", ">", columns=record_schema().names)
        lake.commit(lake.write(rows), application="test", version=0)
        await broker.delete("mine.deleted")
        login = {"url": server.url(), "token": token}
        no_session: Any = None
        context = Context(
            no_session, "archive", login, str(tmp_path / "lake"), {"maintain_every": None, "expire_after": None}
        )
        found = await asyncio.to_thread(maintenance(lake, context, [">"]).work)
        assert "3 trimmed or deleted rows erased" in found.summary

        def visible() -> set[str]:
            reader = open_range_reader(BrokerLocation(server.url(), client={"token": token}))
            try:
                return reader.visible(["mine.orders", "hidden"])
            finally:
                reader.close()

        assert await asyncio.to_thread(visible) == {"mine.orders"}
    assert {row["topic"] for row in in_lake(tmp_path)} == {"mine.orders", "hidden"}
    report = hidden("hidden", 1, 3)
    assert [(one.kind, one.first, one.end) for one in report.problems] == [("hidden", 0, 3)]


def test_typed_topics_are_copied_into_tables_of_their_own_and_one_may_be_made_later(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with Served(tmp_path / "data") as served:
        orders = served.broker.topic("orders", Order)
        served.run(orders.publish(Order(1)))
        options = {"typed": ("orders", "later"), "typed_every": 60.0}
        no_session: Any = None
        check = copy_typed(lake, Context(no_session, "archive", {"url": served.url}, str(tmp_path / "lake"), options))
        assert check.work().facts["rows"] == {"orders": 1}
        served.run(orders.publish(Order(2)))
        served.run(served.broker.topic("later", Order).publish(Order(3)))
        assert check.work().facts["rows"] == {"orders": 1, "later": 1}
        assert check.work().facts["rows"] == {"orders": 0, "later": 0}
    table = deltalake.DeltaTable(str(tmp_path / "lake" / "tables" / "orders")).to_pyarrow_table()
    assert sorted(row["number"] for row in table.to_pylist()) == [1, 2]


# -- judging, without Spark ---------------------------------------------------------------------------------------


def judged(plan: TopicPlan, *, old: Digest | None, ledger: Digest) -> list[str]:
    """The kinds of problems with the first block of a topic, which the journal has dropped."""
    key = (*plan.key, 0)
    found = Judgement(plan, {}, {}, {} if old is None else {key: old}, {key: ledger})
    found.judge()
    return [one.kind for one in found.report.problems]


def test_a_block_that_agreed_once_has_to_stay_as_it_was_unless_a_user_removed_it() -> None:
    end = 2 * BLOCK
    agreed, other = Digest(BLOCK, 7, 9), Digest(BLOCK - 1, 6, 9)

    def plan(reason: str) -> TopicPlan:
        return TopicPlan("t", 1, end, TopicBounds("t", 1, BLOCK, end, removed=((0, BLOCK, reason),)))

    assert judged(plan("retention_age"), old=agreed, ledger=agreed) == []
    assert judged(plan("retention_age"), old=other, ledger=agreed) == ["changed"]
    assert judged(plan("retention_age"), old=None, ledger=agreed) == ["changed"]
    assert judged(plan(TRIMMED), old=None, ledger=agreed) == []


def test_a_lake_with_more_than_the_journal_ever_had_is_of_another_journal() -> None:
    report = Judgement(TopicPlan("t", 1, 9, TopicBounds("t", 1, 0, 5, removed=())), {}, {}, {}, {})
    report.judge()
    assert [(one.kind, one.first, one.end) for one in report.report.problems] == [("ahead", 5, 9)]


def test_of_ranges_that_overlap_each_offset_counts_once_and_only_as_far_as_it_is_archived() -> None:
    removed = ((0, 10, "trimmed"), (5, 20, "compacted by key"), (18, 40, "retention_age"))
    plan = TopicPlan("t", 1, 30, TopicBounds("t", 1, 10, 50, removed=removed))
    assert [*plan.removed_apart()] == [(0, 10, "trimmed"), (10, 20, "compacted by key"), (20, 30, "retention_age")]
