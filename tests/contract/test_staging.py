"""Staging: durable and invisible, then visible at once. Small stages and large ones keep the same promises."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from runnel import Broker
from runnel.api.stage import Stage
from runnel.broker.durable import staging
from runnel.core.errors import (
    BrokerClosed,
    InvalidOption,
    InvalidValue,
    NotSupported,
    StageEnded,
    StagingFull,
    UnknownStage,
    ValidationFailed,
)
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.conftest import Place
from tests.contract.lives import ON_DISK, Folder
from tests.contract.reading import coordinates, read, running, soon, until, values
from tests.contract.working import look, work
from tests.nightly import nightly_beyond

NUMBERS = [b"%d" % number for number in range(10)]


@pytest.fixture(params=["written again", "named"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a stage is committed: as if all were small, or as if none was."""
    if request.param == "named":
        monkeypatch.setattr(staging, "INLINE_BYTES", 0)
    return str(request.param)


async def staged(broker: Broker, numbers: Sequence[bytes] = NUMBERS, topic: str = "t", **key: Any) -> Stage[bytes]:
    named: dict[str, Any] = {"writer": "w", "batch": 1} | key
    stage = broker.stage(topic, **named)
    await stage.write(numbers)
    return stage


async def commit(broker: Broker, *stages: Any) -> None:
    async with broker.transaction() as tx:
        tx.commit(*stages)


async def everything(broker: Broker, pattern: str = "t") -> list[bytes]:
    async with broker.subscribe(pattern, start="earliest") as subscription:
        return await soon(values(subscription, subscription.lag)) if subscription.lag else []


# -- invisible, then visible ------------------------------------------------------------------------------------


async def test_no_reader_sees_what_is_staged_until_it_is_committed(data: Folder) -> None:
    async with data.life() as broker:
        await broker.publish("t", b"before")
        async with broker.subscribe("t") as alone, broker.subscribe(">") as pattern:
            stage = await staged(broker)
            assert (stage.records, stage.bytes > 0) == (10, True)
            await broker.publish("t", b"between")
            assert await values(alone, 1) == await values(pattern, 1) == [b"between"]
            assert broker.statistics().topics["t"].end == 2
            await commit(broker, stage)
            await broker.publish("t", b"after")
            expected = [("t", 2 + number, 2 + number) for number in range(11)]
            for subscription in (alone, pattern):
                records = await soon(read(subscription, 11))
                assert [record.value for record in records] == [*NUMBERS, b"after"]
                assert coordinates(records) == expected
        assert broker.statistics().topics["t"].end == 13


@pytest.mark.parametrize("options", [{}, ON_DISK])
async def test_what_was_committed_is_read_again_in_the_next_life(folder: Folder, options: dict[str, Any]) -> None:
    many = [b"%04d" % number for number in range(3000)]
    async with folder.life(**options) as broker:
        await broker.publish("other", b"0")
        stage = broker.stage("t", writer="w", batch=1)
        for start in range(0, 3000, 500):
            await stage.write(many[start : start + 500], keys=[b"k%d" % (start % 7)] * 500)
            await broker.publish("other", b"x")
        await commit(broker, stage)
        await broker.publish("t", b"last")
        assert await everything(broker) == [*many, b"last"]
    async with folder.life(**options) as broker:
        assert await everything(broker) == [*many, b"last"]
        async with broker.subscribe(">", start="earliest") as subscription:
            found = await soon(read(subscription, 3008))
        assert [record.value for record in found if record.topic == "t"] == [*many, b"last"]
        assert [record.sequence for record in found] == sorted(record.sequence for record in found)
        assert found[7].key == b"k0"
        async with broker.subscribe("t", start=2995) as subscription:
            assert await soon(values(subscription, 6)) == [*many[2995:], b"last"]
        assert await broker.stages() == []


