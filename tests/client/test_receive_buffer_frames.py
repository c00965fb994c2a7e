"""Received batches: unpacked once, cut where they are known already, refused where they are damaged."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.client.receive_buffer import ReceivedBatch, record_count, unpack_frame
from runnel.core.batch_format import JSON, pack
from runnel.core.clock import micros
from runnel.core.errors import BadBatch
from runnel.core.record import Meta
from runnel.wire.binary_messages import DeliverPayload
from tests.carried import columns_of

TIME = datetime(2026, 1, 2, tzinfo=UTC)


def frame(count: int, offset: int = 10, sequence: int = 100, **about: object) -> DeliverPayload:
    batch = pack([b"%d" % number for number in range(count)], **about)  # type: ignore[arg-type]
    return DeliverPayload(7, offset, sequence, micros(TIME), "t", batch)


def test_records_have_their_places_time_and_what_they_carry() -> None:
    found, encoding = unpack_frame(frame(3, carried=columns_of([None, Meta(key=b"k")]), content_type=JSON), verify=True)
    assert encoding == "json"
    records = [(one.epoch, one.offset, one.sequence, one.time, one.key) for one in found.records]
    assert records == [(7, 10, 100, TIME, None), (7, 11, 101, TIME, b"k"), (7, 12, 102, TIME, None)]


def test_records_may_have_times_of_their_own() -> None:
    later = micros(TIME) + 5
    found, _ = unpack_frame(frame(4, times=[None, later, later, None]), verify=True)
    assert [micros(one.time) - micros(TIME) for one in found.records] == [0, 5, 5, 0]
    assert [one.sequence for one in found.records] == [100, 101, 102, 103]


@given(count=st.integers(2, 30), skipped=st.integers(0, 29), taken=st.integers(1, 29))
def test_what_is_known_is_left_out_and_the_rest_comes_in_parts(count: int, skipped: int, taken: int) -> None:
    skipped = min(skipped, count - 1)
    arrival = ReceivedBatch(frame(count), 50, count, skipped)
    assert arrival.count == count - skipped
    assert (arrival.place(is_pattern=False), arrival.place(is_pattern=True)) == (10 + skipped, 100 + skipped)
    whole = arrival.opened(verify=True)
    assert [one.offset for one in whole.records] == list(range(10 + skipped, 10 + count))
    if taken < len(whole):
        first = arrival.first(taken)
        rest = arrival.opened(verify=True)
        assert arrival.count == len(rest)
        assert (*first.records, *rest.records) == whole.records


def test_the_count_is_read_off_the_header() -> None:
    assert record_count(frame(17).batch) == 17
    assert record_count(b"short") == 0


def test_damage_is_found_where_it_is_looked_for() -> None:
    where = frame(3)
    broken = where._replace(batch=where.batch[:-1] + b"\x00")
    with pytest.raises(BadBatch, match="checksum"):
        ReceivedBatch(broken, 1, 3).opened(verify=True)
    assert len(ReceivedBatch(broken, 1, 3).opened(verify=False)) == 3


def test_records_with_holes_between_them_are_no_frame() -> None:
    with pytest.raises(BadBatch, match="side by side"):
        unpack_frame(frame(2, deltas=[0, 5]), verify=True)
