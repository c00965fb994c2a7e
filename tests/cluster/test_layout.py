"""Units: records come out of the messages of a unit as they went in, whichever buckets and sizes they were cut into."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.cluster.layout import (
    NO_LINK,
    PER_MESSAGE,
    StoredMessage,
    Subjects,
    bucket_of,
    covering,
    first_offset,
    slices_of,
    token,
    unit_parts,
    untoken,
)
from runnel.core.columns import HEADERS, KEYS, Columns

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def stored(
    values: list[bytes], columns: Columns | None, max_payload: int = 1 << 20, first: int = 7
) -> list[StoredMessage]:
    parts = unit_parts(values, columns, max_payload)
    return [
        StoredMessage("t", first + at, 1, at, len(parts), len(values), part.records, NO_LINK, NOW, part.payload)
        for at, part in enumerate(parts)
    ]


keys = st.none() | st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"])


@given(st.lists(st.tuples(st.binary(max_size=50), keys), min_size=1, max_size=60), st.sampled_from([200, 400, 1 << 20]))
def test_records_come_back_in_order_with_keys_and_rising_offsets(
    records: list[tuple[bytes, bytes | None]], size: int
) -> None:
    columns = Columns({KEYS: [key for _, key in records]}) if any(key for _, key in records) else None
    unit = stored([value for value, _ in records], columns, size)
    slices, _ = slices_of(unit)
    found = [record for part in slices for record in part.records]
    assert [(record.value, record.key) for record in found] == records
    assert [record.offset for record in found] == [first_offset(7) + at for at in range(len(records))]
    assert first_offset(7) + len(records) <= first_offset(7 + len(unit)), "the next unit begins behind"


@given(st.lists(keys, min_size=1, max_size=60))
def test_each_message_holds_the_records_of_one_bucket(chosen: list[bytes | None]) -> None:
    columns = Columns({KEYS: list(chosen)})
    for part, message in zip(
        unit_parts([b"x"] * len(chosen), columns, 1 << 20), stored([b"x"] * len(chosen), columns), strict=True
    ):
        (records,) = [[one for piece in slices_of([message])[0] for one in piece.records]]
        assert {bucket_of(record.key) for record in records} == {part.bucket}


def test_more_records_than_a_message_has_room_for_become_several_with_offsets_side_by_side() -> None:
    unit = stored([b"%d" % at for at in range(3 * PER_MESSAGE + 1)], None)
    assert len(unit) >= 4
    slices, _ = slices_of(unit)
    assert [(part.start, len(part)) for part in slices] == [(first_offset(7), 3 * PER_MESSAGE + 1)]


def test_a_message_that_is_gone_leaves_a_hole_and_the_others_keep_their_offsets() -> None:
    columns = Columns({KEYS: [b"a", b"b", b"a", b"c"], HEADERS: [None, {"h": "1"}]})
    unit = stored([b"0", b"1", b"2", b"3"], columns)
    slices, _ = slices_of([one for one in unit if one.number])
    found = {record.offset - first_offset(7): record for part in slices for record in part.records}
    assert {at: record.value for at, record in found.items()} == {1: b"1", 3: b"3"}
    assert found[1].headers == {"h": "1"}


@given(st.text(max_size=30))
def test_any_name_is_a_token_of_a_subject_and_comes_back(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    assert untoken(token(name)) == name
    assert not set(token(name)) & set(" .*>\r\n\t")


def test_a_topic_is_found_in_its_subject_whatever_the_stream_is_called() -> None:
    for stream in ("RUNNEL", "T1"):
        subjects = Subjects(stream)
        assert subjects.topic_of(subjects.records(3, "a.b")) == "a.b"
        assert subjects.catalog_topic(subjects.catalog("a.b")) == "a.b"
        assert subjects.named(subjects.marker("a b.*")) == "a b.*"


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["a"], ["a"]),
        (["a", "b.*"], ["a", "b.*"]),
        (["a.b", "a.*"], ["a.*"]),
        (["a.*", "*.b"], [">"]),
        ([">", "a"], [">"]),
        (["a.>", "a.b.c"], ["a.>"]),
    ],
)
def test_patterns_that_overlap_are_read_as_one_which_jetstream_accepts(patterns: list[str], found: list[str]) -> None:
    assert covering(patterns) == found
