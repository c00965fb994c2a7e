"""Lines are the same however they were cut, and nobody fills the memory with one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import LimitExceeded, ProtocolError, RunnelError
from runnel.wire.json_lines import LineDecoder, WebSocketLines

LIMIT = 64


def lines_of(*pieces: bytes, limit: int = LIMIT) -> list[bytes]:
    decoder = LineDecoder(limit)
    found = []
    for piece in pieces:
        decoder.feed(piece)
        while (line := decoder.next_line()) is not None:
            found.append(line)
    return found


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places})
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]


def test_a_line_ends_with_lf_or_crlf() -> None:
    assert lines_of(b'{"a": 1}\n{"b": 2}\r\n') == [b'{"a": 1}', b'{"b": 2}']


def test_empty_lines_mean_nothing() -> None:
    assert lines_of(b"\n\r\n  \n{}\n\n") == [b"{}"]


def test_a_line_is_handed_out_when_its_end_is_there() -> None:
    decoder = LineDecoder(LIMIT)
    decoder.feed(b"{")
    assert decoder.next_line() is None
    decoder.feed(b"}\n")
    assert decoder.next_line() == b"{}"
    assert decoder.next_line() is None
    assert decoder.held == 0


@given(
    st.lists(st.binary(min_size=1, max_size=LIMIT - 1).map(lambda b: b"{" + b.replace(b"\n", b"")), max_size=20),
    st.sampled_from([b"\n", b"\r\n", b"\n\n"]),
    st.lists(st.integers(min_value=0), max_size=30),
)
def test_lines_are_the_same_however_they_were_cut(lines: list[bytes], end: bytes, places: list[int]) -> None:
    data = b"".join(line + end for line in lines)
    assert lines_of(*cut(data, places)) == [line.strip() for line in lines]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_line_as_long_as_the_limit_passes_and_one_byte_more_does_not(end: bytes) -> None:
    fits = b"x" * LIMIT
    for at in range(len(fits + end)):
        assert lines_of((fits + end)[:at], (fits + end)[at:]) == [fits]
    with pytest.raises(LimitExceeded) as caught:
        lines_of(fits + b"x" + end)
    assert (caught.value.limit, caught.value.allowed) == ("max_line", LIMIT)


def test_a_line_that_is_too_long_is_known_before_its_end() -> None:
    decoder = LineDecoder(LIMIT)
    decoder.feed(b"x" * (LIMIT + 2))
    for _ in range(2):  # and stays so
        with pytest.raises(LimitExceeded, match="max_line"):
            decoder.next_line()


def test_lines_before_one_that_is_too_long_are_handed_out() -> None:
    decoder = LineDecoder(LIMIT)
    decoder.feed(b"{}\n" + b"x" * 100 + b"\n")
    assert decoder.next_line() == b"{}"
    with pytest.raises(LimitExceeded):
        decoder.next_line()


def test_no_byte_is_scanned_twice() -> None:
    class Counting(bytearray):
        scanned = 0

        def find(self, what: bytes, start: int = 0) -> int:  # type: ignore[override]
            found = super().find(what, start)
            Counting.scanned += (len(self) if found < 0 else found + 1) - start
            return found

    decoder = LineDecoder(10_000)
    decoder._buffer = Counting()
    data = (b"x" * 3_000 + b"\n") * 3
    for at in range(0, len(data), 7):
        decoder.feed(data[at : at + 7])
        while decoder.next_line() is not None:
            pass
    assert isinstance(decoder._buffer, Counting)
    assert Counting.scanned == len(data)


def test_what_came_is_not_kept_once_it_was_handed_out() -> None:
    decoder = LineDecoder(LIMIT)
    for _ in range(1_000):
        decoder.feed(b"{}\n{")
        assert decoder.next_line() == b"{}"
        assert decoder.next_line() is None
        decoder.feed(b"}\n")
        assert decoder.next_line() == b"{}"
    assert len(decoder._buffer) < 10


def test_the_last_line_needs_no_end() -> None:
    decoder = LineDecoder(LIMIT)
    decoder.feed(b"{}\n{1} ")
    assert decoder.next_line() == b"{}"
    assert decoder.next_line() is None
    assert decoder.last_line() == b"{1}"
    assert decoder.last_line() is None


@pytest.mark.parametrize(
    "stranger",
    [
        b"GET / HTTP/1.1\r\n",
        b"POST /x HTTP/1.1\r\nHost: localhost:7789\r\n",
        b'{"command": "PING"}\nhost: localhost\r\n',
        b"RNL\x01",
        b"\x16\x03\x01\x02\x00\x01",
    ],
    ids=["get", "post", "a header", "native", "tls"],
)
def test_a_client_of_another_protocol_gets_a_final_error(stranger: bytes) -> None:
    decoder = LineDecoder(LIMIT)
    decoder.feed(stranger)
    with pytest.raises(ProtocolError, match="JSON lines"):
        list(iter(decoder.next_line, None))


def test_a_native_client_is_known_by_its_first_bytes_even_one_by_one() -> None:
    decoder = LineDecoder(LIMIT)
    for byte in (b"R", b"N", b"L"):
        decoder.feed(byte)
        assert decoder.next_line() is None
    decoder.feed(b"\x01")
    for _ in range(2):
        with pytest.raises(ProtocolError, match="native"):
            decoder.next_line()


def test_only_the_first_bytes_of_all_tell_another_protocol() -> None:
    assert lines_of(b"\n", b"RNL\x01\n", b"\x16{\n") == [b"RNL\x01", b"\x16{"]


def test_json_that_speaks_of_http_passes() -> None:
    line = b'{"payload": "GET / HTTP/1.1", "host": 1}'
    assert lines_of(line + b"\n") == [line]


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_garbage_gives_lines_or_an_error_of_runnel_and_is_not_hoarded(pieces: list[bytes]) -> None:
    decoder = LineDecoder(LIMIT)
    try:
        for piece in pieces:
            decoder.feed(piece)
            while (line := decoder.next_line()) is not None:
                assert line
                assert len(line) <= LIMIT
                assert b"\n" not in line
            assert decoder.held <= LIMIT + 1
    except RunnelError:
        pass


# -- lines that come whole --------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=LIMIT), max_size=20))
def test_lines_that_come_one_by_one_are_as_they_came(pieces: list[bytes]) -> None:
    lines = WebSocketLines(LIMIT)
    for piece in pieces:
        lines.feed(piece)
    assert lines.held == sum(map(len, pieces))
    assert list(iter(lines.next_line, None)) == [piece.strip() for piece in pieces if piece.strip()]
    assert (lines.next_line(), lines.last_line(), lines.held) == (None, None, 0)


def test_a_whole_line_that_is_too_long_is_refused_for_good() -> None:
    lines = WebSocketLines(LIMIT)
    lines.feed(b"x" * LIMIT)
    lines.feed(b"x" * (LIMIT + 1))
    lines.feed(b"{}")
    assert lines.next_line() == b"x" * LIMIT
    for _ in range(2):
        with pytest.raises(LimitExceeded, match="max_line"):
            lines.next_line()
