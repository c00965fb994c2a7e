"""The remote publisher: packed batches are checked once, then stored and handed on as they came."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runnel
from runnel import Broker, Span
from runnel.broker.packed_publisher import LocalPackedPublisher
from runnel.core.backend import SLICE
from runnel.core.batch_format import DELTAS, JSON, TIMES, pack
from runnel.core.options import SubscribeOptions
from runnel.core.publishing import PublishDetails
from runnel.core.record import Meta
from runnel.core.schema import Codec, Schema
from runnel.core.transaction import TransactionRequest
from runnel.wire.wire_batch import wire_batches
from tests.carried import columns_of
from tests.contract.reading import at_rest, read


@pytest.fixture(params=["memory", "folder"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    async with runnel.open(None if request.param == "memory" else tmp_path) as opened:
        yield opened


class Sender:
    """Publishes packed batches, and waits for what comes of it."""

    def __init__(self, broker: Broker) -> None:
        self.publisher = LocalPackedPublisher(broker.backend)

    def send(
        self, topic: str, data: bytes, details: PublishDetails | None = None, **options: Any
    ) -> asyncio.Future[Span]:
        found: asyncio.Future[Span] = asyncio.get_running_loop().create_future()

        def done(result: Span | Exception) -> None:
            if isinstance(result, Exception):
                found.set_exception(result)
            else:
                found.set_result(result)

        self.waiting = self.publisher.publish(topic, data, details, done, **options)
        return found


@pytest.fixture
def sender(broker: Broker) -> Sender:
    return Sender(broker)


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.seg"))


def offsets(span: Span) -> tuple[int, int]:
    return span.first.offset, span.last.offset


async def test_a_batch_is_published_whole(broker: Broker, sender: Sender) -> None:
    metas = [None, Meta(b"k", {"h": "x"})]
    async with broker.subscribe("t") as subscription:
        assert offsets(await sender.send("t", pack([b"a", b"b"], columns_of(metas)))) == (0, 1)
        one, two = await read(subscription, 2)
    assert (one.value, one.key, two.value, two.key, dict(two.headers)) == (b"a", None, b"b", b"k", {"h": "x"})


async def test_it_reaches_readers_afar_in_the_bytes_it_came_in(broker: Broker, sender: Sender) -> None:
    reader = broker.backend.reader("t", SubscribeOptions(), lambda: None, far=True)
    reader.enter()
    data = [pack([b"a", b"b"]), pack([b"c"])]
    for one in data:
        await sender.send("t", one)
    found = reader.take(SLICE)
    assert found is not None
    pieces = [piece for part in found.slices for piece in wire_batches(part, None)]
    assert [piece.packed for piece in pieces] == data
    assert all(piece.packed is one for piece, one in zip(pieces, data, strict=True))


async def test_what_the_disk_holds_is_what_came(tmp_path: Path) -> None:
    data = pack([b"a", b"b"], compression="zstd", producer=5)
    async with runnel.open(tmp_path) as broker:
        await Sender(broker).send("t", data)
    assert any(data in file.read_bytes() for file in segments(tmp_path))


async def test_publishes_of_one_turn_keep_their_order_and_share_a_commit(tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as broker:
        sender = Sender(broker)
        await sender.send("t", pack([b"first"]))
        journal = broker.statistics().journal
        assert journal is not None
        before = journal.syncs
        spans = await asyncio.gather(*(sender.send("t", pack([b"%d" % n])) for n in range(50)))
        assert [span.first.offset for span in spans] == list(range(1, 51))
        journal = broker.statistics().journal
        assert journal is not None
        assert journal.syncs - before <= 2


async def test_what_is_sent_again_is_stored_once(broker: Broker, sender: Sender) -> None:
    data = [pack([b"%d" % n], producer=9, producer_sequence=n) for n in range(3)]
    first = await asyncio.gather(*(sender.send("t", one) for one in data))
    again = await asyncio.gather(*(sender.send("t", one) for one in data))
    assert first == again
    assert broker.statistics().published == 3


async def test_what_is_still_on_its_way_is_joined(broker: Broker, sender: Sender) -> None:
    data = pack([b"a"], producer=9, producer_sequence=0)
    one, two = sender.send("t", data), sender.send("t", data)
    assert await one == await two
    assert broker.statistics().published == 1


async def test_a_number_that_leaves_others_out_is_refused(sender: Sender) -> None:
    await sender.send("t", pack([b"a"], producer=9, producer_sequence=0))
    with pytest.raises(runnel.SequenceGap):
        await sender.send("t", pack([b"c"], producer=9, producer_sequence=2))


async def test_a_message_id_is_stored_once(broker: Broker, sender: Sender) -> None:
    about = PublishDetails(message_id="m")
    assert await sender.send("t", pack([b"a"]), about) == await sender.send("t", pack([b"a"]), about)
    with pytest.raises(runnel.BadBatch, match="an id is for one"):
        await sender.send("t", pack([b"a", b"b"]), about)


async def test_an_expected_offset(broker: Broker, sender: Sender) -> None:
    assert offsets(await sender.send("t", pack([b"a"]), PublishDetails(expected_offset=0))) == (0, 0)
    with pytest.raises(runnel.OffsetConflict):
        await sender.send("t", pack([b"a"]), PublishDetails(expected_offset=0))


async def test_options_come_with_the_first_publish_and_conflicts_are_refused(broker: Broker, sender: Sender) -> None:
    await sender.send("t", pack([b"a"]), PublishDetails(options={"retention_count": 5}))
    with pytest.raises(runnel.TopicConflict):
        await sender.send("t", pack([b"a"]), PublishDetails(options={"retention_count": 6}))
    with pytest.raises(runnel.InvalidOption, match="did you mean"):
        await sender.send("t", pack([b"a"]), PublishDetails(options={"retention_cuont": 6}))


async def test_a_type_that_only_its_schema_is_known_of(broker: Broker, sender: Sender) -> None:
    about = PublishDetails(schema=Schema(encoding="json", schema=Codec(dict[str, int]).schema))
    await sender.send("t", pack([b'{"a": 1}'], content_type=JSON), about)
    await sender.send("t", pack([b'{"a": 1}']))
    with pytest.raises(runnel.ValidationFailed):
        await sender.send("t", pack([b"{"]))
    with pytest.raises(runnel.SchemaConflict):
        await sender.send(
            "t", pack([b"1"]), PublishDetails(schema=Schema(encoding="msgpack", schema={"type": "integer"}))
        )


async def test_a_type_that_is_known_here_looks_at_every_value(broker: Broker, sender: Sender) -> None:
    await broker.topic("t", int).publish(1)
    with pytest.raises(runnel.ValidationFailed):
        await sender.send("t", pack([b'"no"'], content_type=JSON))


@pytest.mark.parametrize("column", [DELTAS, TIMES])
async def test_offsets_and_times_are_not_the_publishers_to_give(sender: Sender, column: int) -> None:
    data = pack([b"a"], deltas=[0]) if column == DELTAS else pack([b"a"], times=[5])
    with pytest.raises(runnel.BadBatch, match="the broker's to give"):
        await sender.send("t", data)


async def test_a_record_that_is_too_large_is_refused(sender: Sender) -> None:
    with pytest.raises(runnel.TooLarge):
        await sender.send("t", pack([bytes(17 * 1024 * 1024)]))


@given(st.binary(max_size=200))
def test_garbage_is_an_error_and_nothing_else(garbage: bytes) -> None:
    async def tried() -> None:
        async with runnel.open() as broker:
            with pytest.raises(runnel.BadBatch):
                await Sender(broker).send("t", garbage)
            assert await broker.topics() == []

    asyncio.run(tried())


async def test_a_flipped_bit_is_found(sender: Sender) -> None:
    data = bytearray(pack([b"a"]))
    data[-1] ^= 1
    with pytest.raises(runnel.BadBatch, match="checksum"):
        await sender.send("t", bytes(data))


async def test_publishes_that_wait_for_room_keep_their_order(broker: Broker, sender: Sender) -> None:
    async with broker.subscribe("t", policy="block", buffer=1) as subscription:
        sent = [sender.send("t", pack([b"%d" % n], producer=9, producer_sequence=n)) for n in range(5)]
        await at_rest()
        assert [one.done() for one in sent][1:] == [False] * 4
        assert [record.value for record in await read(subscription, 5)] == [b"%d" % n for n in range(5)]
        assert [(await one).first.offset for one in sent] == list(range(5))


async def test_one_that_waits_can_be_taken_back(broker: Broker, sender: Sender) -> None:
    async with broker.subscribe("t", policy="block", buffer=1) as subscription:
        await sender.send("t", pack([b"a"]))
        sender.send("t", pack([b"b"]))
        await at_rest()
        assert sender.waiting is not None
        assert sender.waiting.withdraw()
        await at_rest()
        sent = sender.send("t", pack([b"c"]))
        assert [record.value for record in await read(subscription, 2)] == [b"a", b"c"]
        await sent


async def test_one_that_is_on_its_way_to_disk_is_not_taken_back(tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as broker:
        sender = Sender(broker)
        await sender.send("t", pack([b"a"]))
        sent = sender.send("t", pack([b"b"]), PublishDetails(expected_offset=1))
        waiting = sender.waiting
        assert waiting is not None
        while waiting.is_waiting:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)
        assert not waiting.withdraw()
        assert offsets(await sent) == (1, 1)


async def test_waiting_for_oneself_is_refused(broker: Broker, sender: Sender) -> None:
    options = SubscribeOptions.of({"policy": "block", "buffer": 1})
    reader = broker.backend.reader("t", options, lambda: None, far=True)
    reader.enter()
    await sender.send("t", pack([b"a"]))
    with pytest.raises(runnel.WouldDeadlock):
        await sender.send("t", pack([b"b"]), readers=[reader])


async def test_it_waits_until_it_was_processed_if_asked(broker: Broker, sender: Sender) -> None:
    async with broker.subscribe("t") as subscription:
        sent = sender.send("t", pack([b"a"]), PublishDetails(wait=True))
        await read(subscription, 1)
        assert not sent.done()
        asking = asyncio.ensure_future(anext(subscription))
        assert offsets(await sent) == (0, 0)
        asking.cancel()


async def test_a_transaction_takes_batches_too(broker: Broker, sender: Sender) -> None:
    request = TransactionRequest()
    one = request.publish(*sender.publisher.plan("t", pack([b"a", b"b"]), None))
    two = request.publish(*sender.publisher.plan("u", pack([b"c"]), PublishDetails(expected_offset=0)))
    await broker.backend.commit(request)
    assert (offsets(one.span), offsets(two.span)) == ((0, 1), (0, 0))


async def test_a_topic_that_was_deleted_is_made_anew(broker: Broker, sender: Sender) -> None:
    first = await sender.send("t", pack([b"a"]))
    await broker.delete("t")
    again = await sender.send("t", pack([b"b"]))
    assert again.first.offset == 0
    assert again.first.epoch > first.first.epoch


async def test_a_closed_broker_refuses(broker: Broker, sender: Sender) -> None:
    await sender.send("t", pack([b"a"]))
    broker.close()
    with pytest.raises(runnel.BrokerClosed):
        await sender.send("t", pack([b"b"]))


async def test_a_long_loop_iteration_is_reported_where_readers_could_fall_behind() -> None:
    async with runnel.open() as broker:
        sender = Sender(broker)
        await sender.send("t", pack([b"x"]))
        assert not sender.publisher.is_turn_over
        await sender.send("t", pack([b"x"] * 5000))
        assert sender.publisher.is_turn_over
