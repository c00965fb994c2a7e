"""A group says which records it gives up: the first at once, later ones with a count."""

import logging

import pytest

from runnel.runtime.dead_letter_log import INTERVAL, DeadLetterLog
from runnel.testing import JumpingClock


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    return found


async def test_the_first_is_logged_at_once_and_later_ones_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    clock = JumpingClock()
    log = DeadLetterLog(clock, "g")
    log.note("jobs", 0, "not a Job", "dead-letters.g")
    assert lines(caplog) == [
        "group 'g': the record of 'jobs' at offset 0 is a dead letter now in 'dead-letters.g': 'not a Job'; "
        "see `runnel letters list dead-letters.g`"
    ]
    for offset in range(1, 20):
        log.note("jobs", offset, "not a Job", "dead-letters.g")
    assert lines(caplog) == []
    await clock.advance(INTERVAL)
    (line,) = lines(caplog)
    assert "19 records, the last of 'jobs' at offset 19 are dead letters now" in line
    await clock.advance(INTERVAL)
    log.note("jobs", 20, "not a Job", "dead-letters.g")
    assert "at offset 20 is a dead letter now" in lines(caplog)[0]


async def test_the_end_of_a_group_leaves_nothing_unsaid(caplog: pytest.LogCaptureFixture) -> None:
    log = DeadLetterLog(JumpingClock(), "g")
    log.note("jobs", 0, "no\x1b[2J", None)
    assert "see `runnel letters list`" in lines(caplog)[0]
    log.note("jobs", 1, "no", None, count=3)
    log.close()
    log.close()
    (line,) = lines(caplog)
    assert "3 records" in line
