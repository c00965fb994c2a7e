"""Records and gaps: what they say, and that nobody can change them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from runnel.core.position import Position
from runnel.core.record import NO_HEADERS, REPLY_TO, Gap, Meta, MissedRange, Record, joined_missed
from runnel.core.trace_context import derived_traceparent

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
AT = datetime(2026, 1, 1, tzinfo=UTC)


def record(**changed: Any) -> Record[bytes]:
    fields: dict[str, Any] = {
        "topic": "t",
        "offset": 5,
        "sequence": 9,
        "epoch": 7,
        "key": None,
        "value": b"v",
        "headers": NO_HEADERS,
        "time": AT,
    }
    return Record(**(fields | changed))


@pytest.mark.parametrize("field", Record.__struct_fields__)
def test_no_field_of_a_record_can_be_changed(field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(record(), field, None)


def test_the_empty_headers_that_all_share_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        NO_HEADERS["a"] = "b"  # type: ignore[index]


def test_a_record_knows_its_position() -> None:
    assert record().position == Position(7, 5)


def test_the_trace_is_the_publishers_or_derived_from_the_place() -> None:
    assert record(headers={"traceparent": TRACE}).traceparent == TRACE
    assert record().traceparent == derived_traceparent(7, 5)
    assert record(offset=6).traceparent != record().traceparent != record(epoch=8).traceparent


def test_a_request_says_where_to_reply() -> None:
    assert record().reply_to is None
    assert record(headers={REPLY_TO: "inbox"}).reply_to == "inbox"


def test_a_gap_reads_as_a_sentence() -> None:
    gap = Gap("orders", 5, 1_505, 1_500, "the subscriber was too slow")
    assert str(gap) == "missed 1,500 records of 'orders' in [5, 1505): the subscriber was too slow"
    assert "an unknown number of" in str(Gap("orders", 5, 9, None, "gone"))
    with pytest.raises(AttributeError):
        gap.count = 0  # type: ignore[misc]


def test_a_meta_without_arguments_is_empty() -> None:
    assert Meta() == Meta(None, NO_HEADERS, None, None, 0)


# -- What was missed, from when it is noticed to when it is told.


def test_two_stretches_are_reported_as_one() -> None:
    one, two = MissedRange(3, 5, 2, "slow"), MissedRange(7, 9, 1, "slow")
    assert joined_missed(None, None) is None
    assert joined_missed(one, None) is one
    assert joined_missed(None, two) is two
    assert joined_missed(one, two) == MissedRange(3, 9, 3, "slow")


def test_each_reason_is_reported_once_however_often_they_alternate() -> None:
    missed = None
    for at in range(100):
        missed = joined_missed(missed, MissedRange(at, at + 1, 1, "slow" if at % 2 else "gone"))
    assert missed == MissedRange(0, 100, 100, "gone; slow")
