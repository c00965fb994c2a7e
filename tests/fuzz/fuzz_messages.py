"""Every payload of the native protocol under fire: it is read, or it is a protocol error."""

from collections.abc import Callable
from typing import Any

from runnel.core.errors import InvalidOption, ProtocolError
from runnel.wire import binary_messages, msgpack_messages
from runnel.wire.errors import read_error
from runnel.wire.msgpack_messages import decode_message, encode_message, read_policy, read_start

STRUCTS: tuple[type[Any], ...] = (
    msgpack_messages.Hello,
    msgpack_messages.Welcome,
    msgpack_messages.PublishDetails,
    msgpack_messages.Subscribe,
    msgpack_messages.SubscribeReply,
    msgpack_messages.Goodbye,
    msgpack_messages.WireError,
)


def _subscribe(_: int, __: int, payload: bytes) -> None:
    asked = decode_message(msgpack_messages.Subscribe, payload)
    read_start(asked.start)
    read_policy(asked.policy)


READERS: tuple[Callable[[int, int, bytes], Any], ...] = (
    *((lambda _, __, payload, kind=kind: again(kind, payload)) for kind in STRUCTS),
    _subscribe,
    lambda _, __, payload: msgpack_messages.read_reply(payload),
    lambda _, __, payload: msgpack_messages.read_call(payload),
    lambda _, __, payload: msgpack_messages.read_settle(payload),
    lambda _, __, payload: msgpack_messages.read_lapsed(payload),
    lambda _, __, payload: msgpack_messages.read_gap(payload),
    lambda _, __, payload: read_error(payload),
    binary_messages.read_publish,
    lambda _, extra, payload: binary_messages.read_deliver(extra, payload),
    lambda _, extra, payload: binary_messages.read_deliver(extra, binary_messages.read_shares(payload)[1]),
    lambda _, extra, payload: binary_messages.read_grant(extra, payload),
    lambda flags, _, payload: binary_messages.read_credit(flags, payload),
    lambda flags, _, payload: binary_messages.read_unsubscribe(flags, payload),
    lambda _, __, payload: binary_messages.read_published(payload),
)

SEEDS = (
    b"\x00\x00\x00" + encode_message(msgpack_messages.Hello(version=1, client="c", features=["x"])),
    b"\x02\x00\x00"
    + encode_message(msgpack_messages.PublishDetails(message_id="m", options={"durable": True}, reads=[1])),
    b"\x07\x00\x00" + encode_message(msgpack_messages.Subscribe(pattern="t", start={"epoch": 1, "offset": 2})),
    b"\x07\x00\x00"
    + encode_message(msgpack_messages.Subscribe(pattern="t", start={"time": "2026-01-02T03:04:05+00:00"})),
    b"\x0b\x00\x00" + encode_message([msgpack_messages.Settlement(1, 2, msgpack_messages.SettleVerb.ACK, 0, 3)]),
    b"\x0e\x00\x00" + encode_message(msgpack_messages.WireError(code="full", message="m", facts={"topic": "t"})),
    b"\x0f\x01\x01" + b"t\x01\x00\x00\x00\x80batch",
)


def one_input(data: bytes) -> None:
    """The first bytes choose the reader, flags and extra; the rest is the payload."""
    if len(data) < 3:
        return
    try:
        READERS[data[0] % len(READERS)](data[1] & 3, data[2], data[3:])
    except (ProtocolError, InvalidOption):
        pass


def again(kind: type[Any], payload: bytes) -> None:
    """What was understood is understood again when it is sent on."""
    message = decode_message(kind, payload)
    assert repr(decode_message(kind, encode_message(message))) == repr(message)
