"""What every subscription does alike: entered once, read one way, woken, ended."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import runnel
from runnel.api.subscription import SubscriptionBase, decoded
from runnel.core.errors import RunnelError, ValidationFailed
from runnel.core.record import NO_HEADERS, Gap, Record
from runnel.core.schema import Codec
from runnel.testing import JumpingClock


class Source:
    """What it reads: nothing but whether that is over."""

    label = "counting"
    ended = False
    error: RunnelError | None = None

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def end(self) -> None:
        self.ended = True
        self.wake()


class Counting(SubscriptionBase):
    """Hands out numbers that a test puts in."""

    def __init__(self) -> None:
        super().__init__()
        self._source: Any = Source(self.wake)
        self.numbers: list[int] = []
        self._entered = True

    def put(self, *numbers: int) -> None:
        self.numbers += numbers
        self.wake()

    def one_by_one(self) -> AsyncIterator[int]:
        return self._iterate(self._numbers)

    def two_by_two(self) -> AsyncIterator[int]:
        return self._iterate(self._pairs)

    async def _numbers(self) -> AsyncIterator[int]:
        while not self._source.ended:
            while self.numbers:
                yield self.numbers.pop(0)
            await self._parked()

    async def _pairs(self) -> AsyncIterator[int]:
        yield 0


async def test_a_read_that_was_cancelled_goes_on_where_it_was() -> None:
    reading = Counting()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(reading.one_by_one()), 0.001)
    reading.put(1, 2)
    assert await anext(reading.one_by_one()) == 1
    assert await anext(reading.one_by_one()) == 2


async def test_it_is_read_one_way_at_a_time() -> None:
    reading = Counting()
    reading.put(1)
    await anext(reading.one_by_one())
    with pytest.raises(runnel.SubscriptionMisused, match="one way"):
        reading.two_by_two()


async def test_ending_wakes_the_waiter_and_the_loop_is_over() -> None:
    reading = Counting()
    seen: list[int] = []

    async def read() -> None:
        seen.extend([number async for number in reading.one_by_one()])

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    reading.put(7)
    await asyncio.sleep(0)
    reading.end()
    await task
    assert seen == [7]


async def test_gathering_waits_for_enough_or_for_the_time() -> None:
    reading, clock = Counting(), JumpingClock()

    def ahead() -> int:
        return len(reading.numbers)

    gathering = asyncio.create_task(reading._gather(ahead, 3, 10.0, clock))
    await clock.advance(60)
    assert not gathering.done(), "nothing is there yet: the time runs from the first"
    reading.put(1)
    await clock.advance(9)
    assert not gathering.done()
    reading.put(2, 3)
    await gathering
    late = asyncio.create_task(reading._gather(ahead, 5, 10.0, clock))
    await clock.advance(10)
    await late


async def test_a_subscription_that_could_not_be_entered_can_be_entered_later() -> None:
    async with runnel.open(auto_create=False) as broker:
        subscription = broker.subscribe("t")
        with pytest.raises(runnel.UnknownTopic):
            await subscription.__aenter__()
        await broker.topic("t").declare()
        async with subscription:
            await broker.publish("t", "x")
            assert (await anext(subscription)).value == b"x"


# -- A record for one reader: its value decoded, everything else as it was -----------------------------------


def record(value: bytes, key: bytes | None = None) -> Record[bytes]:
    return Record("t", 3, 9, 1, key, value, NO_HEADERS, datetime.now(UTC))


def test_the_value_is_decoded_and_the_rest_stays() -> None:
    raw = record(b"[1,2]", b"k")
    found: Record[list[int]] = decoded(Codec(list[int]), None, raw)
    assert found.value == [1, 2]
    kept = [field for field in Record.__struct_fields__ if field != "value"]
    assert [getattr(found, field) for field in kept] == [getattr(raw, field) for field in kept]
    again: Record[list[int]] = decoded(Codec(list[int]), None, raw)
    assert again.value is not found.value


def test_how_it_is_written_may_differ_from_what_the_codec_says() -> None:
    assert decoded(Codec(int), "msgpack", record(msgspec.msgpack.encode(500))).value == 500
    with pytest.raises(ValidationFailed):
        decoded(Codec(int), "json", record(msgspec.msgpack.encode(500)))


def test_a_gap_may_go_with_it() -> None:
    gap = Gap("t", 0, 3, 3, "gone")
    assert decoded(Codec(int), None, record(b"5"), gap).gap is gap


def test_a_tombstone_has_no_value() -> None:
    assert decoded(Codec(int), None, record(b"", b"k")).value is None