async def test_a_group_gets_each_record_once_and_all_its_notices(folder: Folder) -> None:
    async with folder.life(**ON_DISK) as broker, broker.subscribe("t", group="g") as early:
        await broker.publish("t", b"first")
        stage = await staged(broker)
        await commit(broker, stage)
        for value in [b"first", *NUMBERS[:5]]:
            delivery = await soon(anext(early))
            assert delivery.value == value
            await delivery.ack(durable=True)
    async with folder.life(**ON_DISK) as broker:
        async with broker.subscribe("t", group="g") as late, broker.subscribe(">", group="h") as other:
            assert await soon(work(late, 5)) == NUMBERS[5:]
            assert await soon(work(other, 11)) == [b"first", *NUMBERS]
            assert look(broker, "g").lag == look(broker, "h").lag == 0


async def test_stages_publishes_and_marks_are_one(folder: Folder) -> None:
    async with folder.life() as broker, broker.subscribe(">") as subscription:
        one = await staged(broker, part=0)
        two = await staged(broker, [b"a", b"b"], topic="u", part=1)
        async with broker.transaction() as tx:
            place = tx.publish("t", b"beside")
            (first, second) = tx.commit(one, ("w", 1, 1, 0))
            tx.mark("job", 7)
            assert (one.records, broker.statistics().topics["t"].end) == (10, 0)
        found = await soon(read(subscription, 13))
        assert [record.value for record in found] == [b"beside", *NUMBERS, b"a", b"b"]
        assert [record.sequence for record in found] == list(range(13))
        assert (place.position.offset, first.span.first.offset, first.span.last.offset) == (0, 1, 10)
        assert (second.topic, second.span.last.offset) == ("u", 1)
        assert two.records == 2
    async with folder.life() as broker:
        assert await broker.mark("job") == 7
        assert await everything(broker) == [b"beside", *NUMBERS]


async def fail_in_a_block(broker: Broker, stage: Stage[bytes]) -> None:
    async with broker.transaction() as tx:
        tx.commit(stage)
        raise ZeroDivisionError


async def test_an_exception_in_the_block_leaves_the_stage_open(data: Folder) -> None:
    async with data.life() as broker:
        stage = await staged(broker)
        with pytest.raises(ZeroDivisionError):
            await fail_in_a_block(broker, stage)
        assert await everything(broker) == []
        await stage.write([b"more"])
        await commit(broker, stage)
        assert await everything(broker) == [*NUMBERS, b"more"]


async def test_a_transaction_that_was_done_before_needs_no_stage(data: Folder) -> None:
    async with data.life() as broker:
        stage = await staged(broker)
        for expected in (True, False):
            async with broker.transaction() as tx:
                tx.commit(stage)
                tx.mark("w", 1)
            assert tx.applied is expected
        assert await everything(broker) == NUMBERS


async def test_writing_nothing_opens_a_stage_that_can_be_committed(folder: Folder) -> None:
    async with folder.life() as broker:
        stage = await staged(broker, [])
        assert stage.records == 0
    async with folder.life() as broker:
        assert [info.key for info in await broker.stages()] == [stage.key]
        async with broker.transaction() as tx:
            (where,) = tx.commit(stage.key)
        assert where.topic == "t"
        assert await broker.stages() == []
        assert await everything(broker) == []


# -- keys and attempts ------------------------------------------------------------------------------------------


async def test_a_later_attempt_takes_the_place_of_the_earlier_ones(folder: Folder) -> None:
    async with folder.life() as broker:
        first = await staged(broker, attempt=0)
        other = await staged(broker, [b"other"], part=1)
        second = await staged(broker, NUMBERS[:3], attempt=2)
        for late in (first, broker.stage("t", writer="w", batch=1, attempt=1)):
            with pytest.raises(StageEnded, match="attempt 2 superseded it"):
                await late.write([b"late"])
            with pytest.raises(StageEnded, match="attempt 2 superseded it"):
                await commit(broker, late)
        assert [(info.part, info.attempt, info.records) for info in await broker.stages()] == [(0, 2, 3), (1, 0, 1)]
    async with folder.life() as broker:
        assert [info.attempt for info in await broker.stages()] == [2, 0]
        await commit(broker, second.key, other.key)
        assert await everything(broker) == [*NUMBERS[:3], b"other"]


