"""The cutting of frames under fire: any bytes, in any pieces, give the same frames and the same error."""

from runnel.core.errors import LimitExceeded, ProtocolError
from runnel.wire.frames import (
    FLAGS,
    FRAME_HEADER_SIZE,
    FROM_CLIENT,
    LARGE_BUFFER,
    PREFACE,
    Frame,
    FrameDecoder,
    FrameKind,
    frame,
)

LIMITS = (12, 64, 1_000, 1 << 20)

SEEDS = (
    b"\x00\x05" + PREFACE + frame(FrameKind.HELLO, 0, b"\x81\xa7version\x01"),
    b"\x03\x30" + PREFACE + frame(FrameKind.PING, 0, b"12345678") + frame(FrameKind.PUBLISH, 1, b"t" * 50, 1, 3),
    b"\x02\x01" + PREFACE + frame(FrameKind.CREDIT, 1, bytes(12), 3) + frame(FrameKind.GOODBYE, 0),
)


def one_input(data: bytes) -> None:
    """The first byte chooses the limit, the second the size of the pieces, the rest is what arrives."""
    if len(data) < 2:
        return
    limit, size, came = LIMITS[data[0] % len(LIMITS)], data[1] + 1, data[2:]
    pieces = [came[at : at + size] for at in range(0, len(came), size)]
    whole, parts = outcome(limit, [came]), outcome(limit, pieces)
    assert whole == parts, (whole, parts)


def outcome(limit: int, pieces: list[bytes]) -> tuple[list[Frame], str]:
    """The frames that came, and the error that ended them."""
    decoder = FrameDecoder(limit, kinds=FROM_CLIENT, preface=PREFACE)
    found: list[Frame] = []
    try:
        for piece in pieces:
            for room in spaces(decoder, piece):
                decoder.buffer_updated(room)
                for one in decoder.frames():
                    sensible(one, limit)
                    found.append(one)
                assert decoder.held <= limit + LARGE_BUFFER
    except (ProtocolError, LimitExceeded) as error:
        return found, "the preface" if "first bytes" in str(error) else str(error)
    assert decoder.pending < max(limit, FRAME_HEADER_SIZE)
    return found, ""


def spaces(decoder: FrameDecoder, piece: bytes) -> list[int]:
    """As a transport does it: what fits, and the rest the next time."""
    room = decoder.get_buffer(len(piece))
    count = min(len(room), len(piece))
    room[:count] = piece[:count]
    if count == len(piece):
        return [count] if count else []
    decoder.buffer_updated(count)
    decoder.feed(piece[count:])
    return [0]


def sensible(one: Frame, limit: int) -> None:
    """What every frame must be that gets through."""
    kind, flags, _, _, payload = one
    assert kind in FROM_CLIENT
    assert not flags & ~FLAGS.get(FrameKind(kind), 0)
    assert FRAME_HEADER_SIZE + len(payload) <= limit
