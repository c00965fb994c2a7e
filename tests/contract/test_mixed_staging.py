"""Stages of many topics: visible at once, and for every reader by sequence in exactly the order they were staged in."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import runnel
from runnel import Broker, MixedStage
from runnel.broker.durable import staging
from runnel.broker.tx import stage as stage_module
from runnel.core.errors import InvalidOption, NotSupported, StageEnded, StagingFull, ValidationFailed
from runnel.server.options import ServerOptions
from runnel.server.server import Server
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.conftest import Place
from tests.contract.lives import ON_DISK, Folder
from tests.contract.reading import read, soon, until
from tests.contract.test_staging import cleaned, commit
from tests.nightly import nightly_beyond

Rows = list[tuple[str, bytes]]

ONE_LISTENER = ServerOptions(port=0, json_port=None, http_port=None)
ALTERNATING: Rows = [(f"t.{number % 3}", b"%d" % number) for number in range(30)]


@pytest.fixture(params=["written again", "named"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a stage is committed: as if all were small, or as if none was."""
    if request.param == "named":
        monkeypatch.setattr(staging, "INLINE_BYTES", 0)
    return str(request.param)


async def staged(broker: Broker, rows: Sequence[tuple[str, bytes]], step: int = 7, **key: Any) -> MixedStage:
    """A stage of these rows, written some at a time."""
    named: dict[str, Any] = {"writer": "w", "batch": 1} | key
    stage: MixedStage = broker.stage(None, **named)
    for start in range(0, len(rows), step):
        for topic, value in rows[start : start + step]:
            stage.publish(topic, value)
        await stage.write()
    return stage


async def everything(broker: Broker, pattern: str = "t.>") -> Rows:
    """What a reader by sequence gets, which is also what the topics hold one by one."""
    async with broker.subscribe(pattern, start="earliest") as subscription:
        records = await soon(read(subscription, subscription.lag)) if subscription.lag else []
    assert all(record.gap is None or "retention" in record.gap.reason for record in records)
    assert [record.sequence for record in records] == sorted({record.sequence for record in records})
    for topic in {record.topic for record in records}:
        mine = [record for record in records if record.topic == topic]
        async with broker.subscribe(topic, start="earliest") as subscription:
            alone = await soon(read(subscription, len(mine)))
        assert [(one.offset, one.sequence, one.value) for one in alone] == [
            (one.offset, one.sequence, one.value) for one in mine
        ]
    return [(record.topic, record.value) for record in records]


# -- the order ----------------------------------------------------------------------------------------------------


async def test_all_topics_are_visible_at_once_and_in_the_order_of_staging(data: Folder) -> None:
    async with data.life() as broker:
        async with broker.subscribe("t.>") as pattern, broker.subscribe("t.1") as alone:
            stage = await staged(broker, ALTERNATING)
            assert (stage.records, stage.bytes > 0, stage.pending) == (30, True, 0)
            await broker.publish("t.1", b"between")
            assert [record.value for record in await soon(read(pattern, 1))] == [b"between"]
            async with broker.transaction() as tx:
                tx.publish("t.2", b"first")
                (publication,) = tx.commit(stage)
            await broker.publish("t.0", b"after")
            records = await soon(read(pattern, 32))
            assert [(one.topic, one.value) for one in records] == [("t.2", b"first"), *ALTERNATING, ("t.0", b"after")]
            assert [one.sequence for one in records] == list(range(records[0].sequence, records[0].sequence + 32))
            mine = await soon(read(alone, 11))
            assert [one.offset for one in mine] == list(range(11))
            assert [one.value for one in mine][1:] == [value for topic, value in ALTERNATING if topic == "t.1"]
        assert (publication.topic, publication.position.offset) == ("t.0", 0)
        assert await broker.stages() == []


