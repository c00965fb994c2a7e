"""The shapes of statistics: frozen, and the same on the other side of a connection."""

import msgspec
import pytest

from runnel.core.statistics import (
    DURATION_BOUNDS,
    SYNC_BOUNDS,
    ArchiveStatistics,
    CleanerStatistics,
    GroupStatistics,
    HandlerReports,
    HandlerStatistics,
    Histogram,
    HolderStatistics,
    JournalStatistics,
    MemberStatistics,
    RelayReports,
    RelayStatistics,
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


def test_reports_of_relays_are_kept_by_slot_and_go_silent() -> None:
    reports = RelayReports()
    one = RelayStatistics(slot="s", state="streaming", rows=5, rows_per_second=2.0)
    reports.take(one, now=100.0)
    reports.take(msgspec.structs.replace(one, state="standby", rows=0), now=101.0)  # another process, same slot
    assert reports.current(101.0) == (one,)
    (silent,) = reports.current(100.0 + RelayReports.SILENT)
    assert (silent.state, silent.rows, silent.rows_per_second) == ("silent", 5, 0.0)
    reports.take(msgspec.structs.replace(one, state="waiting"), now=111.0)
    assert reports.current(111.0)[0].state == "waiting"
    assert reports.current(111.0 + RelayReports.FORGOTTEN) == ()
    reports.take(msgspec.structs.replace(one, state="stopped"), now=112.0)
    assert reports.current(112.0) == ()


def test_an_archive_reports_beside_a_relay_of_the_same_name() -> None:
    reports = RelayReports()
    relay = RelayStatistics(slot="s", state="streaming")
    archive = RelayStatistics(kind="archive", slot="s", state="copying", rows=3)
    for one in (relay, archive, msgspec.structs.replace(archive, state="standby", rows=0)):
        reports.take(one, now=100.0)
    assert reports.current(101.0) == (archive, relay)
    reports.take(msgspec.structs.replace(archive, slot="s" * 200, kind="archive"), now=101.0)
    assert max(len(one.slot) for one in reports.current(101.0)) == 127, "schema.table"
    reports.take(msgspec.structs.replace(archive, state="stopped"), now=101.0)
    assert [one.kind for one in reports.current(101.0) if one.slot == "s"] == ["relay"]


def test_reports_of_relays_are_bounded() -> None:
    reports = RelayReports()
    for number in range(RelayReports.MOST + 5):
        slot = f"{number:03d}" + "x" * 100
        reports.take(RelayStatistics(slot=slot, state="streaming", last_error="e" * 5000), now=1.0)
    found = reports.current(1.0)
    assert (len(found), len(found[0].slot), len(found[0].last_error or "")) == (RelayReports.MOST, 63, 1000)
    assert found[0].slot.startswith("005")


def test_what_a_forgotten_client_did_stays_in_the_sums() -> None:
    reports = HandlerReports()
    work = HandlerStatistics("work", "jobs", None, 1, 1, 1, durations.snapshot())
    for client in range(reports.MOST + 5):
        reports.take(str(client), [work], 0.0)
    (found,) = reports.current(0.0)
    assert (found.handled, found.failed, found.running) == (reports.MOST + 5, reports.MOST + 5, reports.MOST)
    (later,) = reports.current(reports.SILENT)
    assert (later.handled, later.running) == (reports.MOST + 5, 0)


# -- Durations in buckets: every one counted once, in a size that never grows --------------------------------


def filled(*seconds: float) -> Histogram:
    histogram = Histogram()
    for duration in seconds:
        histogram.add(duration)
    return histogram


def test_a_new_one_has_counted_nothing() -> None:
    snapshot = Histogram().snapshot()
    assert (snapshot.count, snapshot.sum, snapshot.quantile(0.5)) == (0, 0.0, 0.0)
    assert len(snapshot.counts) == len(snapshot.bounds) + 1


@pytest.mark.parametrize("at", range(len(DURATION_BOUNDS)))
def test_a_duration_on_a_bound_belongs_below_it_and_one_beyond_does_not(at: int) -> None:
    snapshot = filled(DURATION_BOUNDS[at], DURATION_BOUNDS[at] * 1.01).snapshot()
    assert (snapshot.counts[at], snapshot.counts[at + 1], snapshot.count) == (1, 1, 2)


def test_what_exceeds_every_bound_is_counted_without_one() -> None:
    snapshot = filled(1e9).snapshot()
    assert snapshot.counts[-1] == snapshot.count == 1
    assert snapshot.quantile(1.0) == float("inf")


def test_the_sum_is_exact() -> None:
    assert filled(0.25, 0.5, 100.0).snapshot().sum == 100.75


def test_quantiles_are_bounds_that_so_many_do_not_exceed() -> None:
    snapshot = filled(*[0.002] * 50, *[0.2] * 49, 20.0).snapshot()
    assert [snapshot.quantile(share) for share in (0.0, 0.5, 0.51, 0.99, 0.991, 1.0)] == [
        0.0025,
        0.0025,
        0.25,
        0.25,
        30.0,
        30.0,
    ]


def test_a_snapshot_stands_still_while_the_histogram_goes_on() -> None:
    histogram = filled(1.0)
    snapshot = histogram.snapshot()
    histogram.add(1.0)
    assert (snapshot.count, histogram.snapshot().count) == (1, 2)


def test_the_bounds_may_be_others() -> None:
    histogram = Histogram(SYNC_BOUNDS)
    histogram.add(0.0002)
    assert (histogram.snapshot().bounds, histogram.snapshot().quantile(0.5)) == (SYNC_BOUNDS, 0.00025)


def test_what_was_counted_since_is_the_difference() -> None:
    histogram = filled(1.0, 2.0)
    earlier = histogram.snapshot()
    histogram.add(4.0)
    since = histogram.snapshot().since(earlier)
    assert (since.count, since.sum, since.quantile(0.5)) == (1, 4.0, 5.0)
    assert earlier.since(earlier).count == 0
