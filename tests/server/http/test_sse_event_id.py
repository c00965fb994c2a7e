"""Event ids: short, opaque, and never taken for another's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import InvalidOption
from runnel.server.http.sse import (
    BROKER_TAG_BYTES,
    MAX_ID,
    CoveredTopics,
    TopicSetDigest,
    broker_tag,
    digest_of,
    format_digest,
    format_id,
    parse_id,
)

NUMBERS = st.integers(0, 2**63 - 1)
MARKS = st.binary(min_size=BROKER_TAG_BYTES, max_size=BROKER_TAG_BYTES)


@given(MARKS, NUMBERS, NUMBERS, NUMBERS, st.none() | st.builds(TopicSetDigest, NUMBERS, st.integers(0, 2**32 - 1)))
def test_what_is_written_is_read(
    mark: bytes, sequence: int, epoch: int, offset: int, known: TopicSetDigest | None
) -> None:
    text = (format_id(mark, sequence, epoch, offset) + (b"" if known is None else format_digest(known))).decode()
    assert parse_id(text) == (mark, sequence, epoch, offset, known)
    assert len(text) <= MAX_ID
    assert text.isascii()
    assert text.isprintable()


def test_an_id_is_short() -> None:
    usual = format_id(broker_tag("some broker"), 10**9, 3675695615426560, 10**6)
    assert len(usual) <= 30
    assert len(usual + format_digest(TopicSetDigest(3675695615426560, 1))) <= 47


@given(st.text(max_size=120) | st.from_regex(r"[A-Za-z0-9_-]{0,70}(\.[A-Za-z0-9_-]{0,20})?", fullmatch=True))
def test_whatever_comes_is_an_id_or_refused(text: str) -> None:
    try:
        place = parse_id(text)
    except InvalidOption:
        return
    assert (
        parse_id((format_id(*place[:4]) + (b"" if place.known is None else format_digest(place.known))).decode())
        == place
    )


@pytest.mark.parametrize(
    "text", ["", "x", "a\r\nb" * 5, "a\0" * 10, "é" * 20, "A" * 200, "A" * 12 + ".", "AAAAAAA_____"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="Last-Event-ID"):
        parse_id(text)


@given(st.sets(st.integers(1, 2**52), min_size=1, max_size=20), st.data())
def test_topics_that_are_gone_show_and_those_made_later_do_not(epochs: set[int], data: st.DataObject) -> None:
    known = digest_of(epochs)
    later = {max(epochs) + 1 + number for number in range(3)}
    assert digest_of(epochs | later, known.highest) == known
    gone = data.draw(st.sets(st.sampled_from(sorted(epochs)), min_size=1))
    assert digest_of((epochs - gone) | later, known.highest) != known


def test_neighbours_do_not_cancel_each_other_out() -> None:
    epochs = range(3675695615426560, 3675695615426560 + 64)
    for first in range(0, 60, 4):
        assert digest_of(set(epochs) - set(epochs[first : first + 4]), epochs[-1]) != digest_of(epochs)


def test_topics_count_when_they_come_and_go_when_that_is_reported() -> None:
    covered = CoveredTopics()
    covered.join([5, 7])
    both = covered.tail
    assert both == format_digest(digest_of([5, 7]))
    covered.join([7])  # one was deleted, which is not told yet
    assert covered.tail == both
    covered.leave([7])
    assert covered.tail == format_digest(TopicSetDigest(7, digest_of([7]).check))


def test_brokers_have_marks_of_their_own() -> None:
    assert broker_tag("one") != broker_tag("two")
    assert broker_tag("one") == broker_tag("one")
    assert len(broker_tag("one")) == BROKER_TAG_BYTES
