"""Events as bytes: cut where ids differ, and the same whichever way they are put together."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.batch import Slice, SliceRun
from runnel.core.record import Meta
from runnel.server.http import sse
from runnel.server.http.sse import parse_id
from tests.carried import columns_of
from tests.chaos.browser import Unchunked
from tests.server.http.browser import Browser

MARK = b"brkr."
NOW = datetime(2026, 11, 15, tzinfo=UTC)


def sliced(values: list[bytes], keys: dict[int, bytes] | None = None) -> Slice:
    metas = [Meta((keys or {}).get(offset)) for offset in range(3, 3 + len(values))]
    return Slice("t", 9, 3, tuple(values), [SliceRun(3, 40, NOW)], columns_of(metas))


def heard(data: bytes) -> Browser:
    browser = Browser("", "")
    *blocks, rest = data.split(b"\n\n")
    assert rest == b""
    for block in blocks:
        browser._dispatch(block)
    return browser


def written(slices: list[Slice], form: sse.EventFormat) -> bytes:
    """All chunks, of which each is whole by itself."""
    found = list(sse.chunks(slices, form))
    if form.framed:
        body = Unchunked()
        return b"".join(body.feed(one) for one in found)
    return b"".join(found)


@given(
    st.lists(st.binary(max_size=50), min_size=1, max_size=20),
    st.sampled_from([b"", b".AAAAAAAAAAAAAAAA"]),
    st.booleans(),
)
def test_every_record_is_an_event_whatever_bytes_it_holds(values: list[bytes], tail: bytes, framed: bool) -> None:
    browser = heard(written([sliced(values)], sse.EventFormat(MARK, tail, framed=framed)))
    assert [record["offset"] for record in browser.records] == list(range(3, 3 + len(values)))
    place = parse_id(browser.last_id)
    assert (place.tag, place.sequence, place.epoch, place.offset) == (MARK, 40 + len(values), 9, 3 + len(values))
    assert (place.known is not None) == bool(tail)


def test_a_slice_is_written_once_for_all_who_want_it_in_the_same_form() -> None:
    part = sliced([b"a", b"b"])
    forms = [
        sse.EventFormat(MARK),
        sse.EventFormat(MARK, framed=True),
        sse.EventFormat(MARK, b".tail"),
        sse.EventFormat(MARK, b".other"),
    ]
    first = [sse.chunks([part], form) for form in forms]
    assert len(set(map(tuple, first))) == 4
    for form, before in zip(forms, first, strict=True):
        (again,), (one,) = sse.chunks([part], sse.EventFormat(*form)), before
        assert again is one
    assert part.cut(3, 4).written is None  # a part of it is another slice


def test_keys_choose_and_nothing_is_sent_where_they_choose_nothing() -> None:
    part = sliced([b"0", b"1", b"2"], {3: b"a", 5: b"b"})
    for wanted, offsets in (({b"a"}, [3]), ({b"a", b"b"}, [3, 5]), ({b"c"}, [])):
        form = sse.EventFormat(MARK, keys=frozenset(wanted), framed=True)
        assert [record["offset"] for record in heard(written([part], form)).records] == offsets
    assert list(sse.chunks([part], sse.EventFormat(MARK, keys=frozenset({b"c"})))) == []
    assert [record["offset"] for record in heard(written([part], sse.EventFormat(MARK))).records] == [3, 4, 5]


def test_of_many_forms_only_so_much_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "CACHED_FORMAT_BYTES", 1000)
    part = sliced([b"x" * 100])
    made = [sse.chunks([part], sse.EventFormat(MARK, b".%016d" % number)) for number in range(10)]
    again = [sse.chunks([part], sse.EventFormat(MARK, b".%016d" % number)) for number in range(10)]
    assert again == made
    kept = [one is two for one, two in zip(made, again, strict=True)]
    assert 0 < sum(kept) < 10


@pytest.mark.parametrize("tail", [b"", b".tail"])
@pytest.mark.parametrize("keys", [frozenset[bytes](), frozenset({b"k"})])
def test_much_is_sent_in_chunks_that_add_up(tail: bytes, keys: frozenset[bytes]) -> None:
    values = [bytes([65 + number % 26]) * 5000 for number in range(300)]
    part = sliced(values, {3 + number: b"k" for number in range(0, 300, 2)})
    chunks = list(sse.chunks([part], sse.EventFormat(MARK, tail, keys)))
    assert part.written is None  # so much is not kept
    assert len(chunks) > (2 if keys else 5)
    assert max(map(len, chunks)) < sse.CHUNK + 20_000
    wanted = [record for record in part.records if not keys or record.key in keys]
    assert b"".join(chunks) == tail.join(sse.parts(wanted, MARK))


def test_less_is_in_chunks_too_where_it_is_too_much_for_one() -> None:
    part = sliced([b"x" * 5000] * 100)
    chunks = sse.chunks([part], sse.EventFormat(MARK, b".tail"))
    assert isinstance(chunks, tuple)
    assert len(chunks) == 2
    assert b"".join(chunks) == b".tail".join(sse.parts(part.records, MARK))


def test_slices_that_were_taken_together_are_sent_together() -> None:
    small = [sliced([b"%d" % number]) for number in range(5)]
    for framed in (False, True):
        form = sse.EventFormat(MARK, framed=framed)
        assert len(list(sse.chunks(small, form))) == 1
        assert [one["value"] for one in heard(written(small, form)).records] == ["0", "1", "2", "3", "4"]
    large = sliced([b"x" * 5000] * 300)
    mixed = list(sse.chunks([small[0], large, small[1]], sse.EventFormat(MARK)))
    assert len(mixed) > 5
    assert len(heard(b"".join(mixed)).records) == 302


def test_what_is_no_record_has_a_name() -> None:
    assert sse.event("gap", {"count": 1}) == b'event: gap\ndata: {"count":1}\n\n'
    assert sse.event("ready", {}, b"id") == b"event: ready\nid: id\ndata: {}\n\n"
    assert (sse.id_only(b"x"), sse.retry(12)) == (b"id: x\n\n", b"retry: 12\n\n")
    assert sse.HEARTBEAT.startswith(b":")
