"""A member of a group in this process: the leases it is granted, and what it says of them."""

import asyncio
from typing import Any

import pytest

import runnel
from runnel import Broker, LeaseEnded
from runnel.broker.group.logic.leases import Lease
from runnel.core.backend import SettleVerb
from runnel.core.options import SubscribeOptions
from runnel.testing.clock import JumpingClock


class Joined:
    """A member that has joined, and what it took out of its inbox."""

    def __init__(self, broker: Broker, pattern: str = "jobs", **options: Any) -> None:
        self.leases: list[Lease] = []
        self._woken = asyncio.Event()
        asked = SubscribeOptions.of({"group": "g", **options})
        self.member = broker.backend.member(pattern, asked, self._woken.set)
        self.member.enter()

    async def has(self, count: int) -> list[tuple[Lease, int]]:
        """Each record as its lease and place, once there are so many."""
        while len(found := self._places()) < count:
            self._woken.clear()
            if not self.member.inbox:
                await self._woken.wait()
            while self.member.inbox:
                self.leases.append(self.member.inbox.popleft())
        return found

    def _places(self) -> list[tuple[Lease, int]]:
        return [(lease, place) for lease in self.leases for place in range(lease.first, lease.end)]

    def values(self) -> list[bytes]:
        return [value for lease in self.leases for value in self.member.values(lease, lease.first, lease.end)]

    def begin(self, lease: Lease, place: int) -> None:
        """The user got the record."""
        assert self.member.take_up(lease)
        lease.handed = place + 1

    def say(
        self, verb: SettleVerb, lease: Lease, place: int, number: float | None = None, reason: str | None = None
    ) -> None:
        self.member.settle(lease, verb, place, place + 1, number, reason)


async def jobs(broker: Broker, *values: str, **options: Any) -> None:
    for value in values:
        await broker.publish("jobs", value, **options)


@pytest.mark.parametrize("pattern", ["jobs", "*"])
async def test_it_is_granted_what_is_there_and_acks_it(broker: Broker, pattern: str) -> None:
    await jobs(broker, "a", "b", "c")
    joined = Joined(broker, pattern)
    for lease, place in await joined.has(3):
        joined.member.ack(lease, place)
    assert joined.values() == [b"a", b"b", b"c"]
    (group,) = broker.statistics().groups
    assert (group.acked, group.lag) == (3, 0)


async def test_a_range_is_acked_at_once(broker: Broker) -> None:
    await broker.topic("jobs").publish_many([b"a", b"b", b"c"])
    joined = Joined(broker)
    (lease, first), *_ = await joined.has(3)
    joined.member.settle(lease, SettleVerb.ACK, first, first + 3)
    assert broker.statistics().groups[0].acked == 3


@pytest.mark.parametrize("pattern", ["jobs", "*"])
async def test_the_records_of_a_lease_lie_at_their_places(broker: Broker, pattern: str) -> None:
    await broker.publish("other", b"0")
    await broker.topic("jobs").publish_many([b"a", b"b", b"c", b"d"])
    joined = Joined(broker, pattern, prefetch=3)
    count = 3
    for lease, place in await joined.has(count):
        member = joined.member
        (record,) = member.records(lease, place, place + 1)
        assert member.values(lease, place, place + 1) == (record.value,)
        at = [(first + n, value) for first, part in member.parts(lease) for n, value in enumerate(part.values)]
        assert (place, record.value) in at
        assert [one for one, _ in at] == list(range(lease.first, lease.end))


async def test_it_says_what_values_are_written_in(broker: Broker) -> None:
    await broker.topic("jobs", int, encoding="msgpack").publish(5)
    joined = Joined(broker)
    ((lease, _),) = await joined.has(1)
    assert joined.member.encoding_of(lease, "jobs") == "msgpack"
    assert joined.member.encoding_of(lease, "other") is None


async def test_a_nacked_record_comes_back_with_its_attempt(broker: Broker) -> None:
    await jobs(broker, "a")
    joined = Joined(broker)
    ((lease, place),) = await joined.has(1)
    joined.say(SettleVerb.NACK, lease, place, 0.0, "not today")
    await joined.has(2)
    assert [lease.attempt for lease in joined.leases] == [1, 2]


@pytest.mark.parametrize(("verb", "reason"), [(SettleVerb.REJECT, "rejected"), (SettleVerb.NACK, "nacked")])
@pytest.mark.parametrize("said", ["never", None])
async def test_a_record_that_failed_for_good_is_a_dead_letter_with_the_reason(
    broker: Broker, verb: SettleVerb, reason: str, said: str | None
) -> None:
    await jobs(broker, "a")
    joined = Joined(broker, max_deliver=1)
    ((lease, place),) = await joined.has(1)
    joined.begin(lease, place)
    joined.say(verb, lease, place, None, said)
    async with broker.subscribe("dead-letters.g", start="earliest") as letters:
        letter = await anext(letters)
    assert (letter.value, letter.headers["runnel-dead-letter-reason"]) == (b"a", said or reason)


