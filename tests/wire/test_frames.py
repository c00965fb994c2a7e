"""Frames are cut the same however they arrive; what breaks the protocol is refused, and costs no memory."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runnel.core.errors import LimitExceeded, ProtocolError
from runnel.wire.frames import (
    FLAGS,
    FRAME_HEADER_SIZE,
    FROM_CLIENT,
    FROM_SERVER,
    HEADER,
    KEPT_BUFFER,
    LARGE_BUFFER,
    MAX_CONTROL_FRAME,
    MAX_PING,
    PREFACE,
    SMALL_BUFFER,
    Frame,
    FrameDecoder,
    FrameKind,
    frame,
    frame_header,
)

WITH_TOPIC = {FrameKind.PUBLISH, FrameKind.DELIVER, FrameKind.GRANT}


@st.composite
def any_frame(draw: st.DrawFn) -> Frame:
    kind = draw(st.sampled_from(FrameKind))
    flags = draw(st.integers(0, 255)) & FLAGS.get(kind, 0)
    extra = draw(st.integers(0, 2**16 - 1)) if kind in WITH_TOPIC else 0
    longest = MAX_PING if kind in (FrameKind.PING, FrameKind.PONG) else 200
    return int(kind), flags, extra, draw(st.integers(0, 2**32 - 1)), draw(st.binary(max_size=longest))


def encoded(frames: Iterable[Frame]) -> bytes:
    return b"".join(frame(kind, id, payload, flags, extra) for kind, flags, extra, id, payload in frames)


def decoded(chunks: Iterable[bytes], decoder: FrameDecoder | None = None) -> list[Frame]:
    decoder = decoder or FrameDecoder()
    found: list[Frame] = []
    for chunk in chunks:
        decoder.feed(chunk)
        found += decoder.frames()
    return found


def arrived(chunks: Iterable[bytes], decoder: FrameDecoder | None = None) -> list[Frame]:
    """What a connection gets: the one frame that came, or all that are there. A chunk fits into the buffer."""
    decoder = decoder or FrameDecoder()
    found: list[Frame] = []
    for chunk in chunks:
        decoder.get_buffer(-1)[: len(chunk)] = chunk
        only = decoder.received(len(chunk))
        for kind, flags, extra, id, payload in decoder.frames(views=True) if only is None else [only]:
            found.append((kind, flags, extra, id, bytes(payload)))
    return found


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def read(decoder: FrameDecoder, data: bytes, at_most: int = 2**30) -> list[Frame]:
    """As a transport does it: into the decoder's own buffer, as much as there is room for."""
    found: list[Frame] = []
    rest = memoryview(data)
    while rest:
        room = decoder.get_buffer(-1)
        count = min(len(room), len(rest), at_most)
        room[:count] = rest[:count]
        decoder.buffer_updated(count)
        rest = rest[count:]
        found += decoder.frames()
    return found


# -- golden -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "golden"),
    [
        (frame(FrameKind.PING, 0, b"\x01\x02"), "0a000000 03 00 0000 00000000 0102"),
        (frame(FrameKind.END, 7), "08000000 10 00 0000 07000000"),
        (frame(FrameKind.PUBLISH, 0x01020304, b"t!", 1, 1), "0a000000 05 01 0100 04030201 7421"),
        (frame_header(FrameKind.DELIVER, 9, 300, flags=1, extra=2), "34010000 0e 01 0200 09000000"),
        (PREFACE, "524e4c01"),
    ],
)
def test_a_frame_looks_like_this_for_ever(made: bytes, golden: str) -> None:
    assert made == bytes.fromhex(golden)


def test_kinds_have_these_numbers_for_ever() -> None:
    names = (
        "HELLO WELCOME PING PONG PUBLISH PUBLISHED CALL REPLY ERROR CANCEL SUBSCRIBE SUBSCRIBED CREDIT DELIVER GAP END "
        "UNSUBSCRIBE GRANT SETTLE LAPSED GOODBYE RECALL"
    )
    assert [(kind.name, kind.value) for kind in FrameKind] == [(name, at) for at, name in enumerate(names.split(), 1)]


def test_every_kind_comes_from_somewhere_and_pings_and_goodbyes_from_both() -> None:
    assert set(FrameKind) == FROM_CLIENT | FROM_SERVER
    assert {FrameKind.PING, FrameKind.PONG, FrameKind.GOODBYE} == FROM_CLIENT & FROM_SERVER


# -- whole, however it arrives ----------------------------------------------------------------------------------


@given(st.lists(any_frame(), max_size=5), st.booleans())
def test_a_frame_that_comes_alone_is_the_same_frame(frames: list[Frame], whole: bool) -> None:
    each = [encoded([one]) for one in frames]
    chunks = each if whole else [part for one in each for part in (one[:-1], one[-1:])]

    assert arrived(chunks) == frames


