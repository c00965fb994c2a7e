"""The NATS protocol under fire: any bytes, in any pieces, give the same operations and error, and nothing else."""

from runnel.core.errors import InvalidOption, LimitExceeded, ProtocolError
from runnel.server.nats.headers import head_of, read_publish_headers
from runnel.wire import nats

LIMITS = ((16, 64), (4096, 1 << 20))

SEEDS = (
    b"\x00\x05PING\r\nPONG\r\n+OK\r\n-ERR 'x'\r\n",
    b"\x01\x03MSG a.b 1 r.x 5\r\nhello\r\nHMSG a 2 12 17\r\nNATS/1.0\r\n\r\nhello\r\n",
    b"\x01\x07HPUB a b 16 16\r\nNATS/1.0\r\nA:b\r\n\r\n\r\nPUB a 0\r\n\r\nSUB a.* q 1\r\nUNSUB 1 5\r\n",
    b'\x01\x20INFO {"version":"2.12.0","headers":true}\r\nCONNECT {"verbose":false}\r\n',
)


def one_input(data: bytes) -> None:
    """The first byte chooses the limits, the second the size of the pieces, the rest is what arrives."""
    if len(data) < 2:
        return
    limits, size, came = LIMITS[data[0] % len(LIMITS)], data[1] + 1, data[2:]
    whole = outcome(limits, [came])
    parts = outcome(limits, [came[at : at + size] for at in range(0, len(came), size)])
    assert whole == parts, (whole, parts)


def published(head: bytes) -> None:
    """What a header block of a publish says is read, or refused as an option; shown again, it holds no line end."""
    try:
        said = read_publish_headers(head)
    except InvalidOption:
        return
    _, shown = head_of(said.headers, None)
    assert shown is None or shown.endswith(b"\r\n\r\n")


def outcome(limits: tuple[int, int], pieces: list[bytes]) -> tuple[list[nats.Operation], str]:
    """The operations that came, and the kind of error that ended them."""
    line, payload = limits
    parser = nats.NatsParser(payload, line)
    found: list[nats.Operation] = []
    try:
        for piece in [*pieces, b""]:
            for one in parser.feed(piece):
                if isinstance(one, nats.Message | nats.Publish) and one.head is not None:
                    nats.read_headers(one.head)
                    nats.read_status(one.head)
                    published(one.head)
                found.append(one)
    except (ProtocolError, LimitExceeded) as error:
        return found, error.code
    return found, ""
