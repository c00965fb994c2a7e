"""Shared steps: what one reader took the others take over, and it is what each would have taken alone."""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel import Broker
from runnel.broker.read.reader import LocalReader
from runnel.core.backend import SLICE, SharedStep, SharedSteps
from runnel.core.batch import Slice
from runnel.core.options import SubscribeOptions
from runnel.core.record import Gap, MissedRange
from runnel.testing.clock import JumpingClock
from tests.brokers import local_broker
from tests.nightly import nightly_beyond

PATTERNS: tuple[Any, ...] = ("t", "u", ("t", "x"), "*", ("t", "u", "late"))


def opened(broker: Broker, pattern: Any, wake: Callable[[], None] = lambda: None, **options: Any) -> LocalReader:
    reader: LocalReader = broker.backend.reader(pattern, SubscribeOptions.of(options), wake, far=True)
    reader.enter()
    return reader


def seen(
    missed: MissedRange | Gap | None, slices: list[Slice]
) -> tuple[tuple[int, int, int | None, str] | None, list[tuple[str, int, int, tuple[bytes, ...]]]]:
    gap = None if missed is None else (missed.first, missed.end, missed.count, missed.reason)
    return gap, [(part.topic, part.epoch, part.start, part.values) for part in slices]


async def everything(reader: LocalReader) -> tuple[int, list[bytes]]:
    """How many it is told that it missed, and the values of all that comes."""
    missed, values = 0, list[bytes]()
    while True:
        step = reader.take_step({}, SLICE)
        if step is not None:
            missed += 0 if step.gap is None else step.gap.count or 0
            values += [value for part in step.slices for value in part.values]
        elif not reader.overflow.cursor.is_behind:
            return missed, values
        else:
            await asyncio.sleep(0.001)


def facts(reader: LocalReader) -> tuple[object, ...]:
    return (
        reader.position,
        reader.sent,
        reader.delivered,
        reader.lag,
        reader.expired,
        reader.dropped_count,
        reader.ended,
    )


async def test_the_second_of_two_takes_over_what_the_first_found() -> None:
    async with local_broker() as broker:
        one, two = opened(broker, "t"), opened(broker, "t")
        await broker.topic("t").publish_many([b"a", b"b"])
        steps: SharedSteps = {}
        first, second = one.take_step(steps, SLICE), two.take_step(steps, SLICE)
        assert second is first
        assert isinstance(first, SharedStep)
        assert (first.count, first.sent, first.sequence, first.is_last, first.gap) == (2, 2, 2, True, None)
        assert repr(first) == "<SharedStep of 2 records up to 2>"
        one.pass_all()
        two.pass_all()
        assert facts(one) == facts(two) == (2, 2, 2, 0, 0, 0, False)
        assert one.take_step({}, SLICE) is None


async def test_who_stands_elsewhere_or_reads_something_else_looks_itself() -> None:
    async with local_broker() as broker:
        await broker.publish("t", b"a")
        readers = [opened(broker, pattern, start="earliest") for pattern in ("t", ("t",), "*")]
        readers.append(opened(broker, "t", start="latest"))
        await broker.publish("t", b"b")
        steps: SharedSteps = {}
        found = [reader.take_step(steps, SLICE) for reader in readers]
        assert len({id(step) for step in found}) == 4
        assert [step.count for step in found if step is not None] == [2, 2, 2, 1]


async def test_offsets_and_sequences_that_are_the_same_number_are_not_the_same_place() -> None:
    async with local_broker() as broker:
        await broker.topic("t").declare()
        by_offset, by_sequence = opened(broker, "t"), opened(broker, ("t",))
        await broker.publish("x", b"in between")
        await broker.publish("t", b"a")
        steps: SharedSteps = {}
        one, two = by_offset.take_step(steps, SLICE), by_sequence.take_step(steps, SLICE)
        assert one is not None
        assert two is not None
        assert (one.sent, two.sent) == (1, 2)


