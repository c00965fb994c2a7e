"""Events as bytes: cut where ids differ, and the same whichever way they are put together."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.batch import Slice, Stretch
from runnel.core.record import Meta
from runnel.server.http import sse
from runnel.server.http.event_id import read
from tests.server.http.web import Browser

MARK = b"brkr."
NOW = datetime(2026, 11, 15, tzinfo=UTC)


def sliced(values: list[bytes], keys: dict[int, bytes] | None = None) -> Slice:
    metas = {offset: Meta(key) for offset, key in (keys or {}).items()}
    return Slice("t", 9, 3, tuple(values), [Stretch(3, 40, NOW)], metas)


def heard(data: bytes) -> Browser:
    browser = Browser("", "")
    *blocks, rest = data.split(b"\n\n")
    assert rest == b""
    for block in blocks:
        browser._dispatch(block)
    return browser


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20), st.sampled_from([b"", b".AAAAAAAAAAAAAAAA"]))
def test_every_record_is_an_event_whatever_bytes_it_holds(values: list[bytes], tail: bytes) -> None:
    browser = heard(b"".join(sse.joined(sse.parts_of(sliced(values), MARK), tail)))
    assert [record["offset"] for record in browser.records] == list(range(3, 3 + len(values)))
    place = read(browser.last_id)
    assert (place.mark, place.sequence, place.epoch, place.offset) == (MARK, 40 + len(values), 9, 3 + len(values))
    assert (place.known is not None) == bool(tail)


def test_a_slice_is_written_once_for_all() -> None:
    part = sliced([b"a", b"b"])
    assert sse.parts_of(part, MARK) is sse.parts_of(part, MARK)
    assert part.cut(3, 4).written is None  # a part of it is another slice


@pytest.mark.parametrize("tail", [b"", b".tail"])
def test_much_is_sent_in_chunks_that_add_up(tail: bytes) -> None:
    cut = sse.parts_of(sliced([bytes([65 + number % 26]) * 5000 for number in range(300)]), MARK)
    chunks = list(sse.joined(cut, tail))
    assert len(chunks) > 5
    assert max(map(len, chunks)) < sse.CHUNK + 6000
    assert b"".join(chunks) == tail.join(cut)


def test_what_is_no_record_has_a_name() -> None:
    assert sse.event("gap", {"count": 1}) == b'event: gap\ndata: {"count":1}\n\n'
    assert sse.event("ready", {}, b"id") == b"event: ready\nid: id\ndata: {}\n\n"
    assert (sse.here(b"x"), sse.retry(12)) == (b"id: x\n\n", b"retry: 12\n\n")
    assert sse.HEARTBEAT.startswith(b":")
