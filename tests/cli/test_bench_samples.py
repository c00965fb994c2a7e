"""Latencies: percentiles out of a fair sample, and the largest of all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.cli.bench import LatencySamples, human_latency, percentiles


def test_percentiles_of_a_hundred_numbers() -> None:
    assert percentiles(float(one) for one in range(101)) == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    assert percentiles([]) is None
    assert percentiles([3.0]) == {"p50": 3.0, "p90": 3.0, "p99": 3.0, "max": 3.0}


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_rise(values: list[float]) -> None:
    found = percentiles(values)
    assert found is not None
    assert list(found.values()) == sorted(found.values())
    assert found["max"] == max(values)


def test_a_long_run_keeps_a_bounded_and_fair_sample_and_the_largest() -> None:
    samples = LatencySamples(most=1000)
    samples.add(1e9)
    for one in range(100_000):
        samples.add(float(one))
    kept = samples.values()
    assert len(kept) <= 1001
    assert max(kept) == 1e9
    found = percentiles(kept)
    assert found is not None
    assert found["p50"] == pytest.approx(50_000, rel=0.1)


@pytest.mark.parametrize(("seconds", "shown"), [(0.000083, "83 µs"), (0.00125, "1.25 ms"), (2.1, "2.10 s")])
def test_a_latency_is_shown_in_the_unit_that_fits(seconds: float, shown: str) -> None:
    assert human_latency(seconds) == shown