@pytest.mark.parametrize("options", [{}, ON_DISK])
async def test_the_order_is_the_same_in_the_next_life(folder: Folder, options: dict[str, Any]) -> None:
    random = Random(5)
    rows = [(f"t.{random.randrange(40)}", b"%05d" % number * 9) for number in range(3000)]
    async with folder.life(**options) as broker:
        await broker.publish("t.7", b"before")
        stage = await staged(broker, rows, step=500)
        await commit(broker, stage)
        await broker.publish("t.7", b"last")
        expected = [("t.7", b"before"), *rows, ("t.7", b"last")]
        assert await everything(broker) == expected
    async with folder.life(**options) as broker:
        assert await everything(broker) == expected
        async with broker.subscribe("t.>", start="earliest") as subscription:
            await soon(read(subscription, 1700))
            assert [(one.topic, one.value) for one in await soon(read(subscription, 1302))] == expected[1700:]
        with_two = [row for row in expected if row[0] in ("t.1", "t.11")]
        async with broker.subscribe("t.1", start="earliest") as one, broker.subscribe("t.11", start="earliest") as two:
            found = [*await soon(read(one, one.lag)), *await soon(read(two, two.lag))]
        found.sort(key=lambda record: record.sequence)
        assert [(record.topic, record.value) for record in found] == with_two


async def test_a_group_on_a_pattern_gets_the_records_in_order_each_once(folder: Folder) -> None:
    async with folder.life(**ON_DISK) as broker:
        await commit(broker, await staged(broker, ALTERNATING))
        async with broker.subscribe("t.>", group="g") as deliveries:
            found = []
            async for delivery in deliveries:
                found.append((delivery.topic, delivery.value))
                await delivery.ack(durable=True)
                if len(found) == 20:
                    break
    async with folder.life(**ON_DISK) as broker, broker.subscribe("t.>", group="g") as deliveries:
        async for delivery in deliveries:
            found.append((delivery.topic, delivery.value))
            await delivery.ack()
            if len(found) == 30:
                break
    assert found == ALTERNATING


# -- what a stage is ----------------------------------------------------------------------------------------------


async def test_keys_headers_and_types_are_staged_too(folder: Folder, clock: JumpingClock) -> None:
    class Order(msgspec.Struct):
        id: int

    async with folder.life(**ON_DISK) as broker:
        orders = broker.topic("t.orders", Order)
        stage = broker.stage(writer="w", batch=1)
        stage.publish(orders, Order(1), key="k", headers={"h": "1"})
        stage.publish_many("t.a", [b"x", b"y"], keys=[None, b"z"], headers=[None, {"n": "2"}])
        stage.publish(orders, Order(2), priority=3, expires=1000)
        stage.publish("t.a", b"gone", expires=0.5)
        await stage.write()
        await commit(broker, stage)
        await clock.advance(1)
    async with folder.life(**ON_DISK) as broker, broker.subscribe("t.>", start="earliest") as subscription:
        found = await soon(read(subscription, 4))
        assert [(one.topic, one.key, dict(one.headers)) for one in found] == [
            ("t.orders", b"k", {"h": "1"}),
            ("t.a", None, {}),
            ("t.a", b"z", {"n": "2"}),
            ("t.orders", None, {}),
        ]
        stage = broker.stage(writer="w", batch=2)
        stage.publish("t.orders", b"no order")
        with pytest.raises(ValidationFailed):
            await stage.write()


async def test_a_topic_that_gets_a_type_before_the_commit_is_checked(folder: Folder) -> None:
    class Order(msgspec.Struct):
        id: int

    async with folder.life() as broker:
        good = await staged(broker, [("t.a", b'{"id": 1}'), ("t.b", b"x")], writer="good")
        bad = await staged(broker, [("t.a", b'{"id": 2}'), ("t.a", b"x")], writer="bad")
    async with folder.life() as broker:
        await broker.topic("t.a", Order).declare()
        with pytest.raises(ValidationFailed):
            await commit(broker, bad.key)
        await commit(broker, good.key)
        assert await everything(broker) == [("t.a", b'{"id": 1}'), ("t.b", b"x")]


