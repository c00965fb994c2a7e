"""How fast history is read beside live traffic: all of it when there is none, a share beside it, never nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.broker.durable.history_pace import LEAST_RATE, WINDOW, HistoryPace, LiveTraffic

CHUNK = 1 << 18
QUIET = LiveTraffic(0, 0, 0)


def history_rate(share: float, records: float, batches: float, size: float) -> float:
    """Bytes a second that a reader gets who wants 1 GiB a second, beside so much live traffic a second."""
    pace, now, read = HistoryPace(share, QUIET, 0.0), 1.0, 0
    assert not pace.wait(LiveTraffic(int(records), int(batches), int(size)), now)  # it measures
    while now < 10.0:
        traffic = LiveTraffic(int(records * now), int(batches * now), int(size * now))
        if wait := pace.wait(traffic, now):
            now += wait
        else:
            pace.read(CHUNK, now)
            read += CHUNK
            now += CHUNK / (1 << 30)
    return read / (now - 1.0)


def test_without_live_traffic_nothing_is_held_back() -> None:
    assert history_rate(0.2, 0, 0, 0) == pytest.approx(1 << 30, rel=0.01)


@pytest.mark.parametrize(("share", "beside"), [(0.2, 0.25), (0.1, 1 / 9), (0.5, 1.0)])
def test_beside_full_traffic_history_has_its_share_of_the_bytes(share: float, beside: float) -> None:
    live = 400 << 20
    assert history_rate(share, 3e6, 3e3, live) == pytest.approx(live * beside, rel=0.05)


def test_history_is_never_held_back_further_than_the_least_rate() -> None:
    assert history_rate(1e-9, 3e6, 3e3, 400 << 20) == pytest.approx(LEAST_RATE, rel=0.1)
    assert history_rate(0.2, 5000, 5000, 5000) == pytest.approx(LEAST_RATE, rel=0.1)  # many small ones


def test_a_whole_share_is_no_limit() -> None:
    assert history_rate(1, 3e6, 3e3, 400 << 20) == pytest.approx(1 << 30, rel=0.01)


def test_little_live_traffic_holds_back_little() -> None:
    rates = [history_rate(0.2, count, count, 100 * count) for count in (1, 10, 100, 1000)]
    assert rates == sorted(rates, reverse=True)
    assert [int(rate) >> 20 for rate in rates] == [pytest.approx(most, rel=0.2) for most in (1024, 1024, 700, 78)]


def test_when_live_traffic_ends_what_was_to_wait_goes_on_within_a_window() -> None:
    pace = HistoryPace(0.2, QUIET, 0.0)
    busy = LiveTraffic(10**6, 10**3, 10**8)
    assert pace.wait(busy, 1.0) == 0  # measured: traffic is full from now on
    pace.read(1 << 30, 1.0)  # a minute of the least rate
    assert pace.wait(busy._replace(records=2 * 10**6), 1.01) == pytest.approx(WINDOW)  # asked again by then
    done = busy._replace(records=2 * 10**6)
    assert pace.wait(done, 1.0 + WINDOW) == pytest.approx(WINDOW)
    assert pace.wait(done, 1.0 + 2 * WINDOW) == 0


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**4), st.integers(0, 10**9)), max_size=30))
def test_a_reader_that_waits_is_asked_again_soon_and_reads_in_the_end(traffic: list[tuple[int, int, int]]) -> None:
    pace, now, total = HistoryPace(0.2, QUIET, 0.0), 0.0, QUIET
    for more in traffic:
        total = LiveTraffic(*(before + added for before, added in zip(total, more, strict=True)))
        now += WINDOW
        assert 0 <= pace.wait(total, now) <= WINDOW
        pace.read(CHUNK, now)
    debt = len(traffic) * CHUNK / LEAST_RATE
    assert pace.wait(total, now + max(debt, 3 * WINDOW)) == 0
