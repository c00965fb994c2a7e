"""Transactions on a disk that is slow, full or broken: one entry, all of it or nothing, and nothing seen before."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from runnel.api.broker import Broker
from runnel.api.delivery import Delivery
from runnel.api.transaction import Transaction
from runnel.broker.topic.pending_batch import PendingBatch
from runnel.core.errors import (
    AlreadySettled,
    BadBatch,
    BrokerClosed,
    DiskFull,
    JournalFailed,
    MarkConflict,
    NotWritten,
    OffsetConflict,
    OutcomeUnknown,
    RunnelError,
    TopicDeleted,
)
from runnel.journal.format.entry import Part, PartKind, WriteFailed
from runnel.testing.clock import JumpingClock
from tests.broker.durable_broker import (
    ByHand,
    Disk,
    commits_of,
    entries,
    journal_of,
    kinds,
    log_of,
    open_on,
    turns,
    until,
)
from tests.patience import PATIENCE


def full() -> WriteFailed:
    return WriteFailed(0, 0, DiskFull(0, 0))


@pytest.fixture
async def broker(disk: Disk, clock: JumpingClock, tmp_path: Path) -> AsyncIterator[Broker]:
    async with open_on(disk, tmp_path, clock) as opened:
        for name in ("jobs", "a", "b"):
            await opened.topic(name).declare()
        yield opened


def transacting(
    broker: Broker,
    *topics: str,
    ack: Any = None,
    mark: tuple[Any, ...] | None = None,
    value: bytes = b"x",
    **options: Any,
) -> asyncio.Task[Transaction]:
    """A transaction that publishes to these topics; as far as it goes without the loop."""

    async def transact() -> Transaction:
        async with broker.transaction() as tx:
            for topic in topics:
                tx.publish(topic, value, **options)
            if ack is not None:
                tx.ack(ack)
            if mark is not None:
                tx.mark("m", *mark)
        return tx

    return asyncio.ensure_future(transact())


async def delivered(broker: Broker, deliveries: Any, count: int = 1) -> list[Delivery[bytes]]:
    for _ in range(count):
        await broker.publish("jobs", b"job")
    return [await anext(deliveries) for _ in range(count)]


def ends(broker: Broker, *topics: str) -> list[int]:
    return [log_of(broker, topic).end for topic in topics]


# -- one entry ------------------------------------------------------------------------------------------------------


async def test_all_of_it_is_one_entry_and_needs_no_other(broker: Broker, clock: JumpingClock) -> None:
    async with broker.subscribe("jobs", group="g") as deliveries:
        (delivery,) = await delivered(broker, deliveries)
        before = len(entries(journal_of(broker)))
        async with broker.transaction() as tx:
            tx.publish("a", b"1")
            tx.publish("b", b"2", message_id="id")
            tx.publish("a", b"3")
            tx.ack(delivery)
            tx.mark("m", 1)
        await clock.advance(1)
        await broker.backend.flushed()
        batches = [PartKind.BATCH, PartKind.BATCH, PartKind.MESSAGE_IDS, PartKind.BATCH]
        assert kinds(entries(journal_of(broker))[before:]) == [[*batches, PartKind.MARK, PartKind.PROGRESS]]


async def test_nothing_is_seen_before_it_has_landed_and_the_lease_does_not_end_meanwhile(
    broker: Broker, disk: Disk, clock: JumpingClock
) -> None:
    async with broker.subscribe("jobs", group="g", ack_wait=5.0) as deliveries, broker.subscribe(">") as all_of_it:
        (delivery,) = await delivered(broker, deliveries)
        assert (await anext(all_of_it)).topic == "jobs"
        disk.hold("sync")
        task = transacting(broker, "a", "b", ack=delivery, mark=(1,))
        await disk.reached()
        await clock.advance(60)
        await turns()
        assert ends(broker, "a", "b") == [0, 0]
        assert await broker.marks() == {}
        assert delivery.settled
        assert not delivery.lapsed
        late: Callable[[], object]
        for late in (delivery.ack, delivery.nack, lambda: delivery.extend(5)):
            with pytest.raises(AlreadySettled):
                late()
        assert broker.statistics().groups[0].in_flight == 1
        assert broker.statistics().groups[0].lag == 1
        disk.go_on()
        assert (await task).applied
        assert [(await anext(all_of_it)).topic for _ in range(2)] == ["a", "b"]
        assert await broker.mark("m") == 1
        assert broker.statistics().groups[0].lag == 0


async def test_a_topic_in_memory_is_appended_to_when_the_rest_has_landed(broker: Broker, disk: Disk) -> None:
    memory = broker.topic("memory", durable=False)
    await memory.publish(b"0")
    disk.hold("sync")
    task = transacting(broker, "memory", "a")
    await disk.reached()
    assert (await memory.publish(b"1")).offset == 1
    assert ends(broker, "memory", "a") == [2, 0]
    disk.go_on()
    tx = await task
    assert [wanted.publication.position.offset for wanted in tx._request.publishes] == [2, 0]
    assert log_of(broker, "memory").on_the_way() == (0, 0)


async def test_room_for_what_is_in_memory_is_kept_while_the_rest_is_written(broker: Broker, disk: Disk) -> None:
    memory = broker.topic("memory", durable=False)
    async with memory.subscribe(policy="block", buffer=2) as reading:
        await memory.publish(b"0")
        disk.hold("sync")
        task = transacting(broker, "memory", "a")
        await disk.reached()
        behind = asyncio.ensure_future(memory.publish(b"behind"))
        await turns()
        assert not behind.done()
        disk.go_on()
        await task
        assert [(await anext(reading)).value for _ in range(3)] == [b"0", b"x", b"behind"]
        await behind


# -- failures -------------------------------------------------------------------------------------------------------


async def test_a_failed_sync_leaves_nothing_and_the_delivery_open(
    broker: Broker, disk: Disk, clock: JumpingClock
) -> None:
    async with broker.subscribe("jobs", group="g", ack_wait=5.0) as deliveries:
        (delivery,) = await delivered(broker, deliveries)
        disk.hold("sync")
        task = transacting(broker, "a", "b", ack=delivery, mark=(1,))
        await disk.reached()
        behind = transacting(broker, "a")
        await clock.advance(4)
        disk.fail_next("sync")
        disk.go_on()
        with pytest.raises(OutcomeUnknown):
            await task
        with pytest.raises(NotWritten):
            await behind
        assert ends(broker, "a", "b") == [0, 0]
        assert await broker.marks() == {}
        assert not delivery.settled
        await clock.advance(4)  # it has as long as ever from now on
        assert not delivery.settled
        await delivery.nack()
        with pytest.raises(JournalFailed):
            await transacting(broker, "a")


async def test_a_full_disk_leaves_nothing_and_a_retry_does_all_of_it(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, segment_bytes=8192) as broker, broker.subscribe("jobs", group="g") as deliveries:
        (delivery,) = await delivered(broker, deliveries)
        await broker.publish("a", b"x" * 3000)
        disk.fail_next("allocate", "", errno.ENOSPC)
        with pytest.raises(DiskFull):
            await transacting(broker, "a", "b", ack=delivery, mark=(1,), value=b"x" * 2900, message_id="id")
        assert (ends(broker, "a", "b"), await broker.marks(), delivery.settled) == ([1, 0], {}, False)
        tx = await transacting(broker, "a", "b", ack=delivery, mark=(1, None), message_id="id")
        assert tx.applied
        assert (ends(broker, "a", "b"), await broker.marks(), delivery.settled) == ([2, 1], {"m": 1}, True)
        assert broker.statistics().groups[0].acked == 2 - 1


async def test_several_deliveries_of_one_lease_come_back_as_they_were(broker: Broker) -> None:
    async with broker.subscribe("jobs", group="g") as deliveries:
        for _ in range(5):
            broker.topic("jobs").publish_nowait(b"job")
        held = [await anext(deliveries) for _ in range(5)]
        await held[0].ack()
        await broker.backend.flushed()
        hand = ByHand(broker)
        hand.round = 1
        tasks = [transacting(broker, "a", ack=held[number]) for number in (1, 3, 4)]
        await turns()
        assert [one.settled for one in held] == [True, True, False, True, True]
        hand.done(hand.put_in[0], full())
        assert [type(one) for one in await asyncio.gather(*tasks, return_exceptions=True)] == [DiskFull] * 3
        hand.leave()
        assert [one.settled for one in held] == [True, False, False, False, False]
        assert (broker.statistics().groups[0].in_flight, broker.statistics().groups[0].members[0].held) == (4, 4)
        async with broker.transaction() as tx:
            for one in held[1:]:
                tx.ack(one)
        assert broker.statistics().groups[0].acked == 5
        assert broker.statistics().groups[0].lag == 0


async def test_what_a_member_held_that_left_is_settled_or_given_to_another(broker: Broker) -> None:
    async def leaving(hand: ByHand, failed: WriteFailed | None, offset: int) -> None:
        async with broker.subscribe("jobs", group="g") as deliveries:
            delivery = await anext(deliveries)
            assert delivery.offset == offset
            task = transacting(broker, "a", ack=delivery)
            await turns()
        assert broker.statistics().groups[0].in_flight == 1
        hand.done(hand.put_in[-1], failed)
        await asyncio.wait([task])
        assert isinstance(task.exception(), DiskFull) == (failed is not None)

    await broker.topic("jobs").publish_many([b"0", b"1"], keys=[b"k", None])
    async with broker.subscribe("jobs", group="g"):
        await turns()
    await broker.backend.flushed()
    hand = ByHand(broker)
    await leaving(hand, None, 0)
    hand.round = 1
    await leaving(hand, full(), 1)
    await hand.landed(asyncio.ensure_future(broker.backend.flushed()))
    hand.leave()
    async with broker.subscribe("jobs", group="g") as deliveries:
        again = await anext(deliveries)
        assert (again.offset, again.attempt) == (1, 2)
        await again.ack()
    assert broker.statistics().groups[0].lag == 0


@pytest.mark.parametrize("failed", [None, full()])
async def test_a_group_that_is_reset_meanwhile_wants_nothing_of_it(broker: Broker, failed: WriteFailed | None) -> None:
    async with broker.subscribe("jobs", group="g") as deliveries:
        (delivery,) = await delivered(broker, deliveries)
        await broker.backend.flushed()
        hand = ByHand(broker)
        task = transacting(broker, "a", ack=delivery)
        await asyncio.sleep(0)  # it is handed over, and its commit is not made yet
        assert delivery.settled
        broker.group("g", "jobs").reset("earliest")
        await turns()
        (commit,) = hand.put_in
        assert PartKind.PROGRESS not in [part.kind for part in commit.draft.parts]
        hand.round += failed is not None
        hand.done(commit, failed)
        await asyncio.wait([task])
        again = await anext(deliveries)
        assert (again.offset, again.attempt) == (0, 1)
        assert broker.statistics().groups[0].in_flight == 1
        hand.leave()


async def test_cancelled_while_it_is_written_it_lands_all_the_same(broker: Broker, disk: Disk) -> None:
    async with broker.subscribe("jobs", group="g") as deliveries:
        (delivery,) = await delivered(broker, deliveries)
        disk.hold("sync")

        async def work() -> None:
            async with delivery:
                await transacting(broker, "a", ack=delivery, mark=(1,))

        task = asyncio.ensure_future(work())
        await disk.reached()
        task.cancel()
        await turns()
        disk.go_on()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: ends(broker, "a") == [1])
        assert (await broker.mark("m"), delivery.settled, delivery.lapsed) == (1, True, False)
        assert broker.statistics().groups[0].redelivered == 0


async def test_closing_writes_what_was_handed_over(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path) as broker:
        async with broker.subscribe("jobs", group="g") as deliveries:
            (delivery,) = await delivered(broker, deliveries)
            task = transacting(broker, "a", ack=delivery, mark=(7,))
            await asyncio.sleep(0)
            assert delivery.settled
            broker.close()
            assert (await task).applied
    async with open_on(disk, tmp_path) as broker:
        assert (await broker.mark("m"), ends(broker, "a")) == (7, [1])
        assert journal_of(broker).ledger.groups[1].floor == 1


async def test_a_closed_broker_takes_nothing(broker: Broker) -> None:
    async def transact() -> None:
        async with broker.transaction() as tx:
            tx.publish("a", b"x")
            broker.close()

    with pytest.raises(BrokerClosed):
        await transact()


async def test_a_topic_that_is_deleted_before_it_is_written_was_deleted_right_behind_it(broker: Broker) -> None:
    task = transacting(broker, "a", "b", mark=(1,))
    beside = asyncio.ensure_future(broker.publish("a", b"y"))
    await asyncio.sleep(0)
    await broker.delete("a")
    assert (await task).applied
    with pytest.raises(TopicDeleted):
        await beside
    assert (await broker.topics(), ends(broker, "b"), await broker.mark("m")) == (["b", "jobs"], [1], 1)
    assert commits_of(broker).pending.bytes == 0


async def test_a_batch_that_cannot_be_written_fails_the_transactions_behind_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = asyncio.ensure_future(broker.publish("a", b"bad"))
    before, broken = transacting(broker, "jobs"), transacting(broker, "a", "b", mark=(1,))
    builds_on_it = transacting(broker, mark=(2, 1))
    await asyncio.sleep(0)
    pending_batch, *_ = commits_of(broker)._gathered
    parts = PendingBatch.parts

    def refusing(one: PendingBatch, topic: int, at: int) -> list[Part]:
        if one is pending_batch:
            raise BadBatch("stands for whatever is wrong with it")
        return parts(one, topic, at)

    monkeypatch.setattr(PendingBatch, "parts", refusing)
    await asyncio.wait([bad, before, broken, builds_on_it])
    assert [type(task.exception()) for task in (bad, before, broken, builds_on_it)] == [
        BadBatch,
        type(None),
        BadBatch,
        BadBatch,
    ]
    assert (ends(broker, "jobs", "a", "b"), await broker.marks()) == ([1, 0, 0], {})
    assert (await transacting(broker, "a", "b", mark=(1, None))).applied
    assert commits_of(broker).pending.bytes == 0


# -- those who build on what is on its way --------------------------------------------------------------------------


async def test_what_expects_a_mark_or_an_offset_that_fails_fails_with_it(broker: Broker) -> None:
    hand = ByHand(broker)
    first = transacting(broker, mark=(5,))
    await turns()
    second = transacting(broker, "a", mark=(6, 5))
    await turns()
    third = transacting(broker, "a", mark=(7, 6), expected_offset=1)
    same = transacting(broker, "b", mark=(7,))
    conflict = transacting(broker, "b", mark=(8, 5))
    other = transacting(broker, "a", expected_offset=1)
    await turns()
    assert [task.done() for task in (first, second, third, same, conflict, other)] == [False] * 4 + [True, False]
    assert isinstance(conflict.exception(), MarkConflict)
    assert len(hand.put_in) == 2
    hand.round = 1
    hand.done(hand.put_in[0], full())
    await asyncio.wait([first, second, third, same])
    assert [type(task.exception()) for task in (first, second, third, same)] == [DiskFull] * 4
    with pytest.raises(OffsetConflict):  # only now is it known that nothing comes before offset 1
        await other
    hand.leave()
    assert await broker.marks() == {}
    assert (await transacting(broker, "a", mark=(1, None), expected_offset=0)).applied


async def test_a_no_op_returns_when_what_it_is_a_double_of_is_durable(broker: Broker, disk: Disk) -> None:
    disk.hold("sync")
    first = transacting(broker, "a", mark=(5,))
    await disk.reached()
    double, older = transacting(broker, "a", mark=(5, 4)), transacting(broker, "a", mark=(4,))
    await turns()
    assert [double.done(), older.done()] == [False, False]
    disk.go_on()
    assert [(await task).applied for task in (first, double, older)] == [True, False, False]
    assert ends(broker, "a") == [1]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_message_id_that_is_on_its_way_is_waited_for(broker: Broker, disk: Disk, fails: bool) -> None:
    disk.hold("sync")
    first = asyncio.ensure_future(broker.publish("a", b"1", message_id="id"))
    await disk.reached()
    double = transacting(broker, "a", "b", message_id="id")
    await turns()
    assert not double.done()
    if fails:
        disk.fail_next("sync")
    disk.go_on()
    if fails:
        await asyncio.wait([first, double])
        assert isinstance(double.exception(), OutcomeUnknown)
        return
    tx = await double
    assert tx._request.publishes[0].publication.position == await first
    assert ends(broker, "a", "b") == [1, 1]


async def test_a_transaction_waits_for_room_in_the_journal(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path, max_pending_bytes=100) as broker:
        await broker.topic("a").declare()
        disk.hold("sync")
        first = asyncio.ensure_future(broker.publish("a", b"x" * 200))
        await disk.reached()
        second = transacting(broker, "a", mark=(1,))
        third = asyncio.ensure_future(broker.publish("a", b"behind"))
        await turns()
        assert log_of(broker, "a").next == 1, "nothing more is handed over"
        disk.go_on()
        await asyncio.gather(first, second, third)
        assert ends(broker, "a") == [3]
        assert (await third).offset == 2
        assert commits_of(broker).pending.bytes == 0


async def test_what_is_on_its_way_counts_for_a_slow_subscriber(broker: Broker, disk: Disk) -> None:
    async with broker.subscribe("a", policy="block", buffer=2) as slow:
        disk.hold("sync")
        first = transacting(broker, "a")
        second = transacting(broker, "a")
        third = transacting(broker, "a")
        await disk.reached()
        await turns()
        assert log_of(broker, "a").next == 2
        disk.go_on()
        await asyncio.gather(first, second)
        assert not third.done()
        assert [(await anext(slow)).offset for _ in range(3)] == [0, 1, 2]
        await third


def test_it_says_what_it_is(tmp_path: Path) -> None:
    async def look() -> str:
        async with open_on(Disk(), tmp_path) as broker, broker.transaction() as tx:
            tx.publish("a", b"1")
            tx.mark("m", 1)
            said = repr(tx)
        return said + repr(tx) + repr(tx._request.publishes[0].publication)

    said = asyncio.run(look())
    assert "1 publishes, 0 acks, 1 marks, open" in said
    assert ", applied" in said
    assert "1 records to 'a', from " in said


async def test_cancelled_between_two_queues_it_takes_its_turn_in_neither(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, loop = broker.backend.publisher, asyncio.get_running_loop()
    queue = publisher.queue

    def cancelling(log: Any, *rest: Any) -> asyncio.Future[int]:
        found: asyncio.Future[int] = queue(log, *rest)
        if log.name == "b":
            loop.call_soon(task.cancel)  # it was told of room in the first, and has not heard it yet
        return found

    async with (
        broker.subscribe("a", policy="block", buffer=1) as a,
        broker.subscribe("b", policy="block", buffer=1) as b,
    ):
        await broker.publish("a", b"0")
        await broker.publish("b", b"0")
        monkeypatch.setattr(publisher, "queue", cancelling)
        task = transacting(broker, "a", "b")
        await turns()
        assert (await anext(a)).value == b"0"
        more = asyncio.ensure_future(anext(a))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await anext(b)).value == b"0"
        beyond = asyncio.ensure_future(anext(b))
        await turns()  # there is room in both, and nobody who wants it
        await broker.backend.flushed()
        assert ends(broker, "a", "b") == [1, 1]
        for topic in ("a", "b"):
            await broker.publish(topic, b"1")
        assert [(await one).value for one in (more, beyond)] == [b"1", b"1"]


async def test_a_no_op_that_fails_with_what_it_doubles_lets_go_of_its_deliveries(broker: Broker) -> None:
    async with broker.subscribe("jobs", group="g") as deliveries:
        (delivery,) = await delivered(broker, deliveries)
        await broker.backend.flushed()
        hand = ByHand(broker)
        first, double = transacting(broker, "a", mark=(5,)), transacting(broker, "a", ack=delivery, mark=(5,))
        await turns()
        hand.round = 1
        hand.done(hand.put_in[0], full())
        assert [type(one) for one in await asyncio.gather(first, double, return_exceptions=True)] == [DiskFull] * 2
        async with delivery:
            pass
        assert delivery.settled
        hand.leave()


async def test_what_was_published_just_before_it_counts_as_on_its_way_too(broker: Broker) -> None:
    first = asyncio.ensure_future(broker.publish("a", b"abc"))
    task = transacting(broker, "a", value=b"de")
    await asyncio.sleep(0)
    broker.topic("a").publish_nowait(b"f")
    assert log_of(broker, "a").on_the_way() == (3, 6)
    await asyncio.gather(first, task)
    await broker.backend.flushed()
    assert log_of(broker, "a").on_the_way() == (0, 0)
    assert log_of(broker, "a").values == [b"abc", b"de", b"f"]


async def test_what_a_producer_numbers_counts_as_on_its_way_exactly_once(broker: Broker) -> None:
    producer = broker.producer()
    publishing = [asyncio.ensure_future(producer.publish("a", b"%d" % number)) for number in range(3)]
    task = transacting(broker, "a")
    await asyncio.sleep(0)
    assert log_of(broker, "a").on_the_way() == (4, 4)
    await asyncio.gather(*publishing, task)
    assert log_of(broker, "a").on_the_way() == (0, 0)
    assert log_of(broker, "a").values == [b"0", b"1", b"2", b"x"]


async def test_a_transaction_that_fails_while_the_broker_closes_does_not_prevent_notifications(
    broker: Broker, disk: Disk
) -> None:
    await broker.publish("t", b"job")
    await broker.topic("out").declare()
    async with broker.subscribe("t", group="g", max_deliver=1) as deliveries:
        delivery = await anext(deliveries)

        async def work() -> None:
            async with broker.transaction() as tx, delivery:
                tx.publish("out", b"done")
                tx.ack(delivery)

        disk.hold("sync")
        before = asyncio.ensure_future(broker.publish("out", b"first"))
        await disk.reached()
        working, behind = asyncio.ensure_future(work()), asyncio.ensure_future(broker.publish("t", b"another"))
        await turns()
        disk.fail_next("sync")
        disk.go_on()
        broker.close()
        async with asyncio.timeout(PATIENCE):
            ends = await asyncio.gather(before, working, behind, return_exceptions=True)
    assert [isinstance(end, RunnelError) for end in ends] == [True] * 3
