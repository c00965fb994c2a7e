"""The stall warning: a group that does not move is reported once, and when somebody could have moved it."""

import logging
from math import inf

import pytest

from runnel.broker.group.reader import STALL_SECONDS, StallWarning


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize(("members", "why"), [(0, "has no member"), (2, "has settled nothing")])
def test_it_is_said_once_that_nothing_moves(caplog: pytest.LogCaptureFixture, members: int, why: str) -> None:
    worry = StallWarning("g on t", 0.0)
    assert worry.look(10.0, 0, 10.0, 5, members) == 10.0 + STALL_SECONDS, "from when there was something to do"
    assert worry.look(9.9 + STALL_SECONDS, 0, 9.9 + STALL_SECONDS, 5, members) == 10.0 + STALL_SECONDS
    assert told(caplog) == []
    assert worry.look(10.0 + STALL_SECONDS, 0, 10.0 + STALL_SECONDS, 1234, members) == inf
    assert worry.look(99.0 + STALL_SECONDS, 0, 99.0 + STALL_SECONDS, 5, members) == inf
    assert told(caplog) == [f"group 'g on t' {why} for {STALL_SECONDS:.0f} s while 1,234 records wait"]


def test_whoever_settles_something_has_time_again(caplog: pytest.LogCaptureFixture) -> None:
    worry = StallWarning("g on t", 0.0)
    worry.look(0.0, 0, 0.0, 5, 1)
    assert worry.look(STALL_SECONDS, 1, STALL_SECONDS, 4, 1) == 2 * STALL_SECONDS
    assert told(caplog) == []


def test_nothing_to_do_is_no_worry(caplog: pytest.LogCaptureFixture) -> None:
    worry = StallWarning("g on t", 0.0)
    assert worry.look(5 * STALL_SECONDS, 0, 5 * STALL_SECONDS, 0, 0) == inf
    assert told(caplog) == []


def test_a_new_member_has_time_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    worry = StallWarning("g on t", 0.0)
    worry.look(0.0, 0, 0.0, 5, 0)
    worry.reset(STALL_SECONDS - 1)
    assert worry.look(STALL_SECONDS, 0, STALL_SECONDS, 5, 1) == 2 * STALL_SECONDS - 1
    assert told(caplog) == []
    assert "g on t" in repr(worry)
