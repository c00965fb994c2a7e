"""A source of history in memory: what it holds, by offset, by sequence and by time."""

from datetime import UTC, datetime, timedelta

import pytest

from runnel.core.record import NO_HEADERS, Record
from runnel.testing import MemoryHistory

START = datetime(2026, 1, 1, tzinfo=UTC)


def record(topic: str, offset: int, sequence: int, key: bytes | None = None) -> Record[bytes]:
    headers = {"n": str(offset)} if offset % 2 else NO_HEADERS
    time = START + timedelta(seconds=sequence)
    return Record(topic, offset, sequence, 5, key, b"%d" % offset, headers, time)


async def test_it_gives_back_the_records_that_it_was_given() -> None:
    source = MemoryHistory("a.>", chunk=4)
    ours = [record("a.x", offset, 2 * offset, b"k" if offset == 3 else None) for offset in (0, 1, 2, 3, 6, 7)]
    others = [record("a.y", offset, 2 * offset + 1) for offset in range(5)]
    source.add([*ours, *others])
    assert (source.covers("a.x"), source.covers("b")) == (True, False)
    assert await source.bounds("a.x", 5) == (0, 8)
    assert await source.bounds("a.x", 6) is None
    found = await source.read("a.x", 5, 1, 100)
    assert [one for part in found for one in part.records] == ours[1:5]
    assert await source.read("a.x", 5, 4, 6) == []
    merged = await source.read_sequences(["a.*"], 3, 8)
    assert [one.sequence for part in merged for one in part.records] == [3, 4, 5, 6]
    assert await source.offset_at("a.x", 5, START + timedelta(seconds=3)) == 2
    assert await source.sequence_at(["a.y"], START + timedelta(seconds=2)) == 3
    assert await source.sequence_at(["a.y"], START + timedelta(days=1)) is None


async def test_it_drops_and_loses_records_and_fails_when_asked_to() -> None:
    source = MemoryHistory()
    source.add(record("t", offset, offset) for offset in range(5))
    source.drop("t", 2)
    source.remove("t", 3)
    assert [part.start for part in await source.read("t", 5, 0, 9)] == [2, 4]
    with pytest.raises(ValueError, match="comes too late"):
        source.add([record("t", 1, 1)])
    source.error = OSError("away")
    with pytest.raises(OSError, match="away"):
        await source.bounds("t", 5)
    source.error = None
    await source.close()
    with pytest.raises(OSError, match="closed"):
        await source.bounds("t", 5)
    assert source.calls == {"read": 1, "bounds": 2}
