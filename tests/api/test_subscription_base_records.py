"""What every subscription to records does alike: gaps told with the next item, values decoded."""

from datetime import UTC, datetime

import pytest

from runnel.api.subscription_base import WARN_SHARE, RecordSubscriptionBase
from runnel.core.errors import RecordsMissed, RunnelError
from runnel.core.record import NO_HEADERS, TOO_SLOW, Gap, MissedRange, Record
from runnel.core.schema import Codec


class Plain(RecordSubscriptionBase[int]):
    """A subscription that a test fills by hand."""

    def __init__(self, pattern: str = "t", *, strict: bool = False) -> None:
        super().__init__(Codec(int))
        self._pattern, self.strict = pattern, strict
        self.told: list[Gap] = []

    @property
    def label(self) -> str:
        return "me"

    @property
    def pattern(self) -> str:
        return self._pattern

    @property
    def is_pattern(self) -> bool:
        return "*" in self._pattern

    @property
    def _is_strict(self) -> bool:
        return self.strict

    def _say(self, gap: Gap) -> None:
        self.told.append(gap)

    def end(self, error: RunnelError | None = None) -> None:
        self._ended, self._error = True, error


def records(*values: bytes) -> list[Record[bytes]]:
    now = datetime.now(UTC)
    return [Record("t", at, 100 + at, 1, None, value, NO_HEADERS, now) for at, value in enumerate(values)]


def json(_: str) -> str:
    return "json"


def test_what_cannot_be_decoded_is_a_gap_before_what_follows() -> None:
    reading = Plain()
    batch = reading._decoded(Codec(int), records(b"1", b"x", b"y", b"4"), json)
    first, second = batch
    assert (batch.values, batch.gap, first.gap) == ((1, 4), None, None)
    assert second.gap is not None
    assert (second.gap.first, second.gap.end, second.gap.count) == (1, 3, 2)
    assert "not a int" in second.gap.reason
    assert (reading.dropped_count, len(reading.told)) == (2, 1)


def test_before_the_first_it_goes_with_the_batch_and_behind_the_last_with_the_next() -> None:
    reading = Plain()
    batch = reading._decoded(Codec(int), records(b"x", b"1", b"y"), json)
    assert batch.gap is not None
    assert (batch.values, batch.gap.first, batch.gap.end) == ((1,), 0, 1)
    assert [record.gap for record in reading._told(batch)] == [batch.gap]
    later = reading._decoded(Codec(int), records(b"7"), json)
    assert later.gap is not None
    assert (later.gap.first, later.gap.end) == (2, 3)


def test_of_a_pattern_a_gap_is_told_in_sequences() -> None:
    reading = Plain("t.*")
    gap = reading._decoded(Codec(int), records(b"x", b"1"), json).gap
    assert gap is not None
    assert (gap.topic, gap.first, gap.end) == ("t.*", 100, 101)


def test_how_values_are_written_is_asked_for_each_topic() -> None:
    asked = []

    def encoding_of(topic: str) -> None:
        asked.append(topic)

    Plain()._decoded(Codec(int), records(b"1", b"2"), encoding_of)
    assert asked == ["t", "t"]


def test_gaps_one_after_the_other_are_told_as_one_once() -> None:
    reading = Plain()
    reading._miss(MissedRange(0, 2, 2, "slow"), 0)
    reading._miss(MissedRange(2, 3, 1, "gone"), 0)
    reading._miss(None, 5)
    assert reading._gap() == Gap("t", 0, 3, 3, "slow; gone")
    assert reading._gap() is None
    assert [gap.count for gap in reading.told] == [2, 1]


def test_where_a_gap_is_an_error_it_ends_with_it() -> None:
    reading = Plain(strict=True)
    with pytest.raises(RecordsMissed):
        reading._miss(MissedRange(0, 2, 2, "slow"), 0)
    assert isinstance(reading._error, RecordsMissed)


def test_above_one_percent_it_warns_once_and_says_what_helps(caplog: pytest.LogCaptureFixture) -> None:
    assert WARN_SHARE == 0.01
    reading = Plain()
    reading.delivered = 99
    reading._miss(MissedRange(0, 1, 1, TOO_SLOW), 0)
    assert caplog.messages == []
    reading._miss(MissedRange(1, 2, 1, TOO_SLOW), 0)
    reading._miss(MissedRange(2, 9, 7, TOO_SLOW), 0)
    (warning,) = caplog.messages
    assert "'me' has missed 2 records" in warning
    assert "A larger buffer" in warning
