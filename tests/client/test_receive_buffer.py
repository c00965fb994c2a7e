"""The receive buffer: in order, once, and with its gaps; and what credit it holds."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.client.receive_buffer import ReceiveBuffer, ReceivedBatch, ReceivedRecords, record_count, unpack_frame
from runnel.core.batch_format import JSON, pack
from runnel.core.clock import micros
from runnel.core.errors import BadBatch
from runnel.core.record import Gap, Meta, MissedRange
from runnel.wire.binary_messages import DeliverPayload, deliver_head
from runnel.wire.frames import FRAME_HEADER_SIZE
from tests.carried import columns_of


def payload(first: int, count: int, **about: int) -> bytes:
    batch = pack([b"%d" % number for number in range(first, first + count)], **about)  # type: ignore[arg-type]
    return (deliver_head(1, b"t", 7, first, first + 1000, 0, len(batch)) + batch)[FRAME_HEADER_SIZE:]


def inbox(*, is_pattern: bool = False, place: int = 0) -> ReceiveBuffer:
    made = ReceiveBuffer(1000, verify=True)
    made.begin(place, is_pattern=is_pattern)
    return made


def offsets(taken: ReceivedRecords | None) -> list[int]:
    assert taken is not None
    return [record.offset for part in taken.slices for record in part.records]


def test_what_comes_is_taken_in_parts_of_any_size() -> None:
    box = inbox()
    box.deliver(1, payload(0, 3))
    box.deliver(1, payload(3, 4))
    assert (box.records, box.next, len(box)) == (7, 7, 2)
    assert [offsets(box.take(2)), offsets(box.take(3)), offsets(box.take(9))] == [[0, 1], [2, 3, 4], [5, 6]]
    assert (box.take(1), box.records) == (None, 0)


@pytest.mark.parametrize(("is_pattern", "end"), [(False, 3), (True, 1003)])
def test_a_take_says_where_it_ends(is_pattern: bool, end: int) -> None:
    box = inbox(is_pattern=is_pattern)
    box.deliver(1, payload(0, 3))
    taken = box.take(10)
    assert taken is not None
    assert taken.end == box.next == end


def test_credit_comes_back_with_the_last_record_of_its_frame() -> None:
    box = inbox()
    data = payload(0, 3)
    box.deliver(1, data)
    assert (box.bytes, box.returned) == (FRAME_HEADER_SIZE + len(data), 0)
    box.take(2)
    assert box.returned == 0
    box.take(1)
    assert (box.bytes, box.returned) == (0, FRAME_HEADER_SIZE + len(data))


def test_it_is_full_when_all_credit_is_out() -> None:
    box = inbox()
    while not box.is_full:
        box.deliver(1, payload(box.next, 5))
    assert box.bytes >= 1000
    box.take(5)
    assert not box.is_full


def test_a_gap_comes_with_what_follows_it() -> None:
    box = inbox()
    box.deliver(1, payload(0, 2))
    box.miss(Gap("t", 2, 5, 3, "gone"))
    box.miss(Gap("t", 5, 6, None, "gone"))
    box.deliver(1, payload(6, 1))
    first, second = box.take(10), box.take(10)
    assert first is not None
    assert (offsets(first), first.missed) == ([0, 1], None)
    assert second is not None
    assert (offsets(second), second.missed) == ([6], MissedRange(2, 6, 3, "gone"))


def test_a_gap_with_nothing_behind_it_is_taken_by_itself() -> None:
    box = inbox()
    box.miss(Gap("t", 0, 5, 5, "gone"))
    assert box.take(10) == ReceivedRecords([], MissedRange(0, 5, 5, "gone"), None, 5)
    assert box.next == 5


@pytest.mark.parametrize("before", [0, 2])
def test_a_frame_that_cannot_be_read_is_a_gap(before: int) -> None:
    box = inbox()
    if before:
        box.deliver(1, payload(0, before))
    box.deliver(1, payload(before, 3)[:-1] + b"\x00")
    box.deliver(1, payload(before + 3, 1))
    if before:
        assert offsets(box.take(10)) == [0, 1]
    taken = box.take(10)
    assert taken is not None
    assert offsets(taken) == [before + 3]
    assert taken.missed is not None
    assert (taken.missed.first, taken.missed.end, taken.missed.count) == (before, before + 3, 3)
    assert "checksum" in taken.missed.reason
    assert (box.records, box.bytes) == (0, 0)


def test_a_frame_without_records_is_a_gap_too() -> None:
    box = inbox()
    box.deliver(1, payload(0, 1)[:40])
    taken = box.take(1)
    assert taken is not None
    assert (taken.slices, taken.missed and taken.missed.count) == ([], 1)


def test_values_that_are_written_differently_are_taken_apart() -> None:
    box = inbox()
    box.deliver(1, payload(0, 2, content_type=JSON))
    box.deliver(1, payload(2, 1))
    box.deliver(1, payload(3, 2))
    assert [(offsets(taken), taken.encoding) for taken in (box.take(10), box.take(10)) if taken is not None] == [
        ([0, 1], "json"),
        ([2, 3, 4], None),
    ]


# -- another connection -----------------------------------------------------------------------------------------


def test_after_a_lost_connection_nothing_holds_credit_and_what_is_here_stays() -> None:
    box = inbox()
    box.deliver(1, payload(0, 3))
    box.take(1)
    box.resume()
    assert (box.bytes, box.returned, box.taken, box.records, box.next) == (0, 0, 0, 2, 3)
    assert offsets(box.take(10)) == [1, 2]
    assert box.returned == 0


@pytest.mark.parametrize("is_pattern", [False, True])
def test_a_reader_that_does_not_read_keeps_no_more_with_every_connection(is_pattern: bool) -> None:
    box, shift = inbox(is_pattern=is_pattern), 1000 if is_pattern else 0
    for place in range(0, 400, 100):  # half of it would fit
        box.deliver(1, payload(place, 100))
    box.resume()
    assert (box.records, box.next) == (400, 400 + shift)
    box.miss(Gap("t", 400 + shift, 450 + shift, 50, "gone"))
    for place in (450, 550):
        box.deliver(1, payload(place, 100))
    for _ in range(2):
        box.resume()
        assert (box.records, box.next) == (400, 400 + shift), "they come again, with the gap before them"
    assert offsets(box.take(1000)) == list(range(400))


def test_a_gap_that_is_partly_here_is_reported_for_the_rest() -> None:
    box = inbox()
    box.deliver(1, payload(0, 4))
    box.resume()
    box.miss(Gap("t", 1, 3, 2, "old"))
    box.miss(Gap("t", 2, 7, 5, "new"))
    assert offsets(box.take(10)) == [0, 1, 2, 3]
    taken = box.take(10)
    assert taken is not None
    assert taken.missed == MissedRange(4, 7, 3, "new")


@given(
    lives=st.lists(st.tuples(st.lists(st.integers(1, 6), max_size=5), st.integers(0, 12)), min_size=1, max_size=6),
    is_pattern=st.booleans(),
)
def test_whatever_comes_again_is_taken_once(lives: list[tuple[list[int], int]], is_pattern: bool) -> None:
    box = inbox(is_pattern=is_pattern, place=1000 if is_pattern else 0)
    seen: list[int] = []
    end = 0
    for frames, back in lives:
        at = max(0, end - back)  # a server may begin anywhere before what is here
        for count in frames:
            box.deliver(1, payload(at, count))
            at += count
        end = max(end, at)
        if (taken := box.take(3)) is not None:
            seen += offsets(taken)
        box.resume()
        end = box.next - (1000 if is_pattern else 0)  # some may have been let go
    while (taken := box.take(3)) is not None:
        assert taken.missed is None
        seen += offsets(taken)
    assert seen == list(range(end))
    assert (box.records, box.bytes) == (0, 0)


# -- Received batches: unpacked once, cut where they are known already, refused where they are damaged -------


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
