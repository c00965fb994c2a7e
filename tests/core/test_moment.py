"""Times as they are stored, there and back, to the microsecond."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.clock import from_micros, micros


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_time_comes_back_as_it_was(time: datetime) -> None:
    assert from_micros(micros(time)) == time


@pytest.mark.parametrize("stored", [0, 1, 999_999, 1_700_000_000_123_457, 253_402_300_799_999_999])
def test_a_stored_time_is_in_utc_and_loses_nothing(stored: int) -> None:
    assert micros(from_micros(stored)) == stored
    assert from_micros(stored).utcoffset() == timedelta(0)


def test_the_zone_of_a_time_does_not_matter() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert micros(noon.astimezone(timezone(timedelta(hours=5)))) == micros(noon)
