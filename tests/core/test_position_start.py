"""Where to start: what may be said."""

from datetime import UTC, datetime

import pytest

from runnel.core.errors import InvalidOption
from runnel.core.position import Position, Start, check_start


@pytest.mark.parametrize("start", [None, "latest", "earliest", datetime(2026, 1, 1, tzinfo=UTC)], ids=repr)
@pytest.mark.parametrize("pattern", ["t", "t.*"])
def test_these_may_be_said_of_a_topic_and_of_a_pattern(start: Start, pattern: str) -> None:
    check_start(start, pattern, is_pattern="*" in pattern)


@pytest.mark.parametrize("start", ["oldest", True, -1, 1.5, datetime(2026, 1, 1), b"latest"], ids=repr)
def test_what_makes_no_sense_is_refused(start: Start) -> None:
    with pytest.raises(InvalidOption) as caught:
        check_start(start, "t", is_pattern=False)
    assert caught.value.option == "start"


@pytest.mark.parametrize("start", [5, Position(1, 5)])
def test_an_offset_of_a_pattern_is_refused(start: Start) -> None:
    check_start(start, "t", is_pattern=False)
    with pytest.raises(InvalidOption, match="start at a time"):
        check_start(start, "t.*", is_pattern=True)
