"""What a pattern has not read of each topic, of what is on disk only."""

from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

import runnel
from runnel.broker.read.pattern_cursor import UnreadOnDisk
from runnel.broker.topic.pending_batch import DurableTopic
from runnel.core.batch import Slice, SliceRun
from tests.broker.broker_parts import make_log, make_timeline
from tests.broker.durable_broker import Disk, journal_of, open_on

ON_DISK = {"tail_bytes": 1, "segment_bytes": 4096, "min_free": 0}


def found(start: int, end: int) -> Slice:
    values = tuple(b"x" for _ in range(start, end))
    return Slice("t", 1, start, values, [SliceRun(start, start, datetime.now(UTC))], None)


def test_read_records_are_not_due_any_more_and_removed_ones_are_reported_once() -> None:
    timeline, log = make_timeline(), make_log("t", retention_count=3)
    log.revive(0, 10, 10)
    log.stored = DurableTopic(1, 10)
    arrears = UnreadOnDisk(timeline)
    arrears._due, arrears.count = {log: 0}, 10
    assert arrears.read(log, found(0, 5)) == 5
    assert (arrears.count, arrears.read(log, found(5, 8)), arrears.count) == (5, 2, 2)
    assert arrears.skip(9) == 2, "no more than there is"
    assert arrears.close(timeline.in_memory_from) == (0, 0)


def test_what_never_came_is_gone_with_its_topic_or_by_retention() -> None:
    timeline, short, deleted = make_timeline(), make_log("t", retention_count=3), make_log("d")
    for log in (short, deleted):
        log.revive(0, 10, 10)
        log.stored = DurableTopic(1, 10)
    log.stored = DurableTopic(1, 10)
    arrears = UnreadOnDisk(timeline)
    arrears._due, arrears.count = {short: 4, deleted: 6}, 10
    deleted.clear()
    assert arrears.close(0) == (3, 4)
    assert (arrears.count, arrears.close(0)) == (0, (0, 0))


def test_what_is_in_memory_but_lies_before_what_is_not_is_due_as_well() -> None:
    timeline, short, staged = make_timeline(), make_log("t", retention_count=3), make_log("s")
    timeline.tail_bytes = 10**6
    for number, log in enumerate((short, staged)):
        log.stored = DurableTopic(number, 0)
    first = timeline.hold(20)
    timeline.land(short, first, timeline.now(), [b"x"] * 10, None, 10)
    timeline.land_elsewhere(staged, first + 10, timeline.now(), 10, 100)
    timeline.release(first)
    store: Any = None
    arrears = UnreadOnDisk(timeline)
    arrears.begin([short, staged], 0, store)
    assert arrears.count == 13
    assert arrears.close(timeline.in_memory_from) == (0, 0)
    arrears._due = {short: 2}
    assert arrears.close(timeline.in_memory_from) == (5, 0)


async def test_a_segment_that_cannot_be_read_keeps_no_folder_from_opening(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path) as broker:
        async with broker.subscribe("a.*", group="g") as deliveries:
            for number in range(40):
                await broker.publish("a.x", b"%d" % number * 2000)
                await broker.publish("b.x", b"x" * 2000)
                if number == 0:
                    await (await anext(deliveries)).ack()
        bad = journal_of(broker).history.sources[0].info.name

    def fail(name: str) -> None:
        if name == bad:
            raise OSError(5, "Input/output error", name)

    disk.on_read = fail
    async with open_on(disk, tmp_path) as broker:
        assert "not known exactly" in caplog.text
        (group,) = broker.statistics().groups
        assert 0 < group.lag <= 80, "a bound"
        async with broker.subscribe("a.*", group="g") as deliveries:
            number = (await anext(deliveries)).record.offset
            assert number > 1, "behind what cannot be read"
            assert broker.statistics().groups[0].missed > 0
    disk.on_read = lambda name: None
    async with open_on(disk, tmp_path) as broker, broker.subscribe("a.*", group="g") as deliveries:
        assert (await anext(deliveries)).record.offset == 1, "what can be read again is not lost to the group"


@pytest.mark.parametrize("seed", range(5))
async def test_the_lag_of_a_pattern_is_exact_wherever_it_stands(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    async with runnel.open(tmp_path, **ON_DISK) as broker:  # type: ignore[arg-type]
        order: list[str] = []
        for _ in range(60):
            name, count = random.choice("abc"), random.randint(1, 3)
            await broker.topic(f"t.{name}").publish_many([random.randbytes(random.randint(1, 300))] * count)
            order += [name] * count
        for start in (0, 1, 17, len(order) // 2, len(order) - 1, len(order)):
            async with broker.subscribe("t.*", name=f"at {start}", start="earliest") as records:
                for _ in range(start):
                    await anext(records)
            async with broker.subscribe("t.*", name=f"at {start}") as records:
                expected = len(order) - max(0, start - 1)  # the last one was not asked beyond
                assert records.lag == expected
                assert [(await anext(records)).topic[-1] for _ in range(expected)] == order[max(0, start - 1) :]
