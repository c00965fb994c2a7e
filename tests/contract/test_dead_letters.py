"""What failed for good goes to the dead letters, with its story, and can be put back."""

from typing import Any

import msgspec
import pytest

import runnel
from runnel import Broker, GroupSubscription, Position, Record
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.reading import read
from tests.contract.working import fill, look, numbers, take, work

PREFIX = "runnel-dead-letter-"


class Job(msgspec.Struct):
    id: int


def member(broker: Broker, pattern: str = "jobs", **options: Any) -> GroupSubscription[bytes]:
    return broker.subscribe(pattern, group="g", **options)


async def letters(broker: Broker, count: int, topic: str = "dead-letters.g") -> list[Record[bytes]]:
    async with broker.subscribe(topic, start="earliest") as subscription:
        return await read(subscription, count)


def story(letter: Record[bytes]) -> dict[str, str]:
    """The headers that tell how it died."""
    return {name.removeprefix(PREFIX): text for name, text in letter.headers.items() if name.startswith(PREFIX)}


@on_every_socket
async def test_after_max_deliver_attempts_a_record_is_a_dead_letter(broker: Broker) -> None:
    position = await broker.publish("jobs", b"poison", key="k", headers={"colour": "red"})
    async with member(broker, max_deliver=3) as deliveries:
        for attempt in (1, 2, 3):
            delivery = await anext(deliveries)
            assert delivery.attempt == attempt
            await delivery.nack(delay=0, reason=f"failed {attempt}")
    (letter,) = await letters(broker, 1)
    assert (letter.value, letter.key, letter.headers["colour"]) == (b"poison", b"k", "red")
    assert letter.traceparent == delivery.traceparent
    assert story(letter) == {
        "reason": "failed 3",
        "attempts": "3",
        "topic": "jobs",
        "position": str(position),
        "group": "g",
    }
    assert Position.parse(story(letter)["position"]).offset == 0
    assert (look(broker).dead_lettered, look(broker).lag, look(broker).redelivered) == (1, 0, 2)


async def test_without_max_deliver_a_record_is_a_dead_letter_after_20_attempts(broker: Broker) -> None:
    await fill(broker, 1)
    async with member(broker) as deliveries:
        for _ in range(20):
            await (await anext(deliveries)).nack(delay=0)
        (letter,) = await letters(broker, 1)
    assert story(letter)["attempts"] == "20"


async def test_a_rejected_record_is_one_at_once(broker: Broker) -> None:
    await fill(broker, 2)
    async with member(broker) as deliveries:
        await (await anext(deliveries)).reject("no such customer")
        await work(deliveries, 1)
    (letter,) = await letters(broker, 1)
    assert (story(letter)["reason"], story(letter)["attempts"]) == ("no such customer", "1")


@pytest.mark.parametrize("how", ["lease", "leave"])
async def test_a_member_that_never_answers_counts_as_a_failure(broker: Broker, clock: JumpingClock, how: str) -> None:
    await fill(broker, 1)
    async with member(broker, ack_wait=10, max_deliver=1) as deliveries:
        await take(deliveries, 1)
        if how == "lease":
            await clock.advance(10)
    (letter,) = await letters(broker, 1)
    assert (
        story(letter)["reason"]
        == {
            "lease": "its lease ended without an ack",
            "leave": "its member left without an ack",
        }[how]
    )


@pytest.mark.parametrize("reason", ["line\nbreak", "nul\0", "\ud800", "", "x" * 10_000])
async def test_no_reason_is_too_odd_to_bury_a_record(broker: Broker, reason: str) -> None:
    await fill(broker, 1)
    async with member(broker) as deliveries:
        await (await anext(deliveries)).reject(reason)
    (letter,) = await letters(broker, 1)
    assert story(letter)["reason"]


async def test_the_dead_letter_topic_may_be_named(broker: Broker) -> None:
    await fill(broker, 1)
    async with member(broker, dead_letter="morgue") as deliveries:
        await (await anext(deliveries)).reject("x")
    assert [letter.value for letter in await letters(broker, 1, "morgue")] == [b"0"]
    assert "dead-letters.g" not in await broker.topics()


async def test_a_topic_says_what_its_groups_do_with_failures(broker: Broker, clock: JumpingClock) -> None:
    await broker.topic("jobs", dead_letter="morgue", max_deliver=2, backoff=[7]).declare()
    await fill(broker, 1)
    async with member(broker, jitter=0) as deliveries:
        await (await anext(deliveries)).nack()
        await clock.advance(6.9)
        assert look(broker).in_flight == 0
        await clock.advance(0.1)
        await (await anext(deliveries)).nack()
    assert len(await letters(broker, 1, "morgue")) == 1
    async with broker.subscribe("jobs", group="patient", max_deliver=5) as deliveries:
        for _ in range(4):
            await (await anext(deliveries)).nack(delay=0)
        assert (await anext(deliveries)).attempt == 5