async def test_the_next_life_continues_a_stage_and_any_client_commits_it(folder: Folder) -> None:
    async with folder.life() as broker:
        await staged(broker, NUMBERS[:4])
    async with folder.life() as broker:
        stage = broker.stage("t", writer="w", batch=1)
        assert (stage.records, stage.bytes > 0) == (4, True)
        assert await stage.write(NUMBERS[4:]) == 10
    async with folder.life() as broker:
        await commit(broker, ("w", 1, 0, 0))
        assert await everything(broker) == NUMBERS


async def test_a_write_that_is_repeated_stages_what_is_missing(folder: Folder) -> None:
    async with folder.life() as broker:
        stage = broker.stage("t", writer="w", batch=1)
        assert await stage.write(NUMBERS[:4], ordinal=0) == 4
        assert await stage.write(NUMBERS[:6], ordinal=0) == 6
        assert await stage.write(NUMBERS[4:6], ordinal=4) == 6
    async with folder.life() as broker:
        stage = broker.stage("t", writer="w", batch=1)
        for wrong in (7, -1, True, "0"):
            with pytest.raises(InvalidOption, match="holds 6 records: the next is 6"):
                await stage.write(NUMBERS, ordinal=wrong)  # type: ignore[arg-type]
        assert await stage.write(NUMBERS[5:], ordinal=5) == 10
        await commit(broker, stage)
        assert await everything(broker) == NUMBERS


async def test_what_is_over_says_why(data: Folder) -> None:
    async with data.life() as broker:
        stage, dropped = await staged(broker), await staged(broker, part=1)
        await commit(broker, stage)
        await dropped.drop()
        await dropped.drop()
        advice = {"it was committed": "continue with the next batch", "it was dropped": "stage the records again"}
        for one, why in ((stage, "it was committed"), (dropped, "it was dropped")):
            again = broker.stage("t", writer="w", batch=1, part=one.key.part)
            for late in (one, again):
                with pytest.raises(StageEnded, match=f"{why}; .*{advice[why]}"):
                    await late.write([b"late"])
                with pytest.raises(StageEnded, match=why):
                    await commit(broker, late)
            with pytest.raises(StageEnded, match="attempt 0|" + why):
                await commit(broker, one.key)
        with pytest.raises(UnknownStage, match="nothing was written to it"):
            await commit(broker, ("w", 2, 0, 0))
        with pytest.raises(StageEnded, match="commits it already"):
            async with broker.transaction() as tx:
                tx.commit(("w", 2, 0, 0), ("w", 2, 0, 0))
        assert await everything(broker) == NUMBERS


async def test_a_stage_ends_with_its_topic(data: Folder) -> None:
    async with data.life() as broker:
        stage = await staged(broker)
        await broker.delete("t")
        assert await broker.stages() == []
        with pytest.raises(StageEnded, match="its topic was deleted"):
            await commit(broker, stage)
        with pytest.raises(StageEnded, match="its topic was deleted"):
            await stage.write(NUMBERS)
        again = await staged(broker, attempt=1)
        await commit(broker, again)
        assert await everything(broker) == NUMBERS
    async with data.life() as broker:
        assert await broker.stages() == []


async def test_a_stage_is_of_one_topic(data: Folder) -> None:
    async with data.life() as broker:
        await staged(broker)
        with pytest.raises(InvalidOption, match="is of 't'; use another part"):
            await broker.stage("u", writer="w", batch=1).write(NUMBERS)
        for wrong in ({"writer": ""}, {"batch": -1}, {"part": True}, {"attempt": "1"}):
            key: dict[str, Any] = {"writer": "w", "batch": 1} | wrong
            with pytest.raises(InvalidOption):
                broker.stage("t", **key)
        for stage in (("w", 1, 0), "w", ("w", 1, 0, -1)):
            with pytest.raises(InvalidOption):
                await commit(broker, stage)
        with pytest.raises(InvalidValue, match="put one value in a list"):
            await broker.stage("t", writer="w", batch=1).write(b"one")  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="there are 10 values"):
            await broker.stage("t", writer="w", batch=1).write(NUMBERS, keys=["k"])


