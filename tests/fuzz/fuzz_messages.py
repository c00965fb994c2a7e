"""Every payload of the native protocol under fire: it is read, or it is a protocol error."""

from collections.abc import Callable
from typing import Any

from runnel.core.errors import InvalidOption
from runnel.core.network_errors import ProtocolError
from runnel.wire import layouts, messages
from runnel.wire.messages import decode, encode, read_policy, read_start
from runnel.wire.trouble import read_error

STRUCTS: tuple[type[Any], ...] = (
    messages.Hello,
    messages.Welcome,
    messages.About,
    messages.Subscribe,
    messages.Subscribed,
    messages.Goodbye,
    messages.Trouble,
)


def _subscribe(_: int, __: int, payload: bytes) -> None:
    asked = decode(messages.Subscribe, payload)
    read_start(asked.start)
    read_policy(asked.policy)


READERS: tuple[Callable[[int, int, bytes], Any], ...] = (
    *((lambda _, __, payload, kind=kind: again(kind, payload)) for kind in STRUCTS),
    _subscribe,
    lambda _, __, payload: messages.read_reply(payload),
    lambda _, __, payload: messages.read_call(payload),
    lambda _, __, payload: messages.read_settle(payload),
    lambda _, __, payload: messages.read_lapsed(payload),
    lambda _, __, payload: messages.read_gap(payload),
    lambda _, __, payload: read_error(payload),
    layouts.read_publish,
    lambda _, extra, payload: layouts.read_deliver(extra, payload),
    lambda _, extra, payload: layouts.read_grant(extra, payload),
    lambda flags, _, payload: layouts.read_credit(flags, payload),
    lambda flags, _, payload: layouts.read_unsubscribe(flags, payload),
    lambda _, __, payload: layouts.read_published(payload),
)

SEEDS = (
    b"\x00\x00\x00" + encode(messages.Hello(version=1, client="c", features=["x"])),
    b"\x02\x00\x00" + encode(messages.About(message_id="m", options={"durable": True}, reads=[1])),
    b"\x07\x00\x00" + encode(messages.Subscribe(pattern="t", start={"epoch": 1, "offset": 2})),
    b"\x07\x00\x00" + encode(messages.Subscribe(pattern="t", start={"time": "2026-01-02T03:04:05+00:00"})),
    b"\x0b\x00\x00" + encode([messages.Settlement(1, 2, messages.Verb.ACK, 0, 3)]),
    b"\x0e\x00\x00" + encode(messages.Trouble(code="full", message="m", facts={"topic": "t"})),
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
    message = decode(kind, payload)
    assert repr(decode(kind, encode(message))) == repr(message)
