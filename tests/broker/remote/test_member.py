"""The remote member of a group: what it is granted, and what it says of that."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel import Broker, RunnelError
from runnel.broker.remote.member import ACK, BEGIN, EXTEND, NACK, REJECT, LeaseGrant, RemoteMember, open_remote_member
from runnel.core.batch_format import unpack
from runnel.testing.clock import JumpingClock


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture(params=["memory", "folder"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path, clock: JumpingClock) -> AsyncIterator[Broker]:
    where = None if request.param == "memory" else tmp_path
    async with runnel.open(where, clock=clock) as opened:
        yield opened


class Member:
    """Somebody far away, who writes down what comes."""

    def __init__(self, broker: Broker, pattern: str = "jobs", **options: Any) -> None:
        self.grants: list[LeaseGrant] = []
        self.lapsed: list[tuple[int, int, int]] = []
        self.over: list[RunnelError | None] = []
        self._came = asyncio.Event()
        self.feed: RemoteMember = open_remote_member(
            broker,
            pattern,
            "g",
            granted=self._granted,
            lapsed=self.lapsed.extend,
            over=self.over.append,
            **options,
        )
        self.feed.enter()

    def _granted(self, grant: LeaseGrant) -> None:
        self.grants.append(grant)
        self._came.set()

    def values(self) -> list[bytes]:
        return [value for grant in self.grants for _, piece in grant.pieces for value in unpack(piece.packed).values]

    async def has(self, count: int) -> list[tuple[int, int]]:
        """(lease, place) of each record, once there are so many."""
        while len(found := self._places()) < count:
            self._came.clear()
            await self._came.wait()
        return found

    def _places(self) -> list[tuple[int, int]]:
        return [
            (grant.lease, place + at)
            for grant in self.grants
            for place, piece in grant.pieces
            for at in range(len(unpack(piece.packed)))
        ]

    def say(self, verb: int, lease: int, place: int, number: float | None = None, reason: str | None = None) -> None:
        self.feed.settle(lease, verb, place, place + 1, number, reason)


async def jobs(broker: Broker, *values: str, **options: Any) -> None:
    for value in values:
        await broker.publish("jobs", value, **options)


@pytest.mark.parametrize("pattern", ["jobs", "*"])
async def test_it_is_granted_what_is_there_and_acks_it(broker: Broker, pattern: str) -> None:
    await jobs(broker, "a", "b", "c")
    member = Member(broker, pattern)
    for lease, place in await member.has(3):
        member.say(ACK, lease, place)
    assert member.values() == [b"a", b"b", b"c"]
    (group,) = broker.statistics().groups
    assert (group.acked, group.lag) == (3, 0)


async def test_a_range_is_acked_at_once(broker: Broker) -> None:
    await broker.topic("jobs").publish_many([b"a", b"b", b"c"])
    member = Member(broker)
    (lease, first), *_ = await member.has(3)
    member.feed.settle(lease, ACK, first, first + 3, None, None)
    assert broker.statistics().groups[0].acked == 3


async def test_a_nacked_record_comes_back_with_its_attempt(broker: Broker) -> None:
    await jobs(broker, "a")
    member = Member(broker)
    ((lease, place),) = await member.has(1)
    member.say(NACK, lease, place, 0.0, "not today")
    await member.has(2)
    assert [grant.attempt for grant in member.grants] == [1, 2]


async def test_a_rejected_record_is_a_dead_letter(broker: Broker) -> None:
    await jobs(broker, "a")
    member = Member(broker)
    ((lease, place),) = await member.has(1)
    member.say(REJECT, lease, place, None, "never")
    async with broker.subscribe("dead-letters.g", start="earliest") as letters:
        letter = await anext(letters)
    assert (letter.value, letter.headers["runnel-dead-letter-reason"]) == (b"a", "never")


async def test_a_lease_that_runs_out_is_told(broker: Broker, clock: JumpingClock) -> None:
    await jobs(broker, "a")
    member = Member(broker, ack_wait=10)
    ((lease, place),) = await member.has(1)
    member.say(BEGIN, lease, place)
    await clock.advance(9)
    assert member.lapsed == []
    await clock.advance(2)
    assert member.lapsed == [(lease, place, place + 1)]
    with pytest.raises(runnel.LeaseEnded):
        member.say(ACK, lease, place)


async def test_extending_gives_it_more_time(broker: Broker, clock: JumpingClock) -> None:
    await jobs(broker, "a")
    member = Member(broker, ack_wait=10)
    ((lease, place),) = await member.has(1)
    member.say(BEGIN, lease, place)
    member.say(EXTEND, lease, place, 100.0)
    await clock.advance(90)
    member.say(ACK, lease, place)


async def test_what_it_holds_goes_to_others_when_it_leaves(broker: Broker) -> None:
    await jobs(broker, "a", "b")
    gone = Member(broker)
    await gone.has(2)
    gone.feed.leave()
    other = Member(broker)
    await other.has(2)
    assert other.values() == [b"a", b"b"]
    assert gone.lapsed == []  # nobody is left to be told


async def test_what_was_begun_counts_as_an_attempt_and_the_rest_does_not(broker: Broker) -> None:
    await broker.topic("jobs").publish_many([b"a", b"b"])
    gone = Member(broker)
    (lease, place), _ = await gone.has(2)
    gone.say(BEGIN, lease, place)
    gone.feed.leave()
    other = Member(broker)
    await other.has(2)
    assert {unpack(g.pieces[0][1].packed).values: g.attempt for g in other.grants} == {(b"a",): 2, (b"b",): 1}


async def test_a_reset_voids_what_is_out(broker: Broker) -> None:
    await jobs(broker, "a")
    member = Member(broker)
    ((lease, place),) = await member.has(1)
    broker.group("g", "jobs").reset("earliest")
    assert member.lapsed == [(lease, place, place + 1)]
    await member.has(2)


async def test_it_is_told_when_the_topic_goes(broker: Broker) -> None:
    await jobs(broker, "a")
    member = Member(broker)
    await member.has(1)
    await broker.delete("jobs")
    (error,) = member.over
    assert isinstance(error, runnel.TopicDeleted)


@pytest.mark.parametrize("said", [(9, ACK, 0, 1), (1, ACK, 5, 6), (1, ACK, 1, 1), (1, 17, 0, 1)])
async def test_what_makes_no_sense_is_refused(broker: Broker, said: tuple[int, int, int, int]) -> None:
    await jobs(broker, "a")
    member = Member(broker)
    await member.has(1)
    lease, verb, first, end = said
    with pytest.raises((runnel.LeaseEnded, runnel.InvalidOption)):
        member.feed.settle(lease, verb, first, end, None, None)


async def test_settling_twice_is_refused(broker: Broker) -> None:
    await broker.topic("jobs").publish_many([b"a", b"b"])
    member = Member(broker)
    (lease, place), _ = await member.has(2)
    member.say(ACK, lease, place)
    with pytest.raises(runnel.AlreadySettled):
        member.say(ACK, lease, place)


async def test_a_transaction_acks_its_deliveries(broker: Broker) -> None:
    await jobs(broker, "a")
    member = Member(broker)
    ((lease, place),) = await member.has(1)
    async with broker.transaction() as tx:
        tx.ack(member.feed.delivery(lease, place))
        tx.publish("done", "a")
    assert broker.statistics().groups[0].acked == 1