async def test_a_group_never_works_on_its_own_dead_letters(broker: Broker) -> None:
    with pytest.raises(runnel.InvalidOption, match="the group itself reads"):
        async with member(broker, "morgue", dead_letter="morgue"):
            pass
    async with member(broker, ">") as deliveries:
        await broker.publish("jobs", b"0")
        await broker.publish("other.topic", b"1")
        for value in (b"0", b"1"):
            delivery = await anext(deliveries)
            assert delivery.value == value
            await delivery.reject("no")
        await broker.publish("jobs", b"2")
        assert (await anext(deliveries)).value == b"2", "and not one of the letters"
    async with member(broker, ">") as deliveries:
        assert (await anext(deliveries)).value == b"2"
    assert len(await letters(broker, 2)) == 2


async def test_what_cannot_be_decoded_is_a_dead_letter_that_says_so(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    for value in (b'{"id": 1}', b'{"id": "one"}', b'{"id": 3}'):
        await broker.publish("jobs", value)
    async with broker.subscribe("jobs", group="g", type=Job) as deliveries:
        assert await work(deliveries, 2) == [Job(1), Job(3)]
    (letter,) = await letters(broker, 1)
    assert letter.value == b'{"id": "one"}'
    assert story(letter)["reason"].startswith("not a Job: at id: Expected `int`")
    assert any("of 'jobs' at offset 1 is a dead letter now" in line and "not a Job" in line for line in caplog.messages)
    assert look(broker).lag == 0


async def test_dead_letters_of_a_pattern_tell_their_topic(broker: Broker) -> None:
    for topic in ("jobs.a", "jobs.b"):
        await fill(broker, 1, topic)
    async with member(broker, "jobs.*") as deliveries:
        for delivery in await take(deliveries, 2):
            await delivery.reject("x")
    assert [story(letter)["topic"] for letter in await letters(broker, 2)] == ["jobs.a", "jobs.b"]


# -- back again -------------------------------------------------------------------------------------------------


async def test_dead_letters_can_be_put_back(broker: Broker) -> None:
    await fill(broker, 3, key="k", headers={"colour": "red"})
    async with member(broker) as deliveries:
        for _ in range(3):
            await (await anext(deliveries)).reject("closed on Sundays")
        assert await broker.replay("dead-letters.g") == 3
        again = await anext(deliveries)
        assert (again.value, again.key, again.attempt, again.offset) == (b"0", b"k", 1, 3)
        assert again.headers["colour"] == "red"
        assert not any(name.startswith(PREFIX) for name in again.headers)
        await again.ack()
        assert await work(deliveries, 2) == numbers(1, 3)
    assert await broker.replay("dead-letters.g") == 0


@pytest.mark.near("a server cannot run the caller's function")
async def test_some_dead_letters_can_be_put_back(broker: Broker) -> None:
    await fill(broker, 4)
    async with member(broker) as deliveries:
        for number in range(4):
            await (await anext(deliveries)).reject("odd" if number % 2 else "even")
        odd = await broker.replay("dead-letters.g", where=lambda letter: story(letter)["reason"] == "odd", limit=1)
        assert odd == 1
        assert await work(deliveries, 1) == [b"1"]


@on_every_socket
async def test_letters_are_dealt_with_one_by_one(broker: Broker) -> None:
    await fill(broker, 4)
    async with member(broker) as deliveries:
        for _ in range(4):
            await (await anext(deliveries)).reject("x")
        assert await broker.replay("dead-letters.g", offsets=[2]) == 1
        assert await broker.discard("dead-letters.g", [1, 2]) == 1, "the other was put back"
        assert await work(deliveries, 1) == [b"2"]
        assert await broker.replay("dead-letters.g") == 2
        assert await work(deliveries, 2) == [b"0", b"3"]
        assert await broker.discard("dead-letters.g") == 0
    with pytest.raises(runnel.UnknownTopic):
        await broker.discard("nothing")
    assert await broker.marks() == {}


async def test_what_dies_again_tells_its_last_story(broker: Broker) -> None:
    await fill(broker, 1)
    async with member(broker) as deliveries:
        await (await anext(deliveries)).reject("first")
        await broker.replay("dead-letters.g")
        await (await anext(deliveries)).reject("second")
    _, second = await letters(broker, 2)
    assert story(second)["reason"] == "second"
    assert Position.parse(story(second)["position"]).offset == 1
