"""A limit is shared fairly, used up, and never passed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runnel.spark.planning import share_bytes, share_records

LAGS = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(0, 1000), max_size=12)


@given(LAGS, st.integers(1, 5000))
def test_the_limit_is_used_up_and_not_passed(lags: dict[str, int], limit: int) -> None:
    found = share_records(lags, limit)
    assert found.keys() == lags.keys()
    assert all(0 <= found[topic] <= lag for topic, lag in lags.items())
    assert sum(found.values()) == min(limit, sum(lags.values()))


@given(LAGS, st.integers(1, 5000))
def test_who_is_cut_off_got_no_less_than_anybody_else(lags: dict[str, int], limit: int) -> None:
    found = share_records(lags, limit)
    cut = [found[topic] for topic, lag in lags.items() if found[topic] < lag]
    if cut:
        assert max(found.values()) <= min(cut) + 1


def test_without_a_limit_all_is_read() -> None:
    assert share_records({"a": 5, "b": 0}, None) == {"a": 5, "b": 0}
    assert share_bytes({"a": 5}, {"a": 100.0}, None) == {"a": 5}


@given(LAGS, st.integers(1, 100_000), st.data())
def test_bytes_are_kept_to_but_for_a_record_that_is_too_large(
    lags: dict[str, int], limit: int, data: st.DataObject
) -> None:
    sizes = {topic: data.draw(st.floats(1, 5000)) for topic in lags}
    found = share_bytes(lags, sizes, limit)
    total = sum(found[topic] * sizes[topic] for topic in lags)
    assert all(0 <= found[topic] <= lag for topic, lag in lags.items())
    assert total <= limit + 1 or sum(found.values()) == 1
    assert any(found.values()) == any(lags.values())
