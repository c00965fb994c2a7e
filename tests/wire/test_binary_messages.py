"""Payloads of a fixed layout come back as they went, at every edge; the batch is never touched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.core.batch_format import check_batch, pack
from runnel.core.errors import LimitExceeded, ProtocolError
from runnel.wire.binary_messages import (
    DELIVER_COST,
    GRANT_COST,
    DeliverPayload,
    GrantPayload,
    PublishPayload,
    ReaderCounts,
    credit_frame,
    deliver_head,
    grant_head,
    publish_frame,
    published_frame,
    read_credit,
    read_deliver,
    read_grant,
    read_publish,
    read_published,
    read_shares,
    read_unsubscribe,
    shared_deliver_head,
    unsubscribe_frame,
)
from runnel.wire.frames import (
    ASK,
    DROPPED,
    FRAME_HEADER_SIZE,
    HAS_COUNTS,
    HAS_DETAILS,
    HAS_POSITION,
    MAX_CONTROL_FRAME,
    MORE,
    SHARED,
    Frame,
    FrameDecoder,
    FrameKind,
    frame,
)
from runnel.wire.msgpack_messages import PublishDetails

IDS = st.integers(0, 2**32 - 1)
NUMBERS = st.integers(0, 2**64 - 1)
TIMES = st.integers(-(2**63), 2**63 - 1)
TOPICS = st.text(max_size=40)


def only_frame(data: bytes) -> Frame:
    decoder = FrameDecoder()
    decoder.feed(data)
    (found,) = decoder.frames()
    assert decoder.pending == 0
    return found


# -- golden -----------------------------------------------------------------------------------------------------

BATCH = bytes.fromhex("aa bb cc")


@pytest.mark.parametrize(
    ("made", "golden"),
    [
        (b"".join(publish_frame(1, b"t", BATCH)), "0c000000 05 00 0100 01000000 74 aabbcc"),
        (
            b"".join(publish_frame(1, b"t", BATCH, PublishDetails(wait=True))),
            "17000000 05 01 0100 01000000 74 07000000 81a477616974c3 aabbcc",
        ),
        (
            published_frame(1, 2, 3, 4),
            "20000000 06 00 0000 01000000 0200000000000000 0300000000000000 0400000000000000",
        ),
        (credit_frame(7, 256), "14000000 0d 00 0000 07000000 00010000 0000000000000000"),
        (credit_frame(7, 1, 5, ask=True), "14000000 0d 03 0000 07000000 01000000 0500000000000000"),
        (
            credit_frame(7, 1, counts=ReaderCounts(100, 9, 2, 1)),
            "30000000 0d 04 0000 07000000 01000000 0000000000000000"
            " 64000000 0900000000000000 0200000000000000 0100000000000000",
        ),
        (unsubscribe_frame(7), "10000000 11 00 0000 07000000 0000000000000000"),
        (unsubscribe_frame(7, 9), "10000000 11 01 0000 07000000 0900000000000000"),
        (
            deliver_head(7, b"ab", 1, 2, 3, -1, 3) + BATCH,
            "2d000000 0e 00 0200 07000000 0100000000000000 0200000000000000 0300000000000000 ffffffffffffffff "
            "6162 aabbcc",
        ),
        (
            grant_head(7, b"ab", 1, 2, 3, 4, 5, 6, 7, 3, more=True) + BATCH,
            "41000000 12 01 0200 07000000 0100000000000000 0200000000000000 0300000000000000 0400000000000000 "
            "0500000000000000 0600000000000000 07000000 6162 aabbcc",
        ),
    ],
)
def test_a_frame_looks_like_this_for_ever(made: bytes, golden: str) -> None:
    assert made.hex(" ") == bytes.fromhex(golden).hex(" ")
    only_frame(made)


# -- there and back ---------------------------------------------------------------------------------------------


@given(
    IDS,
    TOPICS,
    st.binary(max_size=60),
    st.none() | st.builds(PublishDetails, message_id=st.text(), reads=st.lists(NUMBERS)),
)
def test_a_publish_comes_back_as_it_went(id: int, topic: str, batch: bytes, about: PublishDetails | None) -> None:
    parts = publish_frame(id, topic.encode(), batch, about)
    assert parts[-1] is batch
    kind, flags, extra, came, payload = only_frame(b"".join(parts))
    assert (kind, flags, came) == (FrameKind.PUBLISH, 0 if about is None else HAS_DETAILS, id)
    assert read_publish(flags, extra, payload) == PublishPayload(topic, about, batch)


def test_a_batch_goes_through_a_publish_unharmed() -> None:
    batch = pack([b"one", b"two"], producer=7, producer_sequence=3)
    _, flags, extra, _, payload = only_frame(b"".join(publish_frame(1, b"orders", batch)))
    header = check_batch(read_publish(flags, extra, payload).batch)
    assert (header.count, header.producer, header.producer_sequence) == (2, 7, 3)


@given(IDS, NUMBERS, NUMBERS, NUMBERS)
def test_a_published_comes_back_as_it_went(id: int, epoch: int, first: int, last: int) -> None:
    kind, _, _, came, payload = only_frame(published_frame(id, epoch, first, last))
    assert (kind, came) == (FrameKind.PUBLISHED, id)
    assert read_published(payload) == (epoch, first, last)


@given(
    IDS, IDS, st.none() | NUMBERS, st.booleans(), st.none() | st.builds(ReaderCounts, IDS, NUMBERS, NUMBERS, NUMBERS)
)
def test_a_credit_comes_back_as_it_went(
    id: int, given_back: int, place: int | None, ask: bool, counts: ReaderCounts | None
) -> None:
    kind, flags, _, came, payload = only_frame(credit_frame(id, given_back, place, ask=ask, counts=counts))
    assert (kind, came) == (FrameKind.CREDIT, id)
    assert flags == (0 if place is None else HAS_POSITION) | (ASK if ask else 0) | (0 if counts is None else HAS_COUNTS)
    assert read_credit(flags, payload) == (given_back, place, ask, counts)


@given(IDS, st.none() | NUMBERS)
def test_an_unsubscribe_comes_back_as_it_went(id: int, place: int | None) -> None:
    kind, flags, _, came, payload = only_frame(unsubscribe_frame(id, place))
    assert (kind, came) == (FrameKind.UNSUBSCRIBE, id)
    assert read_unsubscribe(flags, payload) == place


@given(IDS, TOPICS, NUMBERS, NUMBERS, NUMBERS, TIMES, st.binary(max_size=60), st.booleans())
def test_a_deliver_comes_back_as_it_went(
    id: int, topic: str, epoch: int, offset: int, sequence: int, time: int, batch: bytes, dropped: bool
) -> None:
    name = topic.encode()
    data = deliver_head(id, name, epoch, offset, sequence, time, len(batch), dropped=dropped) + batch
    assert len(data) == DELIVER_COST + len(name) + len(batch)
    kind, flags, extra, came, payload = only_frame(data)
    assert (kind, flags, came) == (FrameKind.DELIVER, DROPPED if dropped else 0, id)
    assert read_deliver(extra, payload) == DeliverPayload(epoch, offset, sequence, time, topic, batch)


@given(IDS, TOPICS, st.tuples(NUMBERS, NUMBERS, NUMBERS, TIMES, NUMBERS, NUMBERS, IDS), st.binary(), st.booleans())
def test_a_grant_comes_back_as_it_went(
    id: int, topic: str, where: tuple[int, int, int, int, int, int, int], batch: bytes, more: bool
) -> None:
    name = topic.encode()
    data = grant_head(id, name, *where, len(batch), more=more) + batch
    assert len(data) == GRANT_COST + len(name) + len(batch)
    kind, flags, extra, came, payload = only_frame(data)
    assert (kind, flags, came) == (FrameKind.GRANT, MORE if more else 0, id)
    assert read_grant(extra, payload) == GrantPayload(*where, topic, batch)


# -- what is refused --------------------------------------------------------------------------------------------

WHOLE: list[tuple[bytes, Callable[[int, int, bytes], Any]]] = [  # a frame without a batch, and its reader
    (b"".join(publish_frame(1, b"topic", b"")), read_publish),
    (b"".join(publish_frame(1, b"topic", b"", PublishDetails(message_id="m"))), read_publish),
    (published_frame(1, 2, 3, 4), lambda _, __, payload: read_published(payload)),
    (credit_frame(1, 2, 3), lambda flags, _, payload: read_credit(flags, payload)),
    (unsubscribe_frame(1, 2), lambda flags, _, payload: read_unsubscribe(flags, payload)),
    (deliver_head(1, b"topic", 1, 2, 3, 4, 0), lambda _, extra, payload: read_deliver(extra, payload)),
    (grant_head(1, b"topic", 1, 2, 3, 4, 5, 6, 7, 0), lambda _, extra, payload: read_grant(extra, payload)),
    (credit_frame(1, 2, counts=ReaderCounts(1, 2, 3, 4)), lambda flags, _, payload: read_credit(flags, payload)),
]


@pytest.mark.parametrize("case", range(len(WHOLE)))
def test_a_payload_that_is_cut_short_anywhere_is_refused(case: int) -> None:
    data, reader = WHOLE[case]
    kind, flags, extra, _, payload = only_frame(data)
    reader(flags, extra, payload)
    for kept in range(len(payload)):
        with pytest.raises(ProtocolError, match=FrameKind(kind).name.replace("PUBLISH", "PUBLISH|PublishDetails")):
            reader(flags, extra, payload[:kept])


@pytest.mark.parametrize("case", [2, 3, 4])
def test_a_payload_of_a_fixed_size_is_not_longer_either(case: int) -> None:
    data, reader = WHOLE[case]
    _, flags, extra, _, payload = only_frame(data)
    with pytest.raises(ProtocolError, match=f"{len(payload) + 1} bytes, not {len(payload)}"):
        reader(flags, extra, payload + b"x")


@pytest.mark.parametrize("case", [0, 5, 6])
def test_a_topic_that_is_no_text_is_refused(case: int) -> None:
    data, reader = WHOLE[case]
    _, flags, extra, _, payload = only_frame(data)
    with pytest.raises(ProtocolError, match=r"\.topic: it is not UTF-8"):
        reader(flags, extra, payload.replace(b"topic", b"to\xffic"))


def test_an_about_that_is_none_is_refused_with_its_field() -> None:
    payload = b"t" + (15).to_bytes(4, "little") + b"\x81\xaamessage_id\x01" + b"!!batch"
    with pytest.raises(ProtocolError, match=r"PublishDetails"):
        read_publish(HAS_DETAILS, 1, payload)


def test_an_about_that_is_said_to_be_longer_than_what_came_is_refused() -> None:
    with pytest.raises(ProtocolError, match="PUBLISH frame ends after 6 bytes"):
        read_publish(HAS_DETAILS, 1, b"t" + (2).to_bytes(4, "little") + b"\x80")


@settings(max_examples=300)
@given(st.integers(0, 3), st.integers(0, 2**16 - 1) | st.integers(0, 20), st.binary(max_size=120))
def test_garbage_is_read_or_a_protocol_error(flags: int, extra: int, payload: bytes) -> None:
    for _, reader in WHOLE:
        with contextlib.suppress(ProtocolError):
            reader(flags, extra, payload)


def test_a_frame_made_by_hand_is_the_same() -> None:
    assert b"".join(publish_frame(3, b"t", b"batch")) == frame(FrameKind.PUBLISH, 3, b"tbatch", extra=1)


def test_an_about_is_small() -> None:
    data = b"".join(publish_frame(1, b"t", b"", PublishDetails(message_id="x" * MAX_CONTROL_FRAME)))
    with pytest.raises(LimitExceeded) as refused:
        read_publish(HAS_DETAILS, 1, data[FRAME_HEADER_SIZE:])
    assert refused.value.limit == "max_frame"


@given(st.lists(st.integers(1, 2**32 - 1), min_size=2, max_size=20))
def test_a_deliver_for_several_is_the_same_frame_with_their_ids(ids: list[int]) -> None:
    data = shared_deliver_head(ids, b"topic", 1, 2, 3, 4, len(BATCH)) + BATCH
    kind, flags, extra, id, payload = only_frame(data)
    others, rest = read_shares(payload)
    assert (kind, flags, [id, *others]) == (FrameKind.DELIVER, SHARED, ids)
    assert read_deliver(extra, rest) == DeliverPayload(1, 2, 3, 4, "topic", BATCH)
    alone = deliver_head(ids[0], b"topic", 1, 2, 3, 4, len(BATCH)) + BATCH
    assert len(rest) == len(alone) - FRAME_HEADER_SIZE


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x00\x00", b"\x02\x00\x01\x00\x00\x00"])
def test_a_deliver_for_several_that_ends_within_the_ids_breaks_the_protocol(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_shares(payload)