async def test_who_has_a_gap_to_tell_tells_it() -> None:
    async with local_broker() as broker:
        clear, late = opened(broker, "t"), opened(broker, "t")
        await broker.topic("t").publish_many([b"2", b"3"])
        late.overflow.missed = MissedRange(0, 2, 2, "it was too slow before")
        steps: SharedSteps = {}
        first, second = clear.take_step(steps, SLICE), late.take_step(steps, SLICE)
        assert first is not None
        assert second is not None
        assert first.gap is None
        assert second.gap is not None
        assert (second.gap.first, second.gap.end, second.count) == (0, 2, 2)


async def test_who_took_the_last_step_and_parked_is_woken() -> None:
    async with local_broker() as broker:
        woken: list[int] = []
        readers = [opened(broker, "t", partial(woken.append, n)) for n in range(2)]
        for reader in readers:
            assert reader.take_step({}, SLICE) is None
        for turn in range(3):
            woken.clear()
            await broker.publish("t", b"%d" % turn)
            assert sorted(woken) == [0, 1]
            steps: SharedSteps = {}
            for reader in readers:
                step = reader.take_step(steps, SLICE)
                assert step is not None
                assert step.is_last
                reader.park()


async def test_a_step_that_is_not_the_last_leaves_the_rest() -> None:
    async with local_broker() as broker:
        for pattern in ("t", "*"):
            one, two = opened(broker, pattern), opened(broker, pattern)
            await broker.topic("t").publish_many([b"%d" % number for number in range(10)])
            steps: SharedSteps = {}
            assert one.take_step(steps, 4) is two.take_step(steps, 4)
            assert [found is not None and not found.is_last for found in steps.values()] == [True]
            rest = two.take_step({}, 100)
            assert rest is not None
            assert rest.slices[0].values == tuple(b"%d" % number for number in range(4, 10))


@pytest.mark.parametrize("where", ["memory", "folder"])
@pytest.mark.parametrize("seed", nightly_beyond(4, range(12)))
async def test_in_step_each_takes_what_it_would_have_taken_alone(tmp_path: Path, where: str, seed: int) -> None:
    """Whatever is published, expires, is trimmed or deleted, and whoever looks when: readers and their twins agree."""
    chance, clock = random.Random(seed), JumpingClock()
    folder = None if where == "memory" else tmp_path
    options: dict[str, Any] = {} if folder is None else {"fsync": "os", "tail_bytes": 4096}
    async with runnel.open(folder, clock=clock, **options) as broker:
        await broker.topic("u", retention_count=7).declare()
        pairs: list[tuple[LocalReader, LocalReader]] = []
        for _ in range(150):
            match chance.randrange(12):
                case 0 | 1:
                    pattern, start = chance.choice(PATTERNS), chance.choice(["earliest", "latest"])
                    pairs.append((opened(broker, pattern, start=start), opened(broker, pattern, start=start)))
                case 2 | 3 | 4 | 5:
                    topic = chance.choice(["t", "t", "u", "x", "late"])
                    values = [chance.randbytes(chance.randrange(60)) for _ in range(chance.choice([1, 1, 3, 20]))]
                    await broker.topic(topic).publish_many(values)
                case 6:
                    await broker.publish("t", b"soon gone", expires=chance.choice([1, 5]), key="k")
                case 7:
                    await clock.advance(chance.choice([1, 3]))
                case 8 if chance.random() < 0.2:
                    if (name := chance.choice(["x", "late"])) in await broker.topics():
                        await broker.delete(name)
                case _:
                    limit, steps = chance.choice([3, 512]), SharedSteps()
                    for reader, twin in chance.sample(pairs, chance.randrange(len(pairs) + 1)):
                        if reader.overflow.cursor.is_behind or twin.overflow.cursor.is_behind:
                            assert await everything(reader) == await everything(twin)  # from disk, cut anyhow
                            steps = {}
                        else:
                            step, alone = reader.take_step(steps, limit), twin.take(limit)
                            assert (step is None) == (alone is None)
                            if step is not None and alone is not None:
                                assert seen(step.gap, step.slices) == seen(alone.missed, alone.slices)
                                assert step.is_last == (twin.overflow.cursor.pending() == 0 and not twin.ended)
                        reader.pass_all()
                        twin.confirm(twin.sent)
                        twin.count(twin._given, 0, 0)
                        assert facts(reader) == facts(twin)
        assert pairs
