"""Pending positions and acks: accepted at once, written soon, with whatever else is written then."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runnel import Delivery
from runnel.api.broker import Broker
from runnel.broker.durable.pending_state import PendingState
from runnel.core.errors import DiskFull
from runnel.core.position import Position
from runnel.journal.format.entry import Part, PartKind
from runnel.journal.format.ledger import CursorState
from tests.broker.durable_broker import Disk, commits_of, entries, journal_of, open_on, turns, until


@pytest.fixture
async def broker(disk: Disk, tmp_path: Path) -> AsyncIterator[Broker]:
    async with open_on(disk, tmp_path) as opened:
        for number in range(10):
            await opened.publish("t", b"%d" % number)
        yield opened


def pending_state_of(broker: Broker) -> PendingState:
    assert broker.backend.store is not None
    found: PendingState = broker.backend.store.pending_state
    return found


def said(broker: Broker, kind: PartKind) -> list[Part]:
    return [part for entry in entries(journal_of(broker)) for part in entry.parts if part.kind == kind]


def places(broker: Broker) -> list[CursorState]:
    return [msgspec.msgpack.decode(part.body, type=CursorState) for part in said(broker, PartKind.CURSOR)]


async def test_a_named_reader_is_written_where_it_stands_and_not_at_every_step(broker: Broker) -> None:
    async with broker.subscribe("t", name="n") as records:
        for _ in range(5):
            await anext(records)
        await broker.backend.flushed()
        assert [place.place for place in places(broker)] == [4], "the fifth was not asked beyond"
        await broker.backend.flushed()
        assert len(places(broker)) == 1, "nothing is new"


async def test_it_is_written_soon_though_nothing_else_is(broker: Broker) -> None:
    async with broker.subscribe("t", name="n") as records:
        for _ in range(3):
            await anext(records)
        await until(lambda: journal_of(broker).ledger.cursors)  # nobody asks for it
        assert journal_of(broker).ledger.cursors["n"].place == 2


async def test_a_reader_of_a_pattern_keeps_a_sequence(broker: Broker) -> None:
    async with broker.subscribe(">", name="all") as records:
        for _ in range(3):
            await anext(records)
        await broker.backend.flushed()
    (place,) = places(broker)
    assert (place.pattern, place.epoch, place.place) == (">", 0, 2)


async def test_a_position_that_found_no_room_is_written_later(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, segment_bytes=8192) as broker:
        for _ in range(3):
            await broker.publish("t", b"x" * 1000)
        async with broker.subscribe("t", name="n") as records:
            for _ in range(3):
                await anext(records)
            disk.fail_next("allocate", "", errno.ENOSPC)
            with pytest.raises(DiskFull):
                await broker.publish("t", b"y" * 6000)  # one entry with it
            await broker.backend.flushed()
            assert journal_of(broker).ledger.cursors["n"].place == 2


async def test_a_name_that_left_before_its_position_was_written_is_written_too(broker: Broker, disk: Disk) -> None:
    disk.hold("sync")
    publishing = asyncio.ensure_future(broker.publish("t", b"x"))
    await disk.reached()
    async with broker.subscribe("t", name="n") as records:
        for _ in range(3):
            await anext(records)
    disk.go_on()
    await publishing
    await broker.backend.flushed()
    assert journal_of(broker).ledger.cursors["n"].place == 2
    position = broker.backend.positions.stored["n"][1]
    assert isinstance(position, Position)
    assert position.offset == 2


async def test_what_the_journal_knows_comes_back(broker: Broker, disk: Disk, tmp_path: Path) -> None:
    async with broker.subscribe("t", name="one") as records, broker.subscribe(">", name="all") as everything:
        for _ in range(4):
            await anext(records)
            await anext(everything)
    async with broker.subscribe("t", group="g") as deliveries:
        for _ in range(2):
            await (await anext(deliveries)).ack()
    broker.close()
    async with open_on(disk, tmp_path) as again:
        before = len(places(again))
        async with again.subscribe("t", name="one") as records, again.subscribe(">", name="all") as everything:
            assert (await anext(records)).offset == (await anext(everything)).offset == 3
        async with again.subscribe("t", group="g") as deliveries:
            assert (await anext(deliveries)).offset == 2
        await again.backend.flushed()
        assert len(places(again)) == before, "what is known is not said again"


# -- groups ---------------------------------------------------------------------------------------------------------


async def taken(deliveries: Any, count: int) -> list[Delivery[bytes]]:
    return [await anext(deliveries) for _ in range(count)]


async def test_acks_go_out_as_ranges(broker: Broker) -> None:
    async with broker.subscribe("t", group="g") as deliveries:
        for delivery in await taken(deliveries, 6):
            if delivery.offset != 2:
                await delivery.ack()
        await broker.backend.flushed()
    first = said(broker, PartKind.PROGRESS)[0]
    assert msgspec.msgpack.decode(first.body)[0] == [0, 2, 3, 6]


async def test_a_durable_ack_is_on_disk_when_it_returns(broker: Broker, disk: Disk) -> None:
    async with broker.subscribe("t", group="g") as deliveries:
        (delivery,) = await taken(deliveries, 1)
        await broker.backend.flushed()
        disk.hold("sync")
        acking = asyncio.ensure_future(delivery.ack(durable=True))
        await disk.reached()
        await turns()
        assert not acking.done()
        disk.go_on()
        await acking
        (group,) = journal_of(broker).ledger.groups.values()
        assert group.floor == 1


async def test_a_failed_attempt_is_stored_before_it_is_delivered_again(broker: Broker, disk: Disk) -> None:
    async with broker.subscribe("t", group="g", prefetch=1) as deliveries:
        (delivery,) = await taken(deliveries, 1)
        await broker.backend.flushed()
        disk.hold("sync")
        await delivery.nack(delay=0)
        again = asyncio.ensure_future(anext(deliveries))
        await disk.reached()
        await turns()
        assert not again.done(), "a crash now would forget that it was tried"
        disk.go_on()
        assert ((await again).offset, (await again).attempt) == (0, 2)
        (group,) = journal_of(broker).ledger.groups.values()
        assert group.failed[0].attempts == 1


async def test_a_dead_letter_and_the_end_of_its_record_are_one_entry(broker: Broker) -> None:
    async with broker.subscribe("t", group="g") as deliveries:
        (delivery,) = await taken(deliveries, 1)
        await broker.topic("dead-letters.g").declare()
        before = len(entries(journal_of(broker)))
        await delivery.reject("never")
        await broker.backend.flushed()
    entry = next(
        one for one in entries(journal_of(broker))[before:] if any(p.kind == PartKind.BATCH for p in one.parts)
    )
    assert [part.kind for part in entry.parts] == [PartKind.BATCH, PartKind.PROGRESS]
    assert msgspec.msgpack.decode(entry.parts[1].body)[0] == [0, 1]


async def test_a_group_that_is_reset_begins_again_after_a_restart_too(
    broker: Broker, disk: Disk, tmp_path: Path
) -> None:
    async with broker.subscribe("t", group="g") as deliveries:
        for delivery in await taken(deliveries, 5):
            await delivery.ack()
        broker.group("g", "t").reset("earliest")
    broker.close()
    async with open_on(disk, tmp_path) as again, again.subscribe("t", group="g") as deliveries:
        assert (await anext(deliveries)).offset == 0


async def test_a_group_ends_with_its_topic(broker: Broker, disk: Disk, tmp_path: Path) -> None:
    async with broker.subscribe("t", group="g") as deliveries:
        await taken(deliveries, 1)
        await broker.delete("t")
    assert journal_of(broker).ledger.groups == {}
    assert not pending_state_of(broker)._groups
    broker.close()
    async with open_on(disk, tmp_path) as again:
        assert again.statistics().groups == ()


async def test_a_group_on_a_topic_made_again_is_not_the_old_one_and_stays(
    broker: Broker, disk: Disk, tmp_path: Path
) -> None:
    deleting = asyncio.ensure_future(broker.delete("t"))
    await asyncio.sleep(0)
    broker.topic("t").publish_nowait(b"new")  # all of it in one commit
    async with broker.subscribe("t", group="g") as deliveries:
        await (await anext(deliveries)).ack(durable=True)
    await deleting
    broker.close()
    async with open_on(disk, tmp_path) as again:
        (group,) = again.statistics().groups
        assert group.lag == 0


async def test_nothing_is_urgent_but_a_failed_attempt(broker: Broker, disk: Disk) -> None:
    pending_state = pending_state_of(broker)
    async with broker.subscribe("t", group="g") as deliveries:
        one, two = await taken(deliveries, 2)
        await broker.backend.flushed()
        await one.ack()
        assert not pending_state.is_urgent
        await two.nack()
        assert pending_state.is_urgent
        await commits_of(broker).flushed()
        assert not pending_state.is_urgent


async def test_that_a_name_holds_is_written_beside_its_place_and_so_is_that_it_does_not(broker: Broker) -> None:
    for hold in (True, None, False):
        async with broker.subscribe("t", name="n", hold=hold):
            await broker.backend.flushed()
    assert [(place.place, place.hold) for place in places(broker)] == [(0, True), (0, False)]


async def test_what_was_forgotten_is_not_written_again_when_its_commit_failed(
    disk: Disk, broker: Broker, tmp_path: Path
) -> None:
    async with broker.subscribe("t", name="n") as records:
        await anext(records)
        await anext(records)
    await broker.backend.flushed()
    pending_state = pending_state_of(broker)
    pending_state._unwrite({"n": ("t", Position(1, 0), False), "other": ("t", Position(1, 0), False)})
    assert (pending_state._positions, "other" in pending_state._written) == ({"n"}, False)
    await broker.forget("n")
    assert (pending_state._positions, pending_state._written) == (set(), {})
    assert len(said(broker, PartKind.CURSOR_FORGOTTEN)) == 1
