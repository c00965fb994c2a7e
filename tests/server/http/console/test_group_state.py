"""How a group does, in a word and a reason."""

from typing import Any

import pytest

from runnel.core.statistics import GroupStatistics, MemberStatistics
from runnel.server.http.console.group_state import judge

NOW = 10_000.0


def group(lag: int = 0, *acks: float | None, **more: Any) -> GroupStatistics:
    """A group with so many records to do, and members that acked so many seconds ago."""
    members = tuple(
        MemberStatistics(f"m{at}", 0, 1, 0, 0, None if one is None else NOW - one) for at, one in enumerate(acks)
    )
    facts: dict[str, Any] = {"in_flight": 0, "scheduled": 0, "oldest_unacked_age": 0.0, "acked": 0, "redelivered": 0}
    facts |= {"dead_lettered": 0, "expired": 0, "missed": 0, "paused": False} | more
    return GroupStatistics(name="g", pattern="t", lag=lag, members=members, **facts)


@pytest.mark.parametrize(
    ("figures", "rate", "lags", "still", "state", "words"),
    [
        (group(), 0.0, (), 99.0, "idle", "everything is acked"),
        (group(5, paused=True), 0.0, (), 99.0, "paused", "5 records wait"),
        (group(1), 0.0, (), 0.0, "stuck", "1 record waits, and no member is connected"),
        (group(3, 99.0, scheduled=3), 0.0, (), 99.0, "idle", "wait for their time"),
        (group(3, 60.0, oldest_unacked_age=90.0, in_flight=2), 0.0, (), 0.0, "stuck", "no ack for 60 s"),
        (group(3, None, oldest_unacked_age=90.0), 0.0, (), 40.0, "stuck", "no ack for 40 s: 3 records wait, nothing"),
        (group(3, None, oldest_unacked_age=9e9), None, (), 5.0, "working", "in flight"),
        (group(3, 3600.0, oldest_unacked_age=2.0), 0.0, (), 3600.0, "working", "in flight"),
        (group(90, 0.1), 50.0, (1, 2, 3, 4, 5, 90), 0.0, "behind", "rose from 1 to 90"),
        (group(90, 0.1), 50.0, (9, 2, 3, 4, 5, 90), 0.0, "working", "50 acks/s"),
        (group(90, 0.1), 50.0, (3, 4, 5, 90), 0.0, "working", "50 acks/s"),
        (group(60_000, 0.1), 50.0, (), 0.0, "behind", "20 min at 50 acks/s"),
        (group(105_000, 0.1), 3.0, (), 0.0, "behind", "105,000 records wait: 9.7 h at 3.0 acks/s"),
    ],
)
def test_a_group_is_judged(
    figures: GroupStatistics, rate: float | None, lags: tuple[int, ...], still: float, state: str, words: str
) -> None:
    found = judge(figures, rate, lags, still, NOW)
    assert (found.state, words in found.reason) == (state, True), found
