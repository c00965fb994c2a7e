"""Members of a group on a server: leases are taken up, settled, lost with their connection, and given back."""

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import runnel
from runnel import Broker
from runnel.client.member import RemoteLease
from runnel.core.batch_format import pack
from runnel.core.schema import Codec
from runnel.core.statistics import GroupStatistics
from runnel.testing.clock import JumpingClock
from runnel.wire.binary_messages import GrantPayload, grant_head
from runnel.wire.frames import FRAME_HEADER_SIZE, MORE, FrameKind
from runnel.wire.msgpack_messages import SettleVerb, lapsed_payload, read_settle
from tests.client.memory_link import JoinedLink, joined, subscribe
from tests.patience import PATIENCE


async def fill(broker: Broker, count: int, **options: Any) -> None:
    for number in range(count):
        await broker.publish("t", b"%d" % number, **options)


def member(link: JoinedLink, **options: Any) -> Any:
    return subscribe(link, group="g", **options)


async def take(deliveries: Any, count: int) -> list[Any]:
    return [await anext(deliveries) for _ in range(count)]


def look(broker: Broker) -> GroupStatistics:
    return broker.group("g", "t").statistics()


def said(link: JoinedLink) -> list[tuple[SettleVerb, int, int]]:
    found = [read_settle(payload) for kind, _, _, payload in link.sent if kind is FrameKind.SETTLE]
    return [(one.verb, one.first, one.end) for frame in found for one in frame]


async def test_what_is_acked_in_one_turn_is_one_range_in_one_frame() -> None:
    async with joined() as (broker, link), member(link) as deliveries:
        await fill(broker, 5)
        await link.settle()
        for delivery in await take(deliveries, 5):
            await delivery.ack()
        await link.settle()
        assert look(broker).acked == 5
        settles = [payload for kind, _, _, payload in link.sent if kind is FrameKind.SETTLE]
        assert len(settles) < 5
        assert (SettleVerb.ACK, 4, 5) in said(link) or (SettleVerb.ACK, 0, 5) in said(link)


async def test_the_server_knows_what_was_seen_and_what_was_not() -> None:
    async with joined() as (broker, link):
        await broker.topic("t").publish_many([b"0", b"1", b"2"])
        async with member(link) as deliveries:
            await take(deliveries, 2)
        async with member(link) as deliveries:
            assert sorted([(one.offset, one.attempt) for one in await take(deliveries, 3)]) == [(0, 2), (1, 2), (2, 1)]


async def test_a_lease_that_lapsed_is_known_at_once() -> None:
    clock = JumpingClock()
    async with joined(clock=clock) as (broker, link), member(link, ack_wait=10.0) as deliveries:
        await fill(broker, 1)
        delivery = await anext(deliveries)
        assert (delivery.lapsed, delivery.settled) == (False, False)
        await link.settle()
        await clock.advance(11)
        async with asyncio.timeout(PATIENCE):
            again = await anext(deliveries)
        assert (again.attempt, delivery.lapsed, delivery.settled) == (2, True, True)


async def test_what_was_granted_is_void_when_the_connection_is_lost_and_comes_again() -> None:
    async with joined() as (broker, link), member(link, name="m") as deliveries:
        await fill(broker, 3)
        held = await anext(deliveries)
        await link.settle()
        link.cut()
        assert held.lapsed
        with pytest.raises(runnel.LeaseEnded):
            await held.ack()
        waiting = asyncio.ensure_future(anext(deliveries))
        await asyncio.sleep(0)
        assert not waiting.done()
        link.connect()
        again = [await waiting, *await take(deliveries, 2)]
        assert sorted((one.offset, one.attempt) for one in again) == [(0, 2), (1, 1), (2, 1)]
        assert [one.name for one in look(broker).members] == ["m"]


async def test_leaving_sends_what_was_said_first_and_gives_back_the_rest() -> None:
    async with joined() as (broker, link):
        await fill(broker, 2)
        async with member(link) as deliveries:
            one, two = await take(deliveries, 2)
            await one.ack()
        assert (look(broker).acked, look(broker).in_flight, two.lapsed) == (1, 0, True)
        with pytest.raises(runnel.LeaseEnded):
            await two.ack()


async def test_a_batch_is_settled_with_one_range_less_what_was_settled() -> None:
    async with joined() as (broker, link):
        await broker.topic("t").publish_many([b"%d" % number for number in range(6)])
        async with member(link) as deliveries:
            batch = await anext(deliveries.batches(max_records=5))
            assert (len(batch), batch.values) == (5, tuple(b"%d" % number for number in range(5)))
            await [*batch][2].nack(delay=60)
            await batch.ack()
            await link.settle()
            assert (look(broker).acked, look(broker).scheduled) == (4, 1)
            assert [one for one in said(link) if one[0] is SettleVerb.ACK] == [
                (SettleVerb.ACK, 0, 2),
                (SettleVerb.ACK, 3, 5),
            ]


async def test_a_batch_may_wait_for_more() -> None:
    async with joined() as (broker, link), member(link) as deliveries:
        await fill(broker, 1)
        waiting = asyncio.ensure_future(anext(deliveries.batches(max_records=2, max_wait=60)))
        await link.settle()
        assert not waiting.done()
        await fill(broker, 1)
        assert len(await asyncio.wait_for(waiting, PATIENCE)) == 2