async def test_the_next_life_goes_on_with_a_stage_and_repeats_what_was_written(folder: Folder) -> None:
    async with folder.life() as broker:
        stage = await staged(broker, ALTERNATING[:10])
        assert [(one.topic, one.records) for one in await broker.stages()] == [(">", 10)]
    async with folder.life() as broker:
        stage = broker.stage(writer="w", batch=1)
        assert stage.records == 10
        for topic, value in ALTERNATING[8:20]:
            stage.publish(topic, value)
        assert await stage.write(ordinal=8) == 20
        with pytest.raises(InvalidOption, match="the next is 20"):
            await stage.write(ordinal=21)
        stage.publish_many("t.9", [b"a", b"b", b"c"])
        assert await stage.write(ordinal=20) == 23
        stage.publish_many("t.9", [b"a", b"b", b"c", b"d"])
        assert await stage.write(ordinal=20) == 24
        await commit(broker, stage)
    async with folder.life() as broker:
        assert await everything(broker) == [*ALTERNATING[:20], *(("t.9", one) for one in (b"a", b"b", b"c", b"d"))]


async def test_what_was_collected_has_to_be_written_before_it_is_committed(data: Folder) -> None:
    async with data.life() as broker:
        stage = broker.stage(writer="w", batch=1)
        stage.publish("t.1", b"x")
        with pytest.raises(NotSupported, match="1 records of it were collected and not staged"):
            await commit(broker, stage)
        await stage.write()
        await commit(broker, stage)
        with pytest.raises(StageEnded):
            await commit(broker, stage)
        with pytest.raises(StageEnded):
            await stage.write()


async def test_a_stage_is_of_one_topic_or_of_many(data: Folder) -> None:
    async with data.life() as broker:
        await staged(broker, ALTERNATING)
        with pytest.raises(InvalidOption, match="another part"):
            await broker.stage("t.1", writer="w", batch=1).write([b"x"])
        await broker.stage("t.1", writer="w", batch=2).write([b"x"])
        with pytest.raises(InvalidOption, match="another part"):
            await staged(broker, ALTERNATING, batch=2)


async def test_a_later_attempt_drops_the_earlier_and_what_is_dropped_is_never_seen(folder: Folder) -> None:
    async with folder.life() as broker:
        first = await staged(broker, ALTERNATING)
        second = await staged(broker, ALTERNATING[:5], attempt=1)
        with pytest.raises(StageEnded, match="superseded"):
            await first.write()
        dropped = await staged(broker, ALTERNATING, batch=2)
        await dropped.drop()
        await commit(broker, second)
    async with folder.life() as broker:
        assert await everything(broker) == ALTERNATING[:5]


async def test_a_stage_ends_with_any_of_its_topics(folder: Folder) -> None:
    async with folder.life() as broker:
        stage = await staged(broker, ALTERNATING)
        await broker.delete("t.1")
        for again in (stage.write, lambda: commit(broker, stage)):
            with pytest.raises(StageEnded, match="one of its topics was deleted"):
                await again()
    async with folder.life() as broker:
        assert await broker.stages() == []
        assert await everything(broker) == []


async def test_a_topic_that_is_deleted_while_a_stage_is_committed_takes_only_its_own(
    data: Folder,
) -> None:
    async with data.life() as broker:
        stage = await staged(broker, ALTERNATING)
        committing = asyncio.create_task(commit(broker, stage))
        await asyncio.sleep(0)  # it is handed over, and not written
        await broker.delete("t.1")
        await committing
        expected = [row for row in ALTERNATING if row[0] != "t.1"]
        assert [row for row in await everything(broker) if row[0] != "t.1"] == expected
        await broker.publish("t.0", b"after")
    async with data.life() as broker:
        assert await everything(broker) == [*expected, ("t.0", b"after")]


async def test_there_is_a_limit_to_bytes_and_topics(data: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "MAX_TOPICS", 3)
    async with data.life(max_staged_bytes=20_000) as broker:
        stage = await staged(broker, ALTERNATING)
        with pytest.raises(StagingFull, match="4 topics"):
            await staged(broker, [("t.3", b"x")])
        with pytest.raises(StagingFull, match="bytes"):
            await staged(broker, [("t.0", bytes(30_000))])
        assert await stage.write() == 30
        await commit(broker, stage)
        assert await everything(broker) == ALTERNATING


