"""What a folder keeps: records, names, topics, types. Each promise after a clean end, and after a kill."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import runnel
from runnel import Broker, Position
from runnel.core.errors import FolderInUse, FolderUnusable
from runnel.testing.clock import JumpingClock
from tests.contract.lives import Folder
from tests.contract.reading import read, rest, running, values, visible
from tests.patience import PATIENCE


class Order(msgspec.Struct):
    id: int


class GrownOrder(msgspec.Struct):
    id: int
    note: str = ""


class OtherOrder(msgspec.Struct):
    id: str


async def history(broker: Broker, pattern: str) -> list[runnel.Record[bytes]]:
    """All that can be read of a pattern now."""
    async with broker.subscribe(pattern, start="earliest") as subscription:
        count = sum(topic.end - topic.first for name, topic in broker.statistics().topics.items())
        if pattern != ">":
            count = broker.statistics().topics[pattern].end - broker.statistics().topics[pattern].first
        return await read(subscription, count)


# -- records ----------------------------------------------------------------------------------------------------


async def test_records_survive_with_all_that_they_carry(folder: Folder, clock: JumpingClock) -> None:
    async with folder.life() as broker:
        for number in range(3):
            await broker.publish("t", b"%d" % number, key=f"k{number}", headers={"n": str(number)})
            await clock.advance(1.5)
        await broker.topic("t").publish_many([b"a", b"", b"c"], keys=["x", None, "z"])
        await broker.publish("t", b"last")
        before = await history(broker, "t")
    assert len(before) == 7
    for _ in range(2):
        async with folder.life() as broker:
            assert await history(broker, "t") == before


async def test_what_was_only_handed_over_survives_a_close(data: Folder) -> None:
    async with data.life() as broker:
        for number in range(1000):
            broker.topic("t").publish_nowait(b"%d" % number)
    async with data.life() as broker:
        assert [record.value for record in await history(broker, "t")] == [b"%d" % n for n in range(1000)]


async def test_offsets_and_sequences_go_on_and_the_epoch_stays(folder: Folder) -> None:
    places: list[Position] = []
    for _ in range(4):
        async with folder.life() as broker:
            places.append(await broker.publish("t", b"x"))
            await broker.publish("other", b"y")
    async with folder.life() as broker:
        records = await history(broker, ">")
    assert places == [Position(places[0].epoch, offset) for offset in range(4)]
    assert [(record.topic, record.offset) for record in records] == [
        (topic, offset) for offset in range(4) for topic in ("t", "other")
    ]
    sequences = [record.sequence for record in records]
    assert sequences == sorted(set(sequences))


async def test_time_never_goes_back(folder: Folder) -> None:
    async with folder.life() as broker:
        await folder.clock.advance(1000)
        await broker.publish("t", b"a")
    folder.clock = type(folder.clock)()  # a machine that lost its time
    async with folder.life() as broker:
        await broker.publish("t", b"b")
        first, second = await history(broker, "t")
    assert second.time >= first.time


@pytest.mark.parametrize("fsync", ["interval", "os"])
async def test_no_offset_and_no_sequence_is_given_twice_where_not_every_commit_is_synced(
    folder: Folder, fsync: str
) -> None:
    seen: set[tuple[int, int]] = set()
    sequences: list[int] = []
    for life in range(3):
        async with folder.life(fsync=fsync) as broker:
            await broker.topic("memory", durable=False).publish(b"%d" % life)
            span = await broker.topic("t").publish_many([b"%d" % life] * 5)
            new = {(span.first.epoch, offset) for offset in range(span.first.offset, span.last.offset + 1)}
            assert not new & seen
            seen |= new
            async with broker.subscribe("*", start="earliest") as subscription:
                records = await read(subscription, 5 * (life + 1) + 1)
            assert [record.value for record in records if record.topic == "t"] == [
                b"%d" % number for number in range(life + 1) for _ in range(5)
            ]
            sequences += [record.sequence for record in records[-6:]]
    assert sequences == sorted(set(sequences))


# -- names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_a_name_resumes_at_the_record_in_hand(folder: Folder, pattern: str) -> None:
    async with folder.life() as broker:
        await broker.topic("t").publish_many([b"%d" % number for number in range(10)])
    resumed = []
    for _ in range(3):
        async with folder.life() as broker, broker.subscribe(pattern, name="n") as subscription:
            resumed.append(await values(subscription, 3))
    assert resumed == [[b"0", b"1", b"2"], [b"2", b"3", b"4"], [b"4", b"5", b"6"]]


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_a_name_that_asked_for_more_resumes_behind_all_that_it_had(folder: Folder, pattern: str) -> None:
    async with folder.life() as broker:
        await broker.topic("t").publish_many([b"a", b"b"])
        async with broker.subscribe(pattern, name="n") as subscription:
            async with running(read(subscription, 3)):
                pass
    async with folder.life() as broker, broker.subscribe(pattern, name="n") as subscription:
        await broker.publish("t", b"c")
        assert await values(subscription, 1) == [b"c"]


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_a_name_resumes_at_the_batch_in_hand(folder: Folder, pattern: str) -> None:
    async with folder.life() as broker:
        await broker.topic("t").publish_many([b"%d" % number for number in range(10)])
        async with broker.subscribe(pattern, name="n") as subscription:
            batches = subscription.batches(max_records=3)
            await anext(batches)
            assert (await anext(batches)).values == (b"3", b"4", b"5")
    async with folder.life() as broker, broker.subscribe(pattern, name="n") as subscription:
        assert await values(subscription, 2) == [b"3", b"4"]


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_a_name_keeps_its_place_while_it_is_open(data: Folder, pattern: str) -> None:
    async with data.life() as broker:
        await broker.topic("t").publish_many([b"%d" % number for number in range(5)])
        async with broker.subscribe(pattern, name="n") as subscription:
            await read(subscription, 3)
            await broker.backend.flushed()
            crashed = data.copy()
    async with crashed.life() as broker, broker.subscribe(pattern, name="n") as subscription:
        assert await values(subscription, 1) == [b"2"]


async def test_a_name_belongs_to_its_pattern_in_the_next_life_too(folder: Folder) -> None:
    async with folder.life() as broker, broker.subscribe("t", name="n"):
        pass
    async with folder.life() as broker:
        with pytest.raises(runnel.InvalidOption, match="holds a position on 't'"):
            await broker.subscribe("other", name="n").__aenter__()


# -- topics -----------------------------------------------------------------------------------------------------


async def test_the_options_of_a_topic_survive(folder: Folder) -> None:
    async with folder.life() as broker:
        await broker.topic("t", retention_count=3, compression="zstd", max_deliver=2, backoff=(7,)).declare()
    async with folder.life() as broker:
        assert await broker.topics() == ["t"]
        with pytest.raises(runnel.TopicConflict, match="retention_count"):
            await broker.topic("t", retention_count=4).declare()
        await broker.topic("t", retention_count=3, durable=True, backoff=(7,)).declare()
        for number in range(5):
            await broker.publish("t", b"%d" % number)
        assert [record.offset for record in await history(broker, "t")] == [2, 3, 4]
        async with broker.subscribe("t", group="g"):
            assert broker.backend.groups.find("g", "t").options.max_deliver == 2


async def test_a_topic_that_was_only_declared_survives_and_one_that_was_only_read_does_not(folder: Folder) -> None:
    async with folder.life() as broker:
        await broker.topic("declared").declare()
        async with broker.subscribe("read"):
            pass
    async with folder.life() as broker:
        assert await broker.topics() == ["declared"]


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_the_type_of_a_topic_survives(folder: Folder, encoding: str) -> None:
    async with folder.life() as broker:
        await broker.topic("orders", Order, encoding=encoding).publish(Order(1))
    async with folder.life() as broker:
        async with broker.subscribe("orders", type=Order, start="earliest") as subscription:
            assert await values(subscription, 1) == [Order(1)]
        with pytest.raises(runnel.SchemaConflict):
            await broker.topic("orders", OtherOrder, encoding=encoding).declare()
        other = "json" if encoding == "msgpack" else "msgpack"
        with pytest.raises((runnel.SchemaConflict, runnel.TopicConflict)):
            await broker.topic("orders", Order, encoding=other).declare()
        await broker.topic("orders", GrownOrder, encoding=encoding).publish(GrownOrder(2, "more"))
    async with folder.life() as broker:
        async with broker.subscribe("orders", type=GrownOrder, start="earliest") as grown:
            assert await values(grown, 2) == [GrownOrder(1), GrownOrder(2, "more")]
        with pytest.raises(runnel.SchemaConflict):
            await broker.topic("orders", Order, encoding=encoding).declare()


async def test_a_typed_topic_refuses_a_bad_value_through_an_untyped_handle_in_its_next_life(folder: Folder) -> None:
    async with folder.life() as broker:
        await broker.topic("orders", Order).publish(Order(1))
    async with folder.life() as broker:
        await broker.topic("orders", Order).declare()
        with pytest.raises(runnel.ValidationFailed, match="id"):
            await broker.publish("orders", b'{"id": "one"}')


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_the_type_of_an_earlier_life_is_checked_however_a_record_is_published(
    data: Folder, encoding: str
) -> None:
    write = msgspec.json.encode if encoding == "json" else msgspec.msgpack.encode
    good, wrong = write({"id": 1}), write({"id": "one"})
    async with data.life() as broker:
        await broker.topic("orders", Order, encoding=encoding).declare()
        await broker.topic("jobs", encoding=encoding).declare()
        async with broker.subscribe("jobs", group="g") as deliveries:
            await broker.publish("jobs", wrong)
            (await anext(deliveries)).reject("garbage")
        await visible(broker, "dead-letters.g", 1)
        await broker.topic("jobs", Order, encoding=encoding).declare()
    async with data.life() as broker:
        orders = broker.topic("orders")

        async def in_a_transaction() -> None:
            async with broker.transaction() as tx:
                tx.publish("orders", good)
                tx.publish("orders", wrong)

        async def by_a_bridge() -> None:
            async with runnel.open() as source:
                await source.publish("orders", wrong)
                await source.bridge("orders", broker).run()

        attempts: list[Callable[[], Awaitable[object]]] = [
            lambda: orders.publish(wrong),
            lambda: orders.publish_many([good, wrong]),
            lambda: orders.publish(wrong, delay=60, key="k", message_id="m"),
            lambda: orders.publish(b"", key="k"),
            lambda: orders.publish_and_wait(wrong),
            lambda: broker.producer("p").publish("orders", wrong),
            lambda: broker.stage("orders", writer="w", batch=1).write([good, wrong]),
            lambda: broker.replay("dead-letters.g"),
            in_a_transaction,
            by_a_bridge,
        ]
        for attempt in attempts:
            with pytest.raises(runnel.ValidationFailed, match="takes Order"):
                await attempt()
        with pytest.raises(runnel.ValidationFailed, match="takes Order"):
            orders.publish_nowait(wrong)
        assert broker.statistics().topics["orders"].end == 0
        assert (await orders.publish(good)).offset == 0


async def test_a_compacted_typed_topic_takes_tombstones_through_an_untyped_handle(data: Folder) -> None:
    async with data.life() as broker:
        await broker.topic("orders", Order, compact=True).publish(Order(1), key="1")
    async with data.life() as broker:
        await broker.publish("orders", None, key="1")
        with pytest.raises(runnel.ValidationFailed):
            await broker.publish("orders", b"")
        assert [record.value for record in await history(broker, "orders")] == [b'{"id":1}', b""]


async def test_a_deleted_topic_stays_deleted(folder: Folder) -> None:
    async with folder.life() as broker:
        await broker.topic("t").publish_many([b"x"] * 10)
        await broker.publish("kept", b"y")
        await broker.delete("t")
    async with folder.life() as broker:
        assert await broker.topics() == ["kept"]
        assert [record.topic for record in await history(broker, ">")] == ["kept"]


@pytest.mark.parametrize("when", ["same life", "next life"])
async def test_a_position_of_a_deleted_topic_is_never_mistaken_for_one_in_the_new(folder: Folder, when: str) -> None:
    async with folder.life() as broker:
        await broker.topic("t").publish_many([b"old"] * 3)
        old = await broker.publish("t", b"old")
        async with broker.subscribe("t", name="n") as subscription:
            await read(subscription, 4)
        await broker.delete("t")
        if when == "same life":
            await broker.topic("t").publish_many([b"new"] * 10)
    async with folder.life() as broker:
        if when == "next life":
            await broker.topic("t").publish_many([b"new"] * 10)
        for start in ({"start": old}, {"name": "n"}):
            async with broker.subscribe("t", **start) as subscription:
                record = await anext(subscription)
            assert (record.value, record.offset) == (b"new", 0)
            assert record.epoch > old.epoch
            assert record.gap is not None
            assert "deleted and made again" in record.gap.reason


async def test_a_topic_made_again_has_an_epoch_of_its_own_in_every_life(folder: Folder) -> None:
    epochs = []
    for _ in range(3):
        async with folder.life() as broker:
            for _ in range(2):
                epochs.append((await broker.publish("t", b"x")).epoch)
                await broker.delete("t")
    assert epochs == sorted(set(epochs))


# -- beside topics in memory ------------------------------------------------------------------------------------


async def test_topics_in_memory_live_beside_durable_ones_and_are_gone_with_the_process(folder: Folder) -> None:
    sequences: list[int] = []
    for life in range(3):
        async with folder.life() as broker:
            assert await broker.topics() == (["disk"] if life else [])
            memory, disk = broker.topic("memory", durable=False), broker.topic("disk")
            async with broker.subscribe("*") as subscription:
                for number in range(10):
                    await memory.publish(b"m%d" % number)
                    disk.publish_nowait(b"d%d" % number)
                    memory.publish_nowait(b"n%d" % number)
                await visible(broker, "disk", 10 * (life + 1))
                records = await read(subscription, 30)
            assert [record.value for record in records if record.topic == "disk"] == [b"d%d" % n for n in range(10)]
            assert [record.value for record in records if record.topic == "memory"] == [
                b"%c%d" % (kind, n) for n in range(10) for kind in b"mn"
            ]
            sequences += [record.sequence for record in records]
    assert sequences == sorted(set(sequences))


async def test_a_late_pattern_reads_memory_and_disk_in_the_order_of_sequences(data: Folder) -> None:
    async with data.life(segment_bytes=16 * 1024, tail_bytes=1) as broker:
        memory, disk = broker.topic("memory", durable=False), broker.topic("disk")
        for number in range(50):
            await memory.publish(b"%d" % number)
            await disk.publish(b"%d" % number)
        async with broker.subscribe("*", start="earliest") as subscription:
            records = await read(subscription, 100)
    assert [record.sequence for record in records] == sorted({record.sequence for record in records})
    assert [record.value for record in records] == [b"%d" % number for number in range(50) for _ in range(2)]


async def test_a_topic_in_memory_takes_nothing_that_only_a_disk_has(data: Folder) -> None:
    async with data.life() as broker:
        with pytest.raises(runnel.NotSupported, match="compression"):
            broker.topic("t", durable=False, compression="zstd")
        await broker.topic("memory", durable=False).publish(b"x")
        with pytest.raises(runnel.TopicConflict, match="durable"):
            await broker.topic("memory", durable=True).declare()
        async with broker.subscribe("memory", group="g") as deliveries:
            with pytest.raises(runnel.NotSupported, match="memory only"):
                (await anext(deliveries)).ack(durable=True)


# -- how it is stored -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
async def test_compression_gives_back_what_it_took_in_less_room(data: Folder, compression: str) -> None:
    text = [b'{"id": %d, "text": "the same words again and again"}' % number for number in range(1000)]
    async with data.life() as broker:
        await broker.topic("t").publish_many(text)
    plain = data.bytes()
    data.path = data.path.with_name("compressed")
    async with data.life() as broker:
        await broker.topic("t", compression=compression).publish_many(text, headers={"h": "x"})
    assert data.bytes() < plain / 3
    async with data.life() as broker:
        records = await history(broker, "t")
    assert [record.value for record in records] == text
    assert records[0].headers["h"] == "x"


async def test_values_of_every_size_survive(folder: Folder) -> None:
    random = Random(1)
    data = [random.randbytes(size) for size in (0, 1, 4095, 4096, 65_537, 1_000_000, 3_000_000)]
    async with folder.life() as broker:
        for value in data:
            await broker.publish("t", value)
    async with folder.life() as broker:
        assert [record.value for record in await history(broker, "t")] == data


# -- who owns it ------------------------------------------------------------------------------------------------


async def test_a_folder_belongs_to_one_broker_and_the_error_names_the_process(data: Folder) -> None:
    async with data.life() as broker:
        with pytest.raises(FolderInUse, match=str(os.getpid())) as caught:
            await data.open(share=False).__aenter__()
        assert caught.value.pid == os.getpid()
        assert (await broker.publish("t", b"x")).offset == 0
    async with data.life() as broker:
        assert (await broker.publish("t", b"y")).offset == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda broker: broker.publish("t", b"x"),
        lambda broker: broker.topic("t").declare(),
        lambda broker: broker.topics(),
        lambda broker: broker.delete("t"),
        lambda broker: broker.subscribe("t").__aenter__(),
        lambda broker: broker.subscribe("t", group="g").__aenter__(),
        lambda broker: broker.run(),
    ],
)
async def test_a_broker_with_a_folder_is_used_inside_its_block(
    data: Folder, use: Callable[[Broker], Awaitable[Any]]
) -> None:
    broker = data.open()
    with pytest.raises(runnel.NotSupported, match="async with"):
        await use(broker)
    async with broker:
        assert await broker.topics() == []


async def test_a_broker_with_a_folder_is_not_entered_twice(data: Folder) -> None:
    async with data.life() as broker:
        await broker.publish("t", b"x")
    with pytest.raises(runnel.BrokerClosed):
        await broker.__aenter__()
    assert (await asyncio.to_thread(os.listdir, data.path)) != []


def test_a_folder_without_asyncio(tmp_path: Path) -> None:
    with runnel.blocking.open(tmp_path / "data") as broker:
        position = broker.publish("t", "hello", key="k")
        assert broker.topic("t").publish_many([b"a", b"b"]).records() == 2
    with runnel.blocking.open(tmp_path / "data", fsync="commit") as broker:
        with broker.subscribe("t", start="earliest") as records:
            record = records.receive(timeout=PATIENCE)
            assert (record.value, record.key, record.position) == (b"hello", b"k", position)
        with broker.subscribe("t", group="g") as deliveries:
            deliveries.receive(timeout=PATIENCE).ack()
    with runnel.blocking.open(tmp_path / "data") as broker, broker.subscribe("t", group="g") as deliveries:
        assert deliveries.receive(timeout=PATIENCE).record.offset == 1


async def test_a_reader_reads_to_the_end_when_the_broker_closes(data: Folder) -> None:
    async with data.life() as broker:
        async with broker.subscribe("t") as subscription:
            for number in range(100):
                broker.topic("t").publish_nowait(b"%d" % number)
            broker.close()
            assert [record.value for record in await rest(subscription)] == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_a_broker_that_was_closed_before_its_folder_was_open_lets_it_go(data: Folder, turns: int) -> None:
    broker = data.open()
    entering = asyncio.ensure_future(broker.__aenter__())
    for _ in range(turns):
        await asyncio.sleep(0)
    if not entering.done():
        broker.close()
        with pytest.raises(runnel.BrokerClosed):
            await entering
    broker.close()
    async with data.life() as another:
        assert (await another.publish("t", b"x")).offset == 0


async def test_a_path_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FolderUnusable, match="cannot hold a journal"):
            await runnel.open(path).__aenter__()


async def test_a_strict_name_that_has_read_nothing_of_an_earlier_life_has_missed_nothing(folder: Folder) -> None:
    async with folder.life() as broker:
        async with broker.subscribe("t", name="n", strict=True):
            pass
    async with folder.life() as broker:
        await broker.publish("t", b"first")
        async with broker.subscribe("t", name="n", strict=True) as records:
            assert (await anext(records)).gap is None


async def test_a_name_that_is_left_and_taken_again_at_once_is_kept_where_it_is_now(data: Folder) -> None:
    async with data.life() as broker:
        await broker.topic("t").publish_many([b"x"] * 20)
        for count in (5, 10):
            async with broker.subscribe("t", name="n") as records:
                await read(records, count)
                await broker.topic("other").declare()  # has all positions written
                store = broker.backend.store
                assert store is not None
                assert store.journal.ledger.cursors["n"].place == records.position