class Order(msgspec.Struct):
    id: int


@pytest.mark.parametrize("by", ["record", "batch"])
async def test_what_cannot_be_decoded_is_rejected_with_the_reason(by: str) -> None:
    async with joined() as (broker, link), member(link, codec=Codec(Order)) as deliveries:
        await broker.publish("t", b"nonsense")
        await broker.publish("t", b'{"id":1}')
        found = await anext(deliveries) if by == "record" else await anext(deliveries.batches())
        if by == "batch" and not len(found):
            found = await anext(deliveries.batches())
        assert (found.value if by == "record" else found.values[-1]) == Order(1)
        await link.settle()
        assert look(broker).dead_lettered == 1
        async with broker.subscribe("dead-letters.g", start="earliest") as letters:
            assert (await anext(letters)).value == b"nonsense"


async def test_what_expired_while_it_waited_here_is_not_handed_out_and_counts() -> None:
    async with joined() as (broker, link), member(link) as deliveries:
        await broker.publish("t", b"short", expires=30)
        await broker.publish("t", b"long")
        await link.settle()
        link.ahead = 60.0  # of the server's clock
        assert (await anext(deliveries)).value == b"long"
        await link.settle()
        assert (SettleVerb.BEGIN, 0, 1) in said(link), "the server looks for itself"


async def test_the_end_of_the_broker_ends_the_reading() -> None:
    async with joined() as (broker, link), member(link) as deliveries:
        waiting = asyncio.ensure_future(anext(deliveries, None))
        await link.settle()
        broker.close()
        assert await waiting is None


async def test_an_error_of_the_server_is_raised() -> None:
    async with joined() as (broker, link), member(link) as deliveries:
        await broker.delete("t")
        await link.settle()
        with pytest.raises(runnel.TopicDeleted):
            await anext(deliveries)


async def test_options_that_contradict_the_group_are_refused_when_it_is_entered() -> None:
    async with joined() as (_, link), member(link, ack_wait=5):
        with pytest.raises(runnel.InvalidOption, match="members must agree"):
            await member(link, ack_wait=6).__aenter__()


async def test_what_came_of_a_lease_that_lapsed_before_its_end_is_forgotten() -> None:
    async with joined() as (_, link), member(link) as deliveries:
        for number, value, flags in ((7, b"some of it", MORE), (8, b"another", 0)):
            batch = pack([value])
            head = grant_head(deliveries._source.id, b"t", 1, number, number, 0, number, number, 1, len(batch))
            deliveries._source.arrived(FrameKind.GRANT, flags, 1, head[FRAME_HEADER_SIZE:] + batch)
            if flags & MORE:
                deliveries._source.arrived(FrameKind.LAPSED, 0, 0, lapsed_payload([(number, number, number + 1)]))
        assert (await anext(deliveries)).value == b"another"
        assert not deliveries._source._coming


# -- Leases as a member knows them: what is open, and what lies where ----------------------------------------


MEMBER: Any = object()


def lease(*counts: int, first: int = 100) -> RemoteLease:
    grants, place = [], first
    for count in counts:
        batch = pack([b"%d" % number for number in range(place, place + count)])
        grants.append(GrantPayload(7, place - first, place, 0, 5, place, 2, "t", batch))
        place += count
    made = RemoteLease(MEMBER, grants, place)
    made.open(verify=True)
    return made


def test_it_says_what_it_is() -> None:
    made = lease(3)
    assert (made.number, made.attempt, made.first, made.end, len(made)) == (5, 2, 100, 103, 3)
    assert repr(made) == "<RemoteLease 5 [100, 103), attempt 2, 3 open>"
    made.ended = True
    assert "ended" in repr(made)


@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=4), data=st.data())
def test_records_and_values_lie_at_their_places_over_all_frames(counts: list[int], data: st.DataObject) -> None:
    made = lease(*counts)
    first = data.draw(st.integers(made.first, made.end))
    end = data.draw(st.integers(first, made.end))
    assert made.values(first, end) == tuple(b"%d" % place for place in range(first, end))
    assert [record.sequence for record in made.records(first, end)] == list(range(first, end))


class Model:
    """The open places, as a set."""

    def __init__(self, made: RemoteLease) -> None:
        self.open = set(range(made.first, made.end))


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(100, 112), st.integers(1, 6)), max_size=30))
def test_what_is_open_is_what_a_set_would_say(steps: list[tuple[bool, int, int]]) -> None:
    made = lease(12)
    model = Model(made)
    for settles, first, count in steps:
        end = min(first + count, made.end)
        if settles:
            for low, high in made.open_ranges(first, end):
                made.settle(low, high)
            model.open -= set(range(first, end))
        else:
            taken = set(range(first, end)) - model.open
            for place in sorted(taken):
                made.reopen(place, place + 1)
            model.open |= taken
        assert {place for place in range(made.first - 1, made.end + 1) if made.is_open(place)} == model.open
        assert len(made) == len(model.open)
        ranges = made.open_ranges(made.first, made.end)
        assert [place for low, high in ranges for place in range(low, high)] == sorted(model.open)
        assert all(one[1] < two[0] for one, two in pairwise(ranges)), "side by side is one range"
