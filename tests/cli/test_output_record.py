"""A record on one line: nothing in it breaks the line, or the terminal."""

from datetime import UTC, datetime

import pytest

from runnel.cli.output import line_of, readable
from runnel.core.record import Record


@pytest.mark.parametrize(
    ("value", "shown"),
    [(b"", ""), (b"plain", "plain"), (b"a\tb\x1b[1m", "a\\tb\\x1b[1m"), (b"\xff\x00", "hex:ff00")],
)
def test_a_value_never_breaks_its_line_or_the_terminal(value: bytes, shown: str) -> None:
    assert readable(value) == shown


def test_a_line_has_topic_offset_time_key_and_value() -> None:
    at = datetime(2026, 5, 1, 12, tzinfo=UTC)
    record = Record(topic="t", offset=3, sequence=9, epoch=1, key=None, value=b"a\nb", headers={}, time=at)
    assert line_of(record) == "t  3  2026-05-01T12:00:00.000000Z  -  a\\nb"
