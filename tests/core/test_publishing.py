"""What may be published, checked before anything leaves the caller."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from runnel.core import publishing as module
from runnel.core.columns import HEADERS, KEYS
from runnel.core.errors import InvalidOption, InvalidValue, NotSupported, TooLarge, ValidationFailed
from runnel.core.position import Position
from runnel.core.publishing import CheckedRecords, Publication, check_expected_offset, checked_record, checked_records
from runnel.core.schema import Codec
from tests.carried import metas_of

NOW = 1_700_000_000.0


def test_a_plain_record_carries_nothing_besides_its_value() -> None:
    assert checked_record("t", None, "é") == (("é".encode(),), None, 2, 0)


def test_what_a_record_carries_is_weighed_beside_its_value() -> None:
    values, columns, size, extra = checked_record(
        "t", None, b"value", "key", {"h": "x"}, 5, timedelta(minutes=1), 3, None, NOW
    )
    (meta,) = metas_of(columns, 1)
    assert meta is not None
    assert (meta.key, meta.headers, meta.due, meta.expires, meta.priority) == (
        b"key",
        {"h": "x"},
        NOW + 5,
        NOW + 60,
        3,
    )
    assert (values, size, extra) == ((b"value",), 5, meta.weight)
    assert extra >= len("key") + len("h") + len("x")


def test_many_share_what_is_the_same_for_all() -> None:
    assert checked_records("t", None, [b"a", "b", bytearray(b"cc")]) == ([b"a", b"b", b"cc"], None, 4, 0)
    _, shared, _, weight = checked_records("t", None, [b"a", b"b"], None, {"h": "x"})
    assert shared is not None
    assert shared[HEADERS][0] is shared[HEADERS][1]
    assert weight == shared.weight == 4
    _, keyed, _, weight = checked_records("t", None, [b"a", b"b", b"c"], ["k", None, "kk"])
    assert keyed == {KEYS: [b"k", None, b"kk"]}
    assert weight == 3


def test_there_is_a_key_or_none_for_each_value() -> None:
    with pytest.raises(InvalidOption, match="there are 2 values"):
        checked_records("t", None, [b"a", b"b"], ["k"])


@pytest.mark.parametrize("values", [b"bytes", "text", bytearray(b"x"), memoryview(b"x"), 7, {b"set"}], ids=type)
def test_what_is_one_value_or_in_no_order_is_not_many(values: Any) -> None:
    with pytest.raises(InvalidValue, match="takes a sequence"):
        checked_records("t", None, values)


def test_nothing_is_not_published() -> None:
    with pytest.raises(InvalidOption, match="at least one"):
        checked_records("t", None, [])


@pytest.fixture
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("MAX_RECORD_BYTES", 20), ("MAX_ENTRY_BYTES", 50), ("MAX_ENTRY_RECORDS", 3)):
        monkeypatch.setattr(module, name, limit)


@pytest.mark.usefixtures("low_limits")
@pytest.mark.parametrize(
    ("call", "limit"),
    [
        (lambda: checked_record("t", None, bytes(21)), "max_record_bytes"),
        (lambda: checked_record("t", None, b"", bytes(21)), "max_record_bytes"),
        (lambda: checked_records("t", None, [b"", bytes(21)]), "max_record_bytes"),
        (lambda: checked_records("t", None, [bytes(17)] * 3), "max_entry_bytes"),
        (lambda: checked_records("t", None, [bytes(16)] * 3, [bytes(3)] * 3), "max_entry_bytes"),
        (lambda: checked_records("t", None, [bytes(16)] * 3, None, {"hh": "x"}), "max_entry_bytes"),
        (lambda: checked_records("t", None, [b""] * 4), "max_entry_records"),
    ],
)
def test_the_limit_that_was_broken_is_named(call: Callable[[], CheckedRecords], limit: str) -> None:
    with pytest.raises(TooLarge) as caught:
        call()
    assert caught.value.limit_name == limit


@pytest.mark.usefixtures("low_limits")
def test_what_just_fits_is_taken() -> None:
    assert checked_record("t", None, bytes(20))[2] == 20
    assert checked_records("t", None, [bytes(20), bytes(20), bytes(10)])[2] == 50


def test_values_of_a_type_are_encoded_and_checked() -> None:
    codec: Codec[int] = Codec(int)
    assert checked_record("t", codec, 5)[0] == (b"5",)
    assert list(checked_records("t", codec, [5, 6])[0]) == [b"5", b"6"]
    with pytest.raises(ValidationFailed):
        checked_records("t", codec, [5, "x"])


def test_no_value_is_a_tombstone_where_there_is_a_key_and_the_topic_has_such() -> None:
    values, columns, size, _ = checked_record("t", None, None, "k", tombstones=True)
    assert (values, size, columns is not None) == ((b"",), 0, True)
    for key, tombstones in ((None, True), ("k", False)):
        with pytest.raises(InvalidValue):
            checked_record("t", None, None, key, tombstones=tombstones)


@pytest.mark.parametrize("priority", [-1, 10, True, 1.0, "1"], ids=repr)
def test_a_priority_is_a_digit(priority: Any) -> None:
    with pytest.raises(InvalidOption, match="from 0"):
        checked_record("t", None, b"", priority=priority)


@pytest.mark.parametrize("seconds", [-1, True, "5", float("nan"), float("inf"), timedelta(seconds=-1)], ids=repr)
@pytest.mark.parametrize("option", ["delay", "expires"])
def test_times_are_seconds(option: str, seconds: Any) -> None:
    with pytest.raises(InvalidOption, match="expected seconds") as caught:
        checked_record("t", None, b"", **{option: seconds})
    assert caught.value.option == option


@pytest.mark.parametrize("message_id", ["", "x" * 257, 7, b"m"], ids=repr)
def test_a_message_id_is_short_text(message_id: Any) -> None:
    with pytest.raises(InvalidOption, match="1 to 256 characters"):
        checked_record("t", None, b"", message_id=message_id)


@pytest.mark.parametrize("offset", [-1, True, 1.0, "1"], ids=repr)
def test_an_expected_offset_is_one(offset: Any) -> None:
    with pytest.raises(InvalidOption, match="expected_offset"):
        check_expected_offset(offset)


@pytest.mark.parametrize("offset", [None, 0, 7])
def test_an_offset_that_can_be_expected_is_taken_as_it_is(offset: int | None) -> None:
    assert check_expected_offset(offset) == offset


# -- One publish in a transaction: its position is known when that is committed, and not before.


def test_a_publication_knows_its_place_once_it_has_one() -> None:
    publication = Publication("t", 3)
    assert "not committed" in repr(publication)
    with pytest.raises(NotSupported, match="'t'"):
        _ = publication.span
    publication.put(Position(1, 5))
    assert (publication.position, publication.span.last.offset) == (Position(1, 5), 7)


async def test_awaiting_it_is_over_at_once_and_says_nothing_about_its_place() -> None:
    publication = Publication("t", 1)
    assert await publication is publication
    with pytest.raises(NotSupported, match="when the block is left"):
        _ = publication.position


def test_a_stage_says_later_what_it_holds() -> None:
    publication = Publication("'w' batch 1 part 0 attempt 0", 0)
    publication.holds("t", 4)
    publication.put(Position(2, 10))
    assert (publication.topic, publication.span.last) == ("t", Position(2, 13))
    assert "4 records to 't'" in repr(publication)