def test_a_frame_that_comes_alone_is_refused_as_any_other() -> None:
    for header in (
        HEADER.pack(8, FrameKind.WELCOME, 0, 0, 1),
        HEADER.pack(8, FrameKind.PUBLISH, 0x80, 0, 1),
        HEADER.pack(8, FrameKind.CALL, 0, 1, 1),
        HEADER.pack(4, FrameKind.CALL, 0, 0, 1),
        HEADER.pack(MAX_PING + 9, FrameKind.PING, 0, 0, 1) + bytes(MAX_PING + 1),
    ):
        with pytest.raises(ProtocolError):
            arrived([header], FrameDecoder(kinds=FROM_CLIENT))


def test_a_preface_comes_before_a_frame_that_comes_alone() -> None:
    ping = frame(FrameKind.PING, 0)
    assert arrived([PREFACE, ping, ping], FrameDecoder(preface=PREFACE)) == 2 * [(FrameKind.PING, 0, 0, 0, b"")]
    with pytest.raises(ProtocolError):
        arrived([ping], FrameDecoder(preface=PREFACE))


@given(st.lists(any_frame(), max_size=8), st.lists(st.integers(0, 2**16), max_size=12))
def test_any_chunking_gives_the_same_frames(frames: list[Frame], places: list[int]) -> None:
    decoder = FrameDecoder()
    assert decoded(cut(encoded(frames), places), decoder) == frames
    assert decoder.pending == 0


def test_every_cut_of_a_stream_gives_the_same_frames() -> None:
    frames: list[Frame] = [(3, 0, 0, 0, b"12345678"), (5, 1, 3, 1, b"abc" + b"x" * 30), (16, 0, 0, 1, b"")]
    data = encoded(frames)
    for place in range(len(data) + 1):
        assert decoded([data[:place], data[place:]]) == frames
    assert decoded(data[at : at + 1] for at in range(len(data))) == frames


@given(st.lists(any_frame(), min_size=1, max_size=4), st.data())
def test_the_start_of_a_frame_is_no_frame_yet(frames: list[Frame], data: st.DataObject) -> None:
    whole, last = encoded(frames), len(encoded(frames[-1:]))
    kept = data.draw(st.integers(1, last))
    decoder = FrameDecoder()
    assert decoded([whole[:-kept]], decoder) == frames[:-1]
    assert decoder.pending == last - kept


@pytest.mark.parametrize("size", [0, SMALL_BUFFER - 13, SMALL_BUFFER, 100_000, LARGE_BUFFER, KEPT_BUFFER, 3 << 20])
@pytest.mark.parametrize("at_most", [1_000, 65_536, 2**30])
def test_frames_of_any_size_come_through_a_transport(size: int, at_most: int) -> None:
    payload = random.Random(size).randbytes(size)
    frames: list[Frame] = [(7, 0, 0, 1, payload), (8, 0, 0, 2, b"small"), (7, 0, 0, 3, payload[::-1])]
    assert read(FrameDecoder(), encoded(frames), at_most) == frames


def test_thousands_of_small_frames_come_in_order() -> None:
    frames: list[Frame] = [(8, 0, 0, id, b"x" * (id % 50)) for id in range(20_000)]
    assert read(FrameDecoder(), encoded(frames)) == frames


def test_what_was_not_taken_is_handed_out_the_next_time() -> None:
    frames: list[Frame] = [(8, 0, 0, id, b"abc") for id in range(5)]
    decoder = FrameDecoder()
    decoder.feed(encoded(frames))
    taken = decoder.frames()
    assert [next(taken), next(taken)] == frames[:2]
    decoder.feed(encoded(frames[:1]))
    assert list(decoder.frames()) == [*frames[2:], frames[0]]


def test_frames_that_wait_for_their_receiver_are_kept_whole() -> None:
    frames: list[Frame] = [(7, 0, 0, id, b"y" * 1_000) for id in range(1_000)]
    decoder = FrameDecoder()
    for one in frames:
        decoder.feed(encoded([one]))
    assert list(decoder.frames()) == frames


def test_a_payload_stays_what_it_was_when_more_arrives() -> None:
    decoder = FrameDecoder()
    (first,) = decoded([frame(FrameKind.REPLY, 1, b"first")], decoder)
    decoded([frame(FrameKind.REPLY, 2, b"other")], decoder)
    assert first[4] == b"first"
    assert type(first[4]) is bytes


def test_a_view_that_a_transport_still_holds_does_no_harm() -> None:
    decoder = FrameDecoder()
    views: list[memoryview] = []
    found: list[Frame] = []
    data = frame(FrameKind.REPLY, 1, b"z" * 50_000)
    while data:
        room = decoder.get_buffer(65_536)
        views.append(room)
        count = min(len(room), len(data))
        room[:count] = data[:count]
        decoder.buffer_updated(count)
        data = data[count:]
        found += decoder.frames()
    assert found == [(8, 0, 0, 1, b"z" * 50_000)]