async def test_a_lease_that_runs_out_is_reported(broker: Broker, clock: JumpingClock) -> None:
    await jobs(broker, "a")
    joined = Joined(broker, ack_wait=10)
    ((lease, place),) = await joined.has(1)
    ended: list[None] = []
    lease.on_end = lambda: ended.append(None)
    joined.begin(lease, place)
    await clock.advance(9)
    assert not lease.ended
    await clock.advance(2)
    assert (lease.ended, ended) == (True, [None])
    with pytest.raises(LeaseEnded):
        joined.member.ack(lease, place)


async def test_extending_gives_it_more_time(broker: Broker, clock: JumpingClock) -> None:
    await jobs(broker, "a")
    joined = Joined(broker, ack_wait=10)
    ((lease, place),) = await joined.has(1)
    joined.begin(lease, place)
    joined.say(SettleVerb.EXTEND, lease, place, 100.0)
    await clock.advance(90)
    joined.member.ack(lease, place)


async def test_what_it_holds_goes_to_others_when_it_leaves(broker: Broker) -> None:
    await jobs(broker, "a", "b")
    gone = Joined(broker)
    await gone.has(2)
    gone.member.leave()
    assert (gone.member.ended, gone.member.error) == (True, None)
    other = Joined(broker)
    await other.has(2)
    assert other.values() == [b"a", b"b"]


async def test_what_was_begun_counts_as_an_attempt_and_the_rest_does_not(broker: Broker) -> None:
    await broker.topic("jobs").publish_many([b"a", b"b"])
    gone = Joined(broker)
    (lease, place), _ = await gone.has(2)
    gone.begin(lease, place)
    gone.member.leave()
    other = Joined(broker)
    found = {other.member.values(lease, place, place + 1): lease.attempt for lease, place in await other.has(2)}
    assert found == {(b"a",): 2, (b"b",): 1}


async def test_a_reset_voids_what_is_out_and_what_was_not_taken_up(broker: Broker) -> None:
    await jobs(broker, "a", "b")
    joined = Joined(broker, prefetch=1)
    ((lease, _),) = await joined.has(1)
    broker.group("g", "jobs").reset("earliest")
    assert lease.ended
    assert all(not lease.ended for lease in joined.member.inbox)
    await joined.has(2)


async def test_it_is_notified_when_the_topic_is_deleted(broker: Broker) -> None:
    await jobs(broker, "a")
    joined = Joined(broker)
    await joined.has(1)
    await broker.delete("jobs")
    assert joined.member.ended
    assert isinstance(joined.member.error, runnel.TopicDeleted)
    assert not joined.member.inbox


async def test_settling_twice_is_refused(broker: Broker) -> None:
    await broker.topic("jobs").publish_many([b"a", b"b"])
    joined = Joined(broker)
    (lease, place), _ = await joined.has(2)
    joined.member.ack(lease, place)
    with pytest.raises(runnel.AlreadySettled):
        joined.member.ack(lease, place)


async def test_one_that_was_not_admitted_leaves_its_namesake_alone(broker: Broker) -> None:
    await jobs(broker, "a")
    joined = Joined(broker, name="m")
    twin = broker.backend.member("jobs", SubscribeOptions(group="g", name="m"), lambda: None)
    with pytest.raises(runnel.InvalidOption, match="member"):
        twin.enter()
    twin.leave()
    assert [one.name for one in broker.statistics().groups[0].members] == ["m"]
    await joined.has(1)


async def test_only_a_group_on_disk_acks_durably(broker: Broker) -> None:
    await jobs(broker, "a")
    joined = Joined(broker)
    ((lease, place),) = await joined.has(1)
    if broker.is_durable:
        joined.member.check_durable(lease, place)
        done = joined.member.settle(lease, SettleVerb.ACK, place, place + 1, durable=True)
        assert done is not None
        await done
        assert broker.statistics().groups[0].acked == 1
    else:
        with pytest.raises(runnel.NotSupported, match="durable ack"):
            joined.member.check_durable(lease, place)


async def test_it_blocks_publishers_alone_only_while_it_is_the_only_member(broker: Broker) -> None:
    one = Joined(broker)
    assert one.member.blocks is one.member.reader
    other = Joined(broker)
    assert one.member.blocks is None
    other.member.leave()
    assert one.member.blocks is one.member.reader