async def test_values_that_are_larger_than_a_piece_are_cut(folder: Folder) -> None:
    rows = [(f"t.{number % 2}", bytes([number]) * 700_000) for number in range(6)]
    async with folder.life() as broker:
        stage = broker.stage(writer="w", batch=1)
        for topic, value in rows:
            stage.publish(topic, value)
        stage.publish_many("t.2", [b"%d" % number * 100_000 for number in range(10, 30)])
        assert await stage.write() == 26
        await commit(broker, stage)
    async with folder.life() as broker:
        assert await everything(broker) == [*rows, *(("t.2", b"%d" % number * 100_000) for number in range(10, 30))]


# -- what takes records away --------------------------------------------------------------------------------------


async def test_retention_takes_from_one_topic_and_the_order_of_the_rest_stays(folder: Folder) -> None:
    rows = [(f"t.{number % 3}", b"%04d" % number * 20) for number in range(1500)]
    async with folder.life(**ON_DISK) as broker:
        await broker.topic("t.1", retention_count=5).declare()
        await commit(broker, await staged(broker, rows, step=300))
        kept = [row for row in rows if row[0] == "t.1"][-5:]
        expected = [row for row in rows if row[0] != "t.1" or row in kept]
        assert await everything(broker) == expected
        await broker.topic("t.0").trim(490)
        kept = [row for row in rows if row[0] == "t.0"][490:]
        expected = [row for row in expected if row[0] != "t.0" or row in kept]
        assert await everything(broker) == expected
    async with folder.life(**ON_DISK) as broker:
        assert await everything(broker) == expected


async def test_cleaning_keeps_the_order_of_what_is_staged_and_of_what_was(data: Folder) -> None:
    options: dict[str, Any] = ON_DISK | {"segment_bytes": 64 * 1024}
    rows = [(f"t.{number % 5}", b"%04d" % number * 20) for number in range(1000)]
    async with data.life(**options) as broker:
        seen, later = (broker.stage(writer=name, batch=1) for name in ("seen", "later"))
        for start in range(0, 1000, 25):
            for stage in (seen, later):
                for topic, value in rows[start : start + 25]:
                    stage.publish(topic, value)
                await stage.write()
            await broker.topic("junk").publish_many([bytes(1000)] * 30)
        await commit(broker, seen)
        await broker.publish("t.0", b"between")
    async with data.life(**options) as broker:
        await broker.delete("junk")
        await until(lambda: cleaned(broker))
        assert await everything(broker) == [*rows, ("t.0", b"between")]
        await commit(broker, later.key)
        both = [*rows, ("t.0", b"between"), *rows]
        assert await everything(broker) == both
        await broker.topic("t.1").trim(390)  # of 400: most of what is committed of it
        await broker.topic("t.2").trim(390)
        await broker.topic("t.3").trim(390)
        kept = {topic: [row for row in both if row[0] == topic][390:] for topic in ("t.1", "t.2", "t.3")}
        expected: Rows = []
        for row in reversed(both):
            if row[0] not in kept or (kept[row[0]] and kept[row[0]].pop() == row):
                expected.insert(0, row)
        assert await everything(broker) == expected
        await broker.topic("junk").publish_many([bytes(1000)] * 200)  # so that the commits lie in sealed segments
        await broker.delete("junk")
        await until(lambda: not journal_blocks(broker))  # the cleaner put them into their topics
        assert await everything(broker) == expected
    async with data.life(**options) as broker:
        assert await everything(broker) == expected


def journal_blocks(broker: Broker) -> int:
    """How many stages of many topics are read from where they were staged."""
    return len(broker.backend.store.journal.ledger.blocks)


# -- other places -------------------------------------------------------------------------------------------------


@on_every_socket
async def test_a_stage_of_many_topics_wherever_there_is_a_folder(place: Place) -> None:
    async with place.open() as broker:
        stage = broker.stage(writer="w", batch=1)
        if place.name in ("memory", "tcp", "front"):
            with pytest.raises(NotSupported, match="open it with a folder"):
                await stage.write()
            assert stage.records == 0
            return
        stage.publish(broker.topic("t.memory", durable=False), b"x")
        with pytest.raises(NotSupported, match="in memory only"):
            await stage.write()
        async with broker.subscribe("t.>") as subscription:
            await commit(broker, await staged(broker, ALTERNATING))
            assert [(one.topic, one.value) for one in await soon(read(subscription, 30))] == ALTERNATING