# -- the preface ------------------------------------------------------------------------------------------------


def test_a_preface_is_passed_wherever_it_is_cut() -> None:
    data = PREFACE + frame(FrameKind.HELLO, 0, b"hi")
    for place in range(len(PREFACE) + 15):
        found = decoded([data[:place], data[place:]], FrameDecoder(preface=PREFACE))
        assert found == [(1, 0, 0, 0, b"hi")], f"cut at {place}"


@pytest.mark.parametrize("came", [b"GET / HTTP/1.1\r\n", b'{"command": "SUB"}\n', b"RNL\x02", b"RNX", b"\x16\x03\x01"])
def test_another_protocol_is_noticed_at_its_first_wrong_byte(came: bytes) -> None:
    with pytest.raises(ProtocolError, match="the first bytes are"):
        decoded((came[at : at + 1] for at in range(len(came))), FrameDecoder(preface=PREFACE))


# -- what is refused --------------------------------------------------------------------------------------------


def refused(data: bytes, decoder: FrameDecoder | None = None) -> str:
    with pytest.raises(ProtocolError) as caught:
        decoded([data], decoder)
    return str(caught.value)


@pytest.mark.parametrize("kind", [0, 23, 99, 255])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    assert f"a frame of kind {kind} came, which is not known" in refused(HEADER.pack(8, kind, 0, 0, 0))


def test_a_kind_that_this_side_does_not_take_is_refused() -> None:
    for allowed in (FROM_CLIENT, FROM_SERVER):
        for kind in FrameKind:
            decoder, data = FrameDecoder(kinds=allowed), frame(kind, 1)
            if kind in allowed:
                assert decoded([data], decoder) == [(kind, 0, 0, 1, b"")]
            else:
                assert f"a {kind.name} frame came, which this side does not take" in refused(data, decoder)


@pytest.mark.parametrize("kind", FrameKind)
def test_every_reserved_flag_is_refused(kind: FrameKind) -> None:
    for bit in range(8):
        data = frame(kind, 1, flags=1 << bit)
        if FLAGS.get(kind, 0) & 1 << bit:
            assert decoded([data]) == [(kind, 1 << bit, 0, 1, b"")]
        else:
            assert f"a {kind.name} frame has flags {1 << bit:#04x}" in refused(data)


@pytest.mark.parametrize("kind", sorted(set(FrameKind) - WITH_TOPIC))
def test_extra_is_refused_where_there_is_no_topic(kind: FrameKind) -> None:
    assert f"a {kind.name} frame has extra=1" in refused(frame(kind, 1, extra=1))


@pytest.mark.parametrize("length", range(8))
def test_a_length_that_does_not_hold_the_header_is_refused(length: int) -> None:
    assert f"a REPLY frame has length {length}" in refused(HEADER.pack(length, FrameKind.REPLY, 0, 0, 1))


@pytest.mark.parametrize("kind", [FrameKind.PING, FrameKind.PONG])
def test_a_ping_is_short(kind: FrameKind) -> None:
    assert decoded([frame(kind, 0, bytes(64))]) == [(kind, 0, 0, 0, bytes(64))]
    assert f"{kind.name} frame is 65 bytes, at most 64" in refused(frame(kind, 0, bytes(65)))


def test_a_frame_over_the_limit_is_refused_at_its_header() -> None:
    decoder = FrameDecoder(100)
    assert decoded([frame(FrameKind.REPLY, 1, bytes(100 - FRAME_HEADER_SIZE))], decoder)
    with pytest.raises(LimitExceeded, match=r"101 exceeds max_frame=100") as caught:
        decoded([frame_header(FrameKind.REPLY, 1, 101 - FRAME_HEADER_SIZE)], decoder)
    assert (caught.value.limit, caught.value.value, caught.value.allowed) == ("max_frame", 101, 100)


def test_frames_before_a_bad_one_are_handed_out_and_the_error_stays() -> None:
    decoder, found = FrameDecoder(), []
    decoder.feed(
        frame(FrameKind.REPLY, 1) + frame(FrameKind.REPLY, 2) + HEADER.pack(8, 99, 0, 0, 0) + frame(FrameKind.REPLY, 3)
    )
    frames = decoder.frames()
    found += [next(frames)[3], next(frames)[3]]
    assert found == [1, 2]
    for _ in range(2):
        with pytest.raises(ProtocolError, match="kind 99"):
            next(decoder.frames())