# -- limits and expiry ------------------------------------------------------------------------------------------


async def test_more_than_may_be_staged_is_refused_and_what_ended_makes_room(data: Folder) -> None:
    async with data.life(max_staged_bytes=10_000) as broker:
        stage = await staged(broker, [bytes(6000)])
        other = broker.stage("t", writer="w", batch=2)
        with pytest.raises(StagingFull, match=r"max_staged_bytes is 10,000; commit or drop") as full:
            await other.write([bytes(6000)])
        assert (full.value.limit, full.value.amount > 12_000) == (10_000, True)
        assert [info.batch for info in await broker.stages()] == [1], "what was refused was never opened"
        await commit(broker, stage)
        await other.write([bytes(6000)])
    async with data.life(max_staged_bytes=10_000) as broker:
        with pytest.raises(StagingFull):
            await staged(broker, [bytes(6000)], batch=3)
        await broker.stage("t", writer="w", batch=2).drop()
        await staged(broker, [bytes(6000)], batch=3)


async def test_there_are_not_too_many_stages(data: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "MAX_STAGES", 3)
    async with data.life() as broker:
        for number in range(3):
            await staged(broker, part=number)
        with pytest.raises(StagingFull, match="4 stages would be staged"):
            await staged(broker, part=3)
        await staged(broker, part=2)
        await broker.stage("t", writer="w", batch=1).drop()
        await staged(broker, part=3)


