"""PostgreSQL's replication stream and pgoutput under fire: a message no larger than its bytes, or a protocol error."""

from runnel.core.errors import ProtocolError
from runnel.wire.pgoutput import Delete, Insert, Relation, Update, WalData, decode_message, decode_stream

_HEAD = b"w" + bytes(24)
_ROW = b"N\x00\x03t\x00\x00\x00\x011nu"

SEEDS = (
    b"k" + bytes(17),
    _HEAD + b"B" + bytes(20),
    _HEAD + b"C" + bytes(25),
    _HEAD + b"R\x00\x00\x40\x05public\x00chat\x00d\x00\x01\x01id\x00\x00\x00\x00\x17\xff\xff\xff\xff",
    _HEAD + b"I\x00\x00\x40\x05" + _ROW,
    _HEAD + b"U\x00\x00\x40\x05O" + _ROW[1:] + _ROW,
    _HEAD + b"D\x00\x00\x40\x05K" + _ROW[1:],
    _HEAD + b"T\x00\x00\x00\x02\x03\x00\x00\x40\x05\x00\x00\x40\x0c",
    _HEAD + b"M\x01" + bytes(8) + b"prefix\x00\x00\x00\x00\x02in",
)


def one_input(data: bytes) -> None:
    """One message of the stream."""
    try:
        found = decode_stream(data)
        if not isinstance(found, WalData):
            return
        message = decode_message(found.payload)
    except ProtocolError:
        return
    match message:
        case Insert(_, new):
            rows = [new]
        case Update(_, old, new, _):
            rows = [new, old or []]
        case Delete(_, old, _):
            rows = [old]
        case Relation():
            assert len(message.columns) * 10 < len(data)
            return
        case _:
            return
    for row in rows:
        assert sum(5 + len(value) if isinstance(value, bytes) else 1 for value in row) < len(data)