def test_a_limit_that_is_raised_holds_for_the_very_next_frame() -> None:
    decoder, found = FrameDecoder(50), []
    decoder.feed(frame(FrameKind.HELLO, 0, b"hello") + frame(FrameKind.CALL, 1, bytes(500)))
    for one in decoder.frames():
        found.append(one[0])
        decoder.max_frame = 1_000
    assert found == [FrameKind.HELLO, FrameKind.CALL]
    assert decoder.max_frame == 1_000


# -- memory -----------------------------------------------------------------------------------------------------


def test_what_is_announced_costs_nothing_before_it_arrives() -> None:
    decoder, payload = FrameDecoder(64 << 20), bytes(60 << 20)
    data = frame(FrameKind.CALL, 1, payload)
    sent = 0
    for size in (12, 1_000, 100_000, 1 << 20, 8 << 20):
        assert read(decoder, data[sent : sent + size], 65_536) == []
        sent += size
        assert decoder.held <= max(LARGE_BUFFER, 4 * sent)
    assert read(decoder, data[sent:]) == [(7, 0, 0, 1, payload)]
    assert decoder.held <= len(data)


def test_a_quiet_connection_holds_little_again() -> None:
    decoder = FrameDecoder()
    assert decoder.held == SMALL_BUFFER
    read(decoder, frame(FrameKind.CALL, 1, bytes(500_000)) * 3)
    assert decoder.held >= LARGE_BUFFER
    for _ in range(20):
        read(decoder, frame(FrameKind.PING, 0))
    assert decoder.held == SMALL_BUFFER


def test_the_room_of_a_very_large_frame_goes_with_it() -> None:
    decoder = FrameDecoder()
    read(decoder, frame(FrameKind.CALL, 1, bytes(5 << 20)))
    read(decoder, frame(FrameKind.CALL, 2, bytes(50_000)))
    assert decoder.held == LARGE_BUFFER


def test_a_busy_connection_reads_much_at_once() -> None:
    decoder = FrameDecoder()
    read(decoder, frame(FrameKind.REPLY, 1, bytes(100)) * 5_000)
    assert len(decoder.get_buffer()) == LARGE_BUFFER


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=400), max_size=20), st.integers(12, 300))
@example([b"\xff" * 12], 100)
@example([HEADER.pack(300, 7, 0, 0, 0), bytes(290)], 300)
def test_garbage_gives_frames_or_an_error_and_no_memory(chunks: list[bytes], max_frame: int) -> None:
    decoder = FrameDecoder(max_frame)
    came = 0
    try:
        for chunk in chunks:
            came += len(chunk)
            for kind, flags, extra, _, payload in read(decoder, chunk):
                assert kind in set(FrameKind)
                assert not flags & ~FLAGS.get(FrameKind(kind), 0)
                assert not extra or kind in WITH_TOPIC
                assert len(payload) + FRAME_HEADER_SIZE <= max_frame
            assert decoder.pending < max_frame
    except (ProtocolError, LimitExceeded):
        pass
    assert decoder.held <= max(max_frame, SMALL_BUFFER)


def test_garbage_by_the_megabyte_never_holds_more_than_the_largest_frame() -> None:
    rng, most = random.Random(6), 0
    for _ in range(100):
        decoder = FrameDecoder(1 << 20)
        try:
            for _ in range(20):
                size, kind = rng.choice([8, 60, 5_000, 900_000]), rng.choice([*FrameKind, 7, 7])
                data = HEADER.pack(size, kind, 0, 0, 1) + rng.randbytes(rng.choice([size - 8, 10]))
                read(decoder, data, rng.choice([1_000, 65_536]))
                most = max(most, decoder.held)
        except (ProtocolError, LimitExceeded):
            pass
    assert most <= (1 << 20) + LARGE_BUFFER


def test_a_decoder_shows_what_it_holds() -> None:
    decoder = FrameDecoder()
    decoder.feed(b"\x08\x00")
    assert repr(decoder) == "<FrameDecoder 2 bytes of 4,096>"


@pytest.mark.parametrize("kind", [FrameKind.SETTLE, FrameKind.SUBSCRIBE, FrameKind.GOODBYE, FrameKind.HELLO])
def test_a_frame_without_records_is_small(kind: FrameKind) -> None:
    """Its payload is read at once, into many times as much."""
    FrameDecoder().feed(frame_header(kind, 0, MAX_CONTROL_FRAME - FRAME_HEADER_SIZE))
    with pytest.raises(LimitExceeded) as caught:
        decoded([frame_header(kind, 0, MAX_CONTROL_FRAME - FRAME_HEADER_SIZE + 1)])
    assert (caught.value.limit, caught.value.value, caught.value.allowed) == (
        "max_frame",
        MAX_CONTROL_FRAME + 1,
        MAX_CONTROL_FRAME,
    )
    assert decoded([frame_header(FrameKind.PUBLISH, 1, MAX_CONTROL_FRAME)]) == []
