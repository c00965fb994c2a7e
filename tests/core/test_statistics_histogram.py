"""Durations in buckets: every one counted once, in a size that never grows."""

import pytest

from runnel.core.statistics import DURATION_BOUNDS, SYNC_BOUNDS, Histogram


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
