"""The shapes of statistics: frozen, and the same on the other side of a connection."""

import msgspec
import pytest

from runnel.core.statistics import (
    ArchiveStatistics,
    CleanerStatistics,
    GroupStatistics,
    HandlerStatistics,
    Histogram,
    HolderStatistics,
    JournalStatistics,
    MemberStatistics,
    Statistics,
    SubscriberTotals,
    SubscriptionStatistics,
    TopicStatistics,
)

durations = Histogram()
durations.add(0.3)

FULL = Statistics(
    {"t": TopicStatistics("t", 1, 10, 100, 2, 10, 80, 1)},
    (SubscriptionStatistics("t#1", "t", None, "block", 5, 1, 9, 0, 0),),
    (GroupStatistics("g", "t", 3, 2, 1, 0.5, 4, 1, 1, 0, 0, False, (MemberStatistics("g#1", 2, 64, 6, 4),)),),
    (HandlerStatistics("work", "t", "g", 1, 0, 1, durations.snapshot()),),
    {("t", "anonymous"): SubscriberTotals(9, 0, 0, 1), ("t.*", "me"): SubscriberTotals(1, 2, 3, 4)},
    10,
    100,
    10,
    2,
    1,
    JournalStatistics(
        3,
        1000,
        0,
        7,
        None,
        0,
        False,
        False,
        None,
        (HolderStatistics("archive", "t", 50),),
        10,
        1,
        ("segment 3",),
        CleanerStatistics(1, 2, 3, 4, 5, 6, 1.5),
        1,
        10,
        (ArchiveStatistics("/backup", 7, 1.5, 2.5),),
    ),
)


@pytest.mark.parametrize("statistics", [FULL, msgspec.structs.replace(FULL, journal=None)], ids=["durable", "memory"])
def test_all_of_it_survives_the_wire(statistics: Statistics) -> None:
    packed = msgspec.msgpack.encode(statistics)
    assert msgspec.msgpack.decode(packed, type=Statistics) == statistics
    assert msgspec.convert(msgspec.msgpack.decode(packed), Statistics) == statistics


def test_a_snapshot_is_frozen() -> None:
    with pytest.raises(AttributeError):
        FULL.published = 5  # type: ignore[misc]
