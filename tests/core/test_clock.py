"""The port through which a broker knows the time: the system's clock and the one for tests both fit it."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.clock import Clock, Timer, from_micros, micros
from runnel.runtime.clock import SystemClock
from runnel.testing.clock import JumpingClock


@pytest.mark.parametrize("make", [SystemClock, JumpingClock])
async def test_a_timer_that_was_called_off_does_nothing(make: type[Clock]) -> None:
    clock, fired = make(), []
    timer: Timer = clock.call_later(0, lambda: fired.append("no"))
    timer.cancel()
    timer.cancel()  # harmless
    if isinstance(clock, JumpingClock):
        await clock.advance(1)
    else:
        later = asyncio.get_running_loop().create_future()
        clock.call_later(0, lambda: later.set_result(None))
        await later
    assert fired == []


@pytest.mark.parametrize("make", [SystemClock, JumpingClock])
async def test_time_is_seconds_since_the_unix_epoch(make: type[Clock]) -> None:
    assert make().time() > 1_700_000_000


# -- Times as they are stored, there and back, to the microsecond.


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