async def test_a_stage_without_writes_expires(
    data: Folder, clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with data.life(stage_expiry=60.0) as broker:
        old = await staged(broker)
        await clock.advance(40)
        new = await staged(broker, batch=2)
        assert [(info.batch, info.age) for info in await broker.stages()] == [(1, 40), (2, 0)]
        await clock.advance(30)
        assert [info.batch for info in await broker.stages()] == [2]
        assert "stage 'w' batch 1 part 0 attempt 0 of 't' expired with 10 records" in caplog.text
        with pytest.raises(StageEnded, match="it expired: no write for 60 seconds"):
            await old.write([b"late"])
        await new.write([b"in time"])
        await clock.advance(50)
        assert new.records == 11
        assert [info.age for info in await broker.stages()] == [50]
    await clock.advance(1000)
    async with data.life(stage_expiry=60.0) as broker:
        assert await broker.stages() == []
        with pytest.raises(StageEnded, match="expired"):
            await commit(broker, new.key)
    async with data.life() as broker:
        with pytest.raises(UnknownStage):
            await commit(broker, new.key)


# -- what records carry -----------------------------------------------------------------------------------------


class Order(msgspec.Struct):
    id: int


async def test_a_typed_topic_checks_what_is_staged(folder: Folder) -> None:
    async with folder.life() as broker:
        orders = broker.topic("orders", Order)
        stage = broker.stage(orders, writer="w", batch=1)
        await stage.write([Order(1), Order(2)])
        with pytest.raises(ValidationFailed):
            await broker.stage("orders", writer="w", batch=1).write([b"not an order"])
        await commit(broker, stage)
        async with orders.subscribe(start="earliest") as subscription:
            assert await soon(values(subscription, 2)) == [Order(1), Order(2)]
    async with folder.life() as broker, broker.topic("orders", Order).subscribe(start="earliest") as subscription:
        assert await soon(values(subscription, 2)) == [Order(1), Order(2)]


async def test_a_stage_is_checked_against_the_type_that_its_topic_gets_before_the_commit(folder: Folder) -> None:
    async with folder.life() as broker:
        bad, good = (broker.stage("orders", writer=writer, batch=1) for writer in ("bad", "good"))
        await bad.write([b'{"id":1}', b"not an order"])
        await good.write([b'{"id":2}'])
        late = broker.stage("orders", writer="late", batch=1)
        await late.write([b"no order either"])
        await broker.topic("orders", Order).declare()
        with pytest.raises(ValidationFailed):
            await commit(broker, good, bad)
        await commit(broker, good)
    async with folder.life() as broker:
        with pytest.raises(ValidationFailed):  # also in another life
            await commit(broker, broker.stage("orders", writer="late", batch=1))
        async with broker.topic("orders", Order).subscribe(start="earliest") as subscription:
            assert await soon(values(subscription, 1)) == [Order(2)]
            assert subscription.lag == 0


async def test_keys_headers_delay_and_expiry_are_staged_too(folder: Folder, clock: JumpingClock) -> None:
    async with folder.life() as broker:
        topic = broker.topic("t", compression="zstd")
        stage = broker.stage(topic, writer="w", batch=1)
        await stage.write([b"plain" * 100, b"keyed" * 100], keys=[None, "k"], headers={"h": "1"}, priority=3)
        await stage.write([b"short-lived"], expires=10)
        await stage.write([b"later"], delay=100)
        assert stage.bytes < 900
        await commit(broker, stage)
    await clock.advance(20)
    async with folder.life() as broker, broker.subscribe("t", start="earliest") as subscription:
        found = await soon(read(subscription, 3))
        assert [record.value for record in found] == [b"plain" * 100, b"keyed" * 100, b"later"]
        assert [record.key for record in found] == [None, b"k", None]
        assert [dict(record.headers) for record in found] == [{"h": "1"}, {"h": "1"}, {}]
        async with broker.subscribe("t", group="g") as deliveries:
            assert [value[:5] for value in await soon(work(deliveries, 2))] == [b"plain", b"keyed"]
            await clock.advance(100)
            assert (await soon(anext(deliveries))).value == b"later"


async def test_retention_takes_what_was_staged_as_it_takes_the_rest(folder: Folder) -> None:
    async with folder.life(**ON_DISK) as broker:
        stage = broker.stage(broker.topic("t", retention_count=5), writer="w", batch=1)
        await stage.write([b"%05d" % number for number in range(5000)])
        await commit(broker, stage)
        await broker.publish("t", b"last")
        assert await everything(broker) == [b"%05d" % number for number in range(4996, 5000)] + [b"last"]
    async with folder.life(**ON_DISK) as broker:
        assert await everything(broker) == [b"%05d" % number for number in range(4996, 5000)] + [b"last"]


async def test_retention_by_bytes_counts_what_was_staged(folder: Folder) -> None:
    async with folder.life(**ON_DISK) as broker:
        topic = broker.topic("t", retention_bytes=100_000)
        for batch in range(5):
            stage = broker.stage(topic, writer="w", batch=batch)
            await stage.write([b"%02d" % batch * 50] * 1000)
            await commit(broker, stage)
        await topic.publish(b"last")
        await until(lambda: broker.statistics().topics["t"].first > 3_500)
        assert broker.statistics().topics["t"].first < 4_500
    async with folder.life(**ON_DISK) as broker:
        await until(lambda: broker.statistics().topics["t"].first > 3_500)
        async with broker.subscribe("t", start=4_500) as subscription:
            assert await soon(values(subscription, 501)) == [b"04" * 50] * 500 + [b"last"]


def cleaned(broker: Broker) -> bool:
    journal = broker.statistics().journal
    return journal is not None and journal.cleaner is not None and journal.cleaner.segments > 0


async def test_cleaning_keeps_what_is_staged_and_what_was(data: Folder) -> None:
    options: dict[str, Any] = ON_DISK | {"segment_bytes": 64 * 1024}
    rows = [b"%04d" % number * 20 for number in range(600)]
    async with data.life(**options) as broker:
        seen, later, dropped = (broker.stage(topic, writer=topic, batch=1) for topic in ("seen", "later", "dropped"))
        for start in range(0, 600, 20):
            for stage in (seen, later, dropped):
                await stage.write(rows[start : start + 20])
            await broker.topic("junk").publish_many([bytes(1000)] * 30)
        await commit(broker, seen)
        await dropped.drop()
    async with data.life(**options) as broker:
        await broker.delete("junk")
        await until(lambda: cleaned(broker))
        assert await everything(broker, "seen") == rows
        await commit(broker, later.key)
        assert await everything(broker, "later") == rows
        assert await everything(broker, ">") == rows + rows
    async with data.life(**options) as broker:
        assert await everything(broker, ">") == rows + rows


# -- side by side -----------------------------------------------------------------------------------------------


async def test_two_writers_of_one_stage_take_turns(data: Folder) -> None:
    async with data.life() as broker:
        stage = broker.stage("t", writer="w", batch=1)
        same = broker.stage("t", writer="w", batch=1)
        rows = [[b"%d-%d" % (writer, number) for number in range(3)] for writer in range(6)]
        await asyncio.gather(*((stage, same)[at % 2].write(row) for at, row in enumerate(rows)))
        await commit(broker, same)
        assert await everything(broker) == [value for row in rows for value in row]


async def test_a_commit_waits_for_the_write_that_is_under_way(data: Folder) -> None:
    async with data.life() as broker:
        stage = broker.stage("t", writer="w", batch=1)
        writing = asyncio.ensure_future(stage.write([bytes(100_000)] * 30))
        await asyncio.sleep(0)
        await commit(broker, stage)
        assert writing.done()
        assert broker.statistics().topics["t"].end == 30
        async with broker.subscribe("t", start="earliest") as subscription:
            assert await soon(values(subscription, 30)) == [bytes(100_000)] * 30


async def test_a_cancelled_write_can_be_gone_on_with(data: Folder) -> None:
    numbers = [b"%06d" % number * 1000 for number in range(600)]
    async with data.life() as broker:
        stage = broker.stage("t", writer="w", batch=1)
        async with running(stage.write(numbers)):
            pass
        assert await stage.write(numbers, ordinal=0) == 600
        await commit(broker, stage)
        assert await everything(broker) == numbers


async def test_closing_the_broker_ends_a_write_and_keeps_what_landed(data: Folder) -> None:
    numbers = [b"%06d" % number * 1000 for number in range(3000)]
    async with data.life() as broker:
        stage = broker.stage("t", writer="w", batch=1)
        writing = asyncio.ensure_future(stage.write(numbers))
        while not stage.records:  # noqa: ASYNC110 - nobody is told when a piece has landed
            await asyncio.sleep(0)
    with pytest.raises(BrokerClosed):
        await soon(writing)
    async with data.life() as broker:
        again = broker.stage("t", writer="w", batch=1)
        assert 0 < again.records < 3000
        assert await again.write(numbers, ordinal=0) == 3000
        await commit(broker, again)
        assert await everything(broker) == numbers


class Model:
    """What a broker was told, and what has to be seen of it."""

    def __init__(self) -> None:
        self.count = self.batches = 0
        self.order: list[bytes] = []
        self.topics: dict[str, list[bytes]] = {"a": [], "b": []}
        self.open: dict[int, tuple[str, list[bytes]]] = {}  # by batch

    def values(self, random: Random) -> list[bytes]:
        first, self.count = self.count, self.count + random.choice((1, 3, 200))
        return [b"%06d" % number for number in range(first, self.count)]

    def seen(self, topic: str, some: list[bytes]) -> None:
        self.topics[topic] += some
        self.order += some


async def step(model: Model, broker: Broker, random: Random) -> None:
    topic, what = random.choice("ab"), random.random()
    if what < 0.4:
        some = model.values(random)
        await broker.topic(topic).publish_many(some)
        model.seen(topic, some)
    elif what < 0.75 or not model.open:
        if not model.open or random.random() < 0.5:
            model.batches += 1
            model.open[model.batches] = (topic, [])
        batch, some = random.choice(sorted(model.open)), model.values(random)
        await broker.stage(model.open[batch][0], writer="w", batch=batch).write(some)
        model.open[batch][1].extend(some)
    else:
        chosen = random.sample(sorted(model.open), random.randint(1, len(model.open)))
        chosen.sort(key=lambda batch: model.open[batch][0])  # in one transaction, a topic's records lie side by side
        gone = [model.open.pop(batch) for batch in chosen]
        if what < 0.95:
            written = [("w", batch, 0, 0) for batch, (_, some) in zip(chosen, gone, strict=True) if some]
            await commit(broker, *written)
            for one in gone:
                model.seen(*one)
        else:
            for batch, (name, _) in zip(chosen, gone, strict=True):
                await broker.stage(name, writer="w", batch=batch).drop()


@pytest.mark.parametrize("seed", nightly_beyond(2, range(6)))
async def test_whatever_happens_a_simple_model_knows_what_is_seen(folder: Folder, seed: int) -> None:
    random, model = Random(seed), Model()
    for _ in range(3):
        async with folder.life(**(ON_DISK if seed % 2 else {})) as broker, broker.subscribe(">") as pattern:
            before = len(model.order)
            for _ in range(40):
                await step(model, broker, random)
            assert await soon(values(pattern, len(model.order) - before)) == model.order[before:]
            for topic, known in model.topics.items():
                assert await everything(broker, topic) == known
            assert await everything(broker, ">") == model.order
            held = {info.batch: info.records for info in await broker.stages()}
            assert held == {batch: len(some) for batch, (_, some) in model.open.items() if some}


# -- where it does not work -------------------------------------------------------------------------------------


@on_every_socket
async def test_what_is_kept_in_memory_only_is_not_staged(place: Place) -> None:
    async with place.open() as broker:
        topic = broker.topic("t", durable=False) if place.name in ("folder", "unix") else broker.topic("t")
        with pytest.raises(NotSupported, match="in memory only"):
            await broker.stage(topic, writer="w", batch=1).write(NUMBERS)
        assert broker.stage("t", writer="w", batch=1).records == 0
        if place.name in ("memory", "tcp", "front"):
            with pytest.raises(NotSupported, match="open it with a folder"):
                await broker.stages()
            with pytest.raises(NotSupported, match="open it with a folder"):
                await commit(broker, ("w", 1, 0, 0))


async def test_each_record_may_have_headers_of_its_own(data: Folder) -> None:
    each: list[dict[str, str] | None] = [{"n": "0"}, None, {}, {"n": "3", "m": "x"}]
    async with data.life() as broker:
        stage = broker.stage("t", writer="w", batch=1)
        await stage.write([b"0", b"1", b"2", b"3"], keys=[b"k", None, b"k", None], headers=each)
        await stage.write([b"4"], headers={"n": "4"})
        with pytest.raises(InvalidOption, match="2 values; give headers or None for each"):
            await stage.write([b"x", b"y"], headers=[{"n": "0"}])
        await commit(broker, stage)
        async with broker.subscribe("t", start="earliest") as subscription:
            found = await soon(read(subscription, 5))
        assert [dict(one.headers) for one in found] == [{"n": "0"}, {}, {}, {"n": "3", "m": "x"}, {"n": "4"}]
        assert [one.key for one in found] == [b"k", None, b"k", None, None]


async def test_a_write_with_headers_of_each_is_cut_and_repeated_like_any_other(data: Folder) -> None:
    count = 3000
    many, each = [b"%04d" % number * 100 for number in range(count)], [{"n": str(number)} for number in range(count)]
    async with data.life() as broker:
        stage = broker.stage("t", writer="w", batch=1)
        await stage.write(many[:1000], headers=each[:1000])
        assert await stage.write(many, headers=each, ordinal=0) == count
        await commit(broker, stage)
        async with broker.subscribe("t", start="earliest") as subscription:
            found = await soon(read(subscription, count))
        assert [one.headers["n"] for one in found] == [str(number) for number in range(count)]
