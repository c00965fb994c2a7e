"""Due times of schedules, compared with every minute that passes."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import runnel
from runnel.core.timing import Cron, Interval

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = [
    ZoneInfo(name) for name in ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")
]


def at(text: str, zone: ZoneInfo = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


def times(cron: Cron, begin: str, count: int) -> list[str]:
    """The next due times as the clock of its zone shows them, with its distance from UTC."""
    found, time = [], at(begin)
    for _ in range(count):
        due = cron.next(time)
        assert due is not None
        found.append(datetime.fromtimestamp(due, UTC).astimezone(cron.zone).strftime("%a %d.%m. %H:%M %z"))
        time = due
    return found


def test_a_working_day_begins_at_nine() -> None:
    cron = Cron("0 9 * * mon-fri", BERLIN)
    assert times(cron, "2026-03-27 08:00", 3) == [
        "Fri 27.03. 09:00 +0100",
        "Mon 30.03. 09:00 +0200",
        "Tue 31.03. 09:00 +0200",
    ]


def test_lists_ranges_steps_and_names() -> None:
    assert times(Cron("5,*/20 22-23 1 jan *", BERLIN), "2026-01-01 00:00", 8) == [
        f"Thu 01.01. {hour}:{minute} +0100" for hour in (22, 23) for minute in ("00", "05", "20", "40")
    ]
    assert times(Cron("0 0 * * 7", BERLIN), "2026-01-01 00:00", 1) == ["Sun 04.01. 00:00 +0100"]
    assert times(Cron("@monthly", BERLIN), "2026-01-01 00:00", 1) == ["Sun 01.02. 00:00 +0100"]
    assert times(Cron("10/25 0 * * *", BERLIN), "2026-01-01 00:00", 2) == [
        "Thu 01.01. 00:10 +0100",
        "Thu 01.01. 00:35 +0100",
    ]


def test_a_day_of_the_month_or_of_the_week_is_enough_where_both_are_named() -> None:
    assert times(Cron("0 0 13 * fri", BERLIN), "2026-01-01 00:00", 3) == [
        "Fri 02.01. 00:00 +0100",
        "Fri 09.01. 00:00 +0100",
        "Tue 13.01. 00:00 +0100",
    ]


def test_the_29th_of_february_is_found() -> None:
    assert times(Cron("0 0 29 2 *", BERLIN), "2096-03-01 00:00", 1) == ["Fri 29.02. 00:00 +0100"]  # not in 2100


def test_a_time_that_clocks_skip_is_due_when_they_go_on() -> None:
    assert times(Cron("30 2 * * *", BERLIN), "2026-03-28 12:00", 2) == [
        "Sun 29.03. 03:00 +0200",
        "Mon 30.03. 02:30 +0200",
    ]
    assert times(Cron("*/30 * * * *", BERLIN), "2026-03-29 01:20", 3) == [
        "Sun 29.03. 01:30 +0100",
        "Sun 29.03. 03:00 +0200",
        "Sun 29.03. 03:30 +0200",
    ]


def test_a_time_that_comes_twice_is_due_once_unless_every_hour_is() -> None:
    assert times(Cron("30 2 * * *", BERLIN), "2026-10-25 00:00", 2) == [
        "Sun 25.10. 02:30 +0200",
        "Mon 26.10. 02:30 +0100",
    ]
    assert times(Cron("30 * * * *", BERLIN), "2026-10-25 02:00", 3) == [
        "Sun 25.10. 02:30 +0200",
        "Sun 25.10. 02:30 +0100",
        "Sun 25.10. 03:30 +0100",
    ]


@pytest.mark.parametrize(
    "expression",
    [
        *("", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "5-1 * * * *"),
        *("a * * * *", "1- * * * *", "* * 30 feb *", "-1 * * * *", "@noon", "1,,2 * * * *", "*/x * * * *"),
        *("*/0 * * * *", "² * * * *"),
    ],
)
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(runnel.InvalidOption, match="cron"):
        Cron(expression, UTC)


def _fields(least: int, most: int) -> some.SearchStrategy[str]:
    number = some.integers(least, most)
    span = some.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    part = some.one_of(number.map(str), span, some.integers(1, most).map(lambda step: f"*/{step}"))
    return some.one_of(some.just("*"), some.lists(part, min_size=1, max_size=2).map(",".join))


def is_due(cron: Cron, time: datetime) -> bool:
    """Whether a cron daemon that looks at its clock every minute runs it then, from the sets alone."""
    now, before = time.astimezone(cron.zone), (time - timedelta(minutes=1)).astimezone(cron.zone)

    def shown(clock: datetime) -> bool:
        return cron._matches(clock.date()) and clock.hour in cron._hours and clock.minute in cron._minutes

    if shown(now) and (cron._every_hour or not now.fold):
        return True
    skipped = before.replace(tzinfo=None) + timedelta(minutes=1)
    while not cron._every_hour and skipped < now.replace(tzinfo=None):  # clocks went forward
        if shown(skipped):
            return True
        skipped += timedelta(minutes=1)
    return False


@settings(max_examples=25, deadline=None)
@given(
    some.tuples(_fields(0, 59), _fields(0, 23), some.just("*"), some.just("*"), _fields(0, 6)),
    some.sampled_from(ZONES),
    some.sampled_from(
        ["2026-03-08", "2026-03-29", "2026-10-25", "2026-11-01", "2026-04-05", "2026-10-04", "2026-06-01"]
    ),
)
def test_due_times_are_the_minutes_at_which_a_cron_daemon_would_run_it(
    fields: tuple[str, ...], zone: ZoneInfo, day: str
) -> None:
    cron = Cron(" ".join(fields), zone)
    begin = datetime.fromisoformat(f"{day} 00:00").replace(tzinfo=UTC) - timedelta(hours=6)
    minutes = [begin + timedelta(minutes=minute) for minute in range(1, 30 * 60 + 1)]
    expected = [time.timestamp() for time in minutes if is_due(cron, time)]
    end = minutes[-1].timestamp()
    assert cron.between(begin.timestamp(), end, 10_000) == expected
    assert cron.between(begin.timestamp(), end, 3) == expected[-3:]
    found: list[float] = []
    time = cron.next(begin.timestamp())
    while time is not None and time <= end and len(found) < 50:
        found.append(time)
        time = cron.next(time)
    assert found == expected[:50]


@given(some.floats(0.001, 100_000), some.floats(0, 4e9), some.integers(1, 5))
def test_the_due_times_of_an_interval_follow_one_another(seconds: float, after: float, limit: int) -> None:
    interval = Interval(seconds)
    dues = [after]
    for _ in range(6):
        due = interval.next(dues[-1])
        assert due is not None
        assert due > dues[-1] - 1e-3
        dues.append(due)
    assert interval.between(after, dues[-1], limit) == dues[1:][-limit:]
    assert interval.between(dues[2], dues[2], limit) == []
