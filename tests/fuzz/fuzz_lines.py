"""JSON lines under fire: any bytes, in any pieces, give the same commands, refusals and error, and nothing else."""

from runnel.core.errors import BadCommand, LimitExceeded, ProtocolError
from runnel.wire.json_commands import FORMS, Pub, Refusal, Sub, parse
from runnel.wire.json_lines import LineDecoder

LIMITS = (8, 64, 1_000, 1 << 20)

SEEDS = (
    *(b"\x03\x05" + form.encode() + b"\r\n" for form in FORMS.values()),
    b'\x03\x01{"command": "PUB", "topic": "t", "payload": "/wA=", "encoding": "base64", "key": "k", "headers": {}}\n',
    b'\x02\x10{"command": "SUB", "topic": "t.*", "from": {"epoch": 1, "offset": 2}, "group": "g", "prefetch": 3}\n{}\n',
    b"\x03\x02GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x03\x00RNL\x01",
)


def one_input(data: bytes) -> None:
    """The first byte chooses the limit, the second the size of the pieces, the rest is what arrives."""
    if len(data) < 2:
        return
    limit, size, came = LIMITS[data[0] % len(LIMITS)], data[1] + 1, data[2:]
    pieces = [came[at : at + size] for at in range(0, len(came), size)]
    whole, parts = outcome(limit, [came]), outcome(limit, pieces)
    assert whole == parts, (whole, parts)


def outcome(limit: int, pieces: list[bytes]) -> tuple[list[bytes], str]:
    """The lines that came, and the kind of error that ended them."""
    decoder = LineDecoder(limit)
    found: list[bytes] = []
    try:
        for piece in pieces:
            decoder.feed(piece)
            while (line := decoder.next_line()) is not None:
                assert len(line) <= limit
                found.append(line)
                understand(line)
            assert decoder.held <= limit + 1
        if (line := decoder.last_line()) is not None:
            understand(line)
            found.append(line)
    except (ProtocolError, LimitExceeded) as error:
        return found, error.code
    return found, ""


def understand(line: bytes) -> None:
    """All that a server asks of a line."""
    command = parse(line)
    if isinstance(command, Refusal):
        assert str(command.error)
    elif isinstance(command, Pub):
        for ask in (command.value, command.key_bytes):
            try:
                ask()
            except BadCommand:
                pass
    elif isinstance(command, Sub):
        try:
            command.where()
        except BadCommand:
            pass