async def test_a_stage_over_a_server_and_over_a_server_of_that_server(tmp_path: Path) -> None:
    class Order(msgspec.Struct):
        id: int

    async with runnel.open(tmp_path / "data") as broker, Server(broker, ONE_LISTENER) as server:
        async with runnel.open(server.listeners[0].url) as near, Server(near, ONE_LISTENER) as front:
            async with runnel.open(front.listeners[0].url) as far:
                for batch, remote in enumerate((near, far)):
                    rows = [(f"{topic}.{batch}", value) for topic, value in ALTERNATING]
                    stage = await staged(remote, rows, batch=batch)
                    stage.publish(remote.topic("orders", Order), Order(batch), key="k")
                    assert await stage.write(ordinal=30) == 31
                    assert (stage.records, stage.bytes > 0) == (31, True)
                    assert [(one.topic, one.records) for one in await remote.stages()] == [(">", 31)]
                    async with remote.transaction() as tx:
                        (publication,) = tx.commit(stage)
                    assert publication.position.offset == 0
                    assert await everything(broker, "t.*." + str(batch)) == rows
                    dropped = await staged(remote, rows, batch=batch + 2)
                    await dropped.drop()
                    with pytest.raises(StageEnded):
                        await dropped.write()
                assert await everything(broker, "orders") == [("orders", b'{"id":0}'), ("orders", b'{"id":1}')]


# -- whatever happens ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", nightly_beyond(3, range(30)))
async def test_whatever_happens_readers_by_sequence_see_the_order_of_staging(folder: Folder, seed: int) -> None:
    """Random transactions over random topics against a list, with lives, cleaning, retention and trims between."""
    random = Random(seed)
    options: dict[str, Any] = ON_DISK | {"tail_bytes": random.choice((1024, 1 << 20))}
    expected: Rows = []
    open_stages: dict[int, Rows] = {}
    made = 0

    def rows(count: int) -> Rows:
        nonlocal made
        found = []
        for _ in range(count):
            made += 1
            found.append((f"t.{random.randrange(6)}", b"%d:" % made + random.randbytes(random.choice((5, 60, 400)))))
        return found

    def forget(topic: str, first: int) -> None:
        """What lies below an offset of a topic is gone."""
        nonlocal expected
        left: Rows = []
        for row in expected:
            if row[0] == topic and offsets.setdefault(row[1], -1) < first:
                continue
            left.append(row)
        expected = left

    offsets: dict[bytes, int] = {}
    ends: dict[str, int] = {}

    def seen(more: Rows) -> None:
        for topic, value in more:
            offsets[value] = ends[topic] = ends.get(topic, -1) + 1
        expected.extend(more)

    for life in range(4):
        async with folder.life(**options) as broker:
            assert await everything(broker) == expected
            for step in range(12):
                match random.choice(("stage", "stage", "stage", "commit", "commit", "publish", "trim", "drop")):
                    case "stage":
                        batch = random.choice([*open_stages, life * 100 + step])
                        some = rows(random.choice((1, 10, 200)))
                        await staged(broker, some, step=random.choice((1, 13, 1000)), batch=batch)
                        open_stages.setdefault(batch, []).extend(some)
                    case "commit" if open_stages:
                        chosen = random.sample(sorted(open_stages), random.randint(1, min(2, len(open_stages))))
                        one = rows(1)
                        async with broker.transaction() as tx:
                            tx.publish(*one[0])
                            tx.commit(*(("w", batch, 0, 0) for batch in chosen))
                        seen(one)
                        for batch in chosen:
                            seen(open_stages.pop(batch))
                    case "publish":
                        for topic, value in (some := rows(5)):
                            await broker.publish(topic, value)
                        seen(some)
                    case "trim" if ends:
                        topic = random.choice(sorted(ends))
                        first = random.randint(0, ends[topic] + 1)
                        await broker.topic(topic).trim(first)
                        forget(topic, first)
                    case "drop" if open_stages:
                        batch = random.choice(sorted(open_stages))
                        await broker.stage(writer="w", batch=batch).drop()
                        del open_stages[batch]
                if step % 4 == 3:
                    assert await everything(broker) == expected
    async with folder.life(**options) as broker:
        assert await everything(broker) == expected
