"""The client side of each exchange. Only `record.py` uses it; the tests read what was recorded.

Exchanges of one server run in the order in which they stand here, since sequences are counted by the server. Each
uses topics of its own. A request that changes something is answered before the next is sent, so that one run of an
exchange is like every other.
"""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

from tests.golden.exchanges import Steps
from tests.golden.frames import PREFACE, Frame, batch, pack

FOLDER = ("--data", "data")
MEMORY = ("--memory",)
PRODUCER = 0x0123456789ABCDEF


class Exchange(NamedTuple):
    """One exchange: which server it needs, which protocol it speaks, and what is sent."""

    server: str
    protocol: str
    about: str
    steps: Steps


SERVERS: dict[str, tuple[str, ...]] = {"native": MEMORY, "folder": FOLDER, "lines": MEMORY, "http": MEMORY}
EXCHANGES: dict[str, Exchange] = {}


def _add(name: str, server: str, about: str, *steps: dict[str, Any], protocol: str = "") -> None:
    EXCHANGES[name] = Exchange(server, protocol or {"folder": "native"}.get(server, server), about, list(steps))


# -- native -------------------------------------------------------------------------------------------------------


def send(*sent: Frame | bytes, answers: int, on: str = "a", **more: Any) -> dict[str, Any]:
    """A step: these frames, and so many answers."""
    data = [one if isinstance(one, bytes) else one.encode() for one in sent]
    shown = [str(one) if isinstance(one, Frame) else "bytes" for one in sent]
    return {"on": on, "sends": shown, "send": [one.hex() for one in data], "count": answers, **more}


def hello(on: str = "a") -> dict[str, Any]:
    return send(PREFACE, Frame("HELLO", 0, pack({"version": 1, "client": "golden"})), answers=1, on=on)


def publish(id: int, topic: str, records: bytes, **about: Any) -> Frame:
    said = pack(about)
    note = len(said).to_bytes(4, "little") + said if about else b""
    name = topic.encode()
    return Frame("PUBLISH", id, name + note + records, 1 if about else 0, len(name))


def call(id: int, method: str, **arguments: Any) -> Frame:
    return Frame("CALL", id, pack([method, arguments]))


def subscribe(id: int, pattern: str, **options: Any) -> Frame:
    return Frame("SUBSCRIBE", id, pack({"pattern": pattern, **options}))


def credit(id: int, given: int = 0, place: int | None = None, *, ask: bool = False, counts: bytes = b"") -> Frame:
    flags = (place is not None) | 2 * ask | 4 * bool(counts)
    return Frame("CREDIT", id, given.to_bytes(4, "little") + (place or 0).to_bytes(8, "little") + counts, flags)


def unsubscribe(id: int, place: int | None = None) -> Frame:
    return Frame("UNSUBSCRIBE", id, (place or 0).to_bytes(8, "little"), int(place is not None))


def settle(id: int, *settlements: list[Any]) -> Frame:
    return Frame("SETTLE", id, pack(settlements))


def reply(id: int, value: bytes) -> dict[str, Any]:
    """A CALL that answers to the inbox which was captured; its name is another one in each run."""
    sent = {"call": "reply", "id": id, "reply_to": "{inbox}", "batch": batch(value).hex()}
    return {"on": "b", "sends": [f"CALL id={id}"], "send": [sent], "count": 1}


BEGIN, ACK, NACK, REJECT, EXTEND = range(5)

_add(
    "native-statistics",
    "native",
    "A group, a subscription and two topics in numbers; what the server tells of itself and of its connections.",
    hello(),
    send(publish(1, "stat.a", batch(b"one", b"two")), answers=1),
    send(publish(2, "stat.b", batch(b"three")), answers=1),
    send(subscribe(3, "stat.a", group="workers", prefetch=1), answers=2),
    send(subscribe(4, "stat.*", start="earliest", credit=1 << 20), answers=3),
    send(call(5, "statistics"), answers=1),
    send(call(6, "group", name="workers", pattern="stat.a"), answers=1),
    send(call(7, "info"), answers=1),
    send(call(8, "connections"), answers=1),
    send(call(9, "topics"), answers=1),
    send(unsubscribe(3), unsubscribe(4), answers=2),
)
_add(
    "native-hello",
    "native",
    "A welcome, a ping, and a goodbye after which the server closes.",
    hello(),
    send(Frame("PING", 7, b"are you there"), answers=1),
    send(Frame("GOODBYE", 0, pack({"reason": "done"})), answers=0, closes=True),
)
_add(
    "native-newer-client",
    "native",
    "A client that speaks a later version, with fields and features that the server does not know.",
    send(
        PREFACE,
        Frame("HELLO", 0, pack({"version": 9, "client": "later", "features": ["x"], "unknown": [1]})),
        answers=1,
    ),
)
_add(
    "native-declare",
    "native",
    "Topics: declare, declare otherwise, describe, bounds, list, trim and delete.",
    hello(),
    send(call(1, "declare", topic="declared", options={"retention_count": 5}), answers=1),
    send(call(2, "declare", topic="declared", options={"retention_count": 5}), answers=1),
    send(call(3, "declare", topic="declared", options={"retention_count": 6}), answers=1),
    send(call(4, "declare", topic="declared", options={"retention_cuont": 6}), answers=1),
    send(call(5, "describe", topic="declared"), answers=1),
    send(call(6, "describe", topic="unknown"), answers=1),
    send(publish(7, "declared", batch(*[b"%d" % n for n in range(7)])), answers=1),
    send(call(8, "bounds", patterns=["declared"]), answers=1),
    send(call(9, "trim", topic="declared", before=4), answers=1),
    send(call(10, "bounds", patterns=["declared", "unknown"], time=0), answers=1),
    send(
        call(11, "declare", topic="declared.typed", schema=["json", {"type": "integer"}], options={"encoding": "json"}),
        answers=1,
    ),
    send(call(12, "bounds", patterns=["declared.typed"]), answers=1),
    send(call(13, "delete", topic="declared"), answers=1),
    send(call(14, "delete", topic="declared"), answers=1),
)
_add(
    "native-publish",
    "native",
    "Publishes: the example of docs/reference/wire.md, keys and headers, many at once, and what is sent behind HELLO.",
    send(
        PREFACE,
        Frame("HELLO", 0, pack({"version": 1, "client": "me"})),
        publish(1, "published", batch(b"100", producer=PRODUCER)),
        answers=2,
    ),
    send(publish(2, "published", batch(b"tea", keys=[b"ada"], headers=[{"shop": "eu"}])), answers=1),
    send(
        publish(
            3,
            "published",
            batch(b"a", b"", b"\xff\x00", keys=[None, b"\x00", b"k"], headers=[None, {"n": "1"}, None]),
        ),
        answers=1,
    ),
    send(publish(4, "published", batch(b"late", b"soon", due=[None, 4e9], priorities=[0, 9])), answers=1),
    send(subscribe(5, "published", start="earliest", credit=1 << 20), answers=5),
    send(unsubscribe(5), answers=1),
)
_add(
    "native-publish-once",
    "native",
    "Message ids, expected offsets, and producers: repeated, with a gap, and in order.",
    hello(),
    send(publish(1, "once", batch(b"pay"), message_id="m-1"), answers=1),
    send(publish(2, "once", batch(b"pay again"), message_id="m-1"), answers=1),
    send(publish(3, "once", batch(b"second"), expected_offset=1), answers=1),
    send(publish(4, "once", batch(b"late"), expected_offset=1), answers=1),
    send(publish(5, "once", batch(b"p0", b"p1", producer=7)), answers=1),
    send(publish(6, "once", batch(b"p0", b"p1", producer=7)), answers=1),
    send(publish(7, "once", batch(b"p5", producer=7, sequence=5)), answers=1),
    send(publish(8, "once", batch(b"p2", producer=7, sequence=2)), answers=1),
    send(call(9, "producer_next", producer=7), answers=1),
    send(call(10, "producer_next", producer=8), answers=1),
)
_add(
    "native-subscribe",
    "native",
    "A subscription with credit: history, live records, a position under a name, and its end.",
    hello(),
    hello("b"),
    send(publish(1, "sub.a", batch(b"old 0", b"old 1")), answers=1),
    send(subscribe(2, "sub.a", start="earliest", name="reader", credit=1), answers=2),
    send(publish(1, "sub.a", batch(b"waits for credit")), answers=1, on="b"),
    send(credit(2, 1 << 16, 2), answers=1),
    send(publish(2, "sub.a", batch(b"live", keys=[b"k"], headers=[{"h": "v"}])), answers=1, on="b"),
    send(answers=1),
    send(credit(2, 1 << 16, 3, counts=bytes(4) + b"".join(n.to_bytes(8, "little") for n in (3, 0, 0))), answers=0),
    send(unsubscribe(2, 3), answers=1),
    send(subscribe(3, "sub.a", name="reader", credit=1 << 16), answers=2),
    send(subscribe(4, "sub.a", name="reader", credit=1 << 16), answers=1),
    send(unsubscribe(3), answers=1),
    send(call(5, "forget", name="reader"), answers=1),
    send(call(6, "forget", name="reader"), answers=1),
    send(subscribe(7, "sub.a", start=1, until=3, credit=1 << 16), answers=4),
    send(subscribe(8, "sub.a", start=99, credit=1 << 16), answers=1),
)
_add(
    "native-pattern",
    "native",
    "A subscription to a pattern, across topics, one of which is made later.",
    hello(),
    hello("b"),
    send(publish(1, "pat.a", batch(b"a0")), answers=1),
    send(publish(2, "pat.b", batch(b"b0", b"b1")), answers=1),
    send(subscribe(3, "pat.*", start="earliest", credit=1 << 16), answers=3),
    send(publish(1, "pat.c", batch(b"c0")), answers=1, on="b"),
    send(answers=1),
    send(call(2, "delete", topic="pat.a"), answers=1, on="b"),
    send(publish(3, "pat.b", batch(b"b2")), answers=1, on="b"),
    send(answers=1),
    send(unsubscribe(3), answers=1),
)
_add(
    "native-policies",
    "native",
    "Subscriptions that lag: drop_oldest tells a gap, disconnect ends, an unknown policy is refused.",
    hello(),
    hello("b"),
    send(call(1, "declare", topic="lag"), answers=1),
    send(subscribe(2, "lag", policy={"kind": "drop_oldest"}, buffer=2), answers=1),
    send(subscribe(3, "lag", policy={"kind": "disconnect", "after": 1}, buffer=2), answers=1),
    send(subscribe(4, "lag", policy={"kind": "drop_everything"}), answers=1),
    send(publish(1, "lag", batch(*[b"%d" % n for n in range(6)])), answers=1, on="b"),
    send(answers=1),
    send(credit(2, 0, ask=True), answers=2),
    send(publish(2, "lag", batch(b"6")), answers=1, on="b"),
    send(credit(2, 0, 6, ask=True), answers=1),
    send(unsubscribe(2, 7), answers=1),
)
_add(
    "native-gap",
    "native",
    "Retention took what a reader asks for: a gap, then what is left. A deleted topic ends its reader.",
    hello(),
    send(call(1, "declare", topic="short", options={"retention_count": 2}), answers=1),
    send(publish(2, "short", batch(*[b"%d" % n for n in range(5)])), answers=1),
    send(subscribe(3, "short", start=0, credit=1 << 16), answers=3),
    send(call(4, "delete", topic="short"), answers=2),
)
_add(
    "native-group",
    "native",
    "A group: grants, acks, a nack with its second attempt, a reject with its dead letter, a lease that is over.",
    hello(),
    hello("b"),
    send(publish(1, "grp", batch(b"g0", b"g1", b"g2", b"g3", keys=[b"a", None, None, b"b"])), answers=1),
    send(
        subscribe(2, "grp", group="crew", name="ada", prefetch=8, ack_wait=600.0, backoff=[0.0], jitter=0.0),
        answers=4,
    ),
    send(settle(3, [2, 1, BEGIN, 0, 1, None, None], [2, 1, ACK, 0, 1, None, None]), answers=1),
    send(settle(4, [2, 2, BEGIN, 1, 3, None, None], [2, 2, EXTEND, 1, 3, 60.0, None]), answers=1),
    send(settle(5, [2, 2, NACK, 1, 2, 0.0, "ValueError: no"]), answers=2),
    send(settle(6, [2, 2, REJECT, 2, 3, None, "never"]), answers=1),
    send(settle(7, [2, 2, ACK, 2, 3, None, None]), answers=1),
    send(settle(8, [2, 99, ACK, 3, 4, None, None]), answers=1),
    send(subscribe(1, "grp", group="crew", ack_wait=5.0), answers=1, on="b"),
    send(call(9, "group_pause", name="crew", pattern="grp"), answers=1),
    send(call(10, "group_resume", name="crew", pattern="grp"), answers=1),
    send(subscribe(11, "dead-letters.crew", start="earliest", credit=1 << 16), answers=2),
    send(unsubscribe(11), answers=1),
    send(call(12, "replay", topic="dead-letters.crew"), answers=2),
    send(call(13, "group_reset", name="crew", pattern="grp", start="latest"), answers=4),
    send(unsubscribe(2), answers=1),
    send(call(14, "forget_group", name="crew", pattern="grp"), answers=1),
    send(call(15, "group", name="crew", pattern="grp"), answers=1),
)
_add(
    "native-transaction",
    "native",
    "A transaction with publishes, an ack and marks; the same again is a no-op; a conflict; marks as they stand.",
    hello(),
    send(publish(1, "tx.in", batch(b"order")), answers=1),
    send(subscribe(2, "tx.in", group="exact", prefetch=1), answers=2),
    send(settle(0, [2, 1, BEGIN, 0, 1, None, None]), answers=0),
    send(
        call(
            3,
            "transact",
            publishes=[["tx.out", batch(b"paid", keys=[b"k"]), None], ["tx.log", batch(b"l0", b"l1"), None]],
            acks=[[2, 1, 0, 1]],
            marks=[["tx.step", 1], ["tx.text", "t"], ["tx.bytes", b"\x00\xff"]],
        ),
        answers=1,
    ),
    send(call(4, "transact", publishes=[["tx.out", batch(b"paid"), None]], marks=[["tx.step", 1]]), answers=1),
    send(call(5, "transact", publishes=[["tx.out", batch(b"x"), None]], marks=[["tx.step", 3, 2]]), answers=1),
    send(call(6, "transact", marks=[["tx.text", None]]), answers=1),
    send(call(7, "mark", name="tx.step"), answers=1),
    send(call(8, "mark", name="tx.text"), answers=1),
    send(call(9, "marks", prefix="tx."), answers=1),
    send(call(10, "transact", commits=[["job", 1, 0, 0]]), answers=1),
    send(unsubscribe(2), answers=1),
)
_add(
    "native-request",
    "native",
    "A request that is answered, one with no responders, and a reply that comes too late.",
    hello(),
    hello("b"),
    send(call(1, "request", topic="ask", batch=batch(b"anyone?"), timeout=600.0), answers=1),
    send(subscribe(1, "ask", credit=1 << 16), answers=1, on="b"),
    send(call(2, "request", topic="ask", batch=batch(b"how many?", headers=[{"of": "tea"}]), timeout=600.0), answers=0),
    send(answers=1, on="b", captures={"inbox": r"\$runnel\.inbox\.[0-9a-f]+"}),
    reply(2, b"three"),
    send(answers=1),
    reply(3, b"too late"),
)
_add(
    "native-errors",
    "native",
    "Requests that are refused; the connection goes on.",
    hello(),
    send(publish(1, "no such name!", batch(b"x")), answers=1),
    send(call(2, "no_such_method"), answers=1),
    send(call(3, "declare"), answers=1),
    send(call(4, "trim", topic="unknown.topic", before=1), answers=1),
    send(subscribe(5, "a..b"), answers=1),
    send(subscribe(6, "err", start="yesterday"), answers=1),
    send(publish(7, "err", batch(b"x")[:-1] + b"y"), answers=1),
    send(publish(8, "err", batch(b"x", times=[1])), answers=1),
    send(call(9, "stage_write", topic="err", key=["job", 1, 0, 0], batch=batch(b"x")), answers=1),
    send(call(10, "declare", topic="err.durable", options={"durable": True}), answers=1),
    send(call(11, "reply", reply_to="$runnel.inbox.000000000000.1", batch=batch(b"x")), answers=1),
)
HELLO = Frame("HELLO", 0, pack({"version": 1}))
REFUSED: dict[str, tuple[str, list[Frame | bytes]]] = {
    "native-bad-preface": ("Another protocol.", [b"GET / HTTP/1.1\r\n\r\n"]),
    "native-no-hello": ("A frame before the HELLO.", [PREFACE, call(1, "topics")]),
    "native-bad-kind": ("A kind that only a server sends.", [PREFACE, HELLO, Frame("WELCOME")]),
    "native-bad-flags": ("A reserved flag.", [PREFACE, HELLO, Frame("CALL", 1, b"", 64)]),
    "native-too-large": ("A frame above the limit.", [PREFACE, HELLO, b"\xff\xff\xff\x7f\x05\0\0\0\x01\0\0\0"]),
    "native-bad-payload": ("A payload without its shape.", [PREFACE, HELLO, Frame("SUBSCRIBE", 1, pack({"start": 1}))]),
}
for _name, (_about, _sent) in REFUSED.items():
    _add(_name, "native", f"{_about} The server closes the connection.", send(*_sent, answers=0, closes=True))

STAGE = ["job", 1, 0, 0]
_add(
    "native-stage",
    "folder",
    "A stage in a folder: written, sent again, listed, committed with a mark, dropped, and what follows.",
    hello(),
    send(call(1, "stage_write", topic="staged", key=STAGE, batch=batch(b"s0", b"s1"), ordinal=0), answers=1),
    send(call(2, "stage_write", topic="staged", key=STAGE, batch=batch(b"s0", b"s1"), ordinal=0), answers=1),
    send(call(3, "stage_write", topic="staged", key=STAGE, batch=batch(b"s2", keys=[b"k"]), ordinal=2), answers=1),
    send(call(4, "stage_state", topic="staged", key=STAGE), answers=1),
    send(call(5, "stages"), answers=1),
    send(call(6, "stage_write", topic="staged", key=["job", 2, 0, 0], batch=batch(b"dropped")), answers=1),
    send(call(7, "stage_drop", topic="staged", key=["job", 2, 0, 0]), answers=1),
    send(call(8, "transact", commits=[STAGE], marks=[["job", 1]]), answers=1),
    send(call(9, "transact", commits=[STAGE], marks=[["job", 1]]), answers=1),
    send(call(10, "transact", commits=[STAGE]), answers=1),
    send(call(11, "transact", commits=[["job", 7, 0, 0]]), answers=1),
    send(call(12, "stage_write", topic="staged", key=STAGE, batch=batch(b"late")), answers=1),
    send(subscribe(13, "staged", start="earliest", credit=1 << 16), answers=2),
    send(unsubscribe(13), answers=1),
)
_add(
    "native-folder",
    "folder",
    "Durable topics: compression, a name that holds, places, a group with durable acks, and its statistics.",
    hello(),
    send(call(1, "declare", topic="kept", options={"compression": "zstd", "compact": True}), answers=1),
    send(publish(2, "kept", batch(b"v" * 100, keys=[b"k"])), answers=1),
    send(subscribe(3, "kept", start="earliest", name="holder", hold=True, credit=1 << 16), answers=2),
    send(unsubscribe(3, 1), answers=1),
    send(publish(4, "kept", batch(b"w" * 10, keys=[b"k"])), answers=1),
    send(call(5, "trim", topic="kept", before=2), answers=1),
    send(subscribe(6, "kept", group="durable", prefetch=4, ack_wait=600.0), answers=2),
    send(settle(7, [6, 1, BEGIN, 0, 1, None, None], [6, 1, ACK, 0, 1, None, None]), answers=2),
    send(call(8, "bounds", patterns=["kept"]), answers=1),
    send(unsubscribe(6), answers=1),
    send(call(9, "topics"), answers=1),
)

# -- JSON lines ---------------------------------------------------------------------------------------------------


def line(*commands: dict[str, Any] | str, answers: int, on: str = "a", **more: Any) -> dict[str, Any]:
    """A step: these commands, each a line, and so many lines in answer."""
    texts = [one if isinstance(one, str) else json.dumps(one) for one in commands]
    return {"on": on, "send": texts, "count": answers, **more}


def pub(topic: str, payload: Any, **more: Any) -> dict[str, Any]:
    return {"command": "PUB", "topic": topic, "payload": payload, **more}


def sub(topic: str, **more: Any) -> dict[str, Any]:
    return {"command": "SUB", "topic": topic, **more}


_add(
    "lines-look",
    "lines",
    "PING, TOPICS, INFO and HELP, and QUIT.",
    line({"command": "PING"}, {"command": "ping", "id": 7}, answers=2),
    line({"command": "TOPICS"}, answers=1),
    line({"command": "INFO"}, answers=1),
    line({"command": "HELP"}, answers=13),
    line({"command": "QUIT", "id": "q"}, answers=1, closes=True),
)
_add(
    "lines-publish",
    "lines",
    "Payloads of all kinds, keys, headers, ids and expected offsets.",
    line(pub("l.pub", "100"), answers=1),
    line(pub("l.pub", 100, id="number"), answers=1),
    line('{"command":"PUB","topic":"l.pub","payload":{"b": 1,  "a": [true, null]}}', answers=1),
    line(
        pub("l.pub", base64.b64encode(b"\xff\x00").decode(), encoding="base64", key="k", headers={"h": "v"}), answers=1
    ),
    line(pub("l.pub", "keyed", key=base64.b64encode(b"\xfe").decode(), key_encoding="base64", priority=9), answers=1),
    line(pub("l.pub", "once", message_id="m"), answers=1),
    line(pub("l.pub", "once more", message_id="m"), answers=1),
    line(pub("l.pub", "late", expected_offset=0), answers=1),
    line(pub("l.pub", "é ☕ \U0001f375"), answers=1),
    line(sub("l.pub", **{"from": "earliest", "id": "s"}), answers=8),
    line({"command": "UNSUB", "id": "s"}, answers=1),
)
_add(
    "lines-subscribe",
    "lines",
    "A live subscription, one to a pattern, one with credit, one under a name, and their ends.",
    line(sub("l.sub"), answers=1),
    line(pub("l.sub", "live"), answers=1, on="b"),
    line(answers=1),
    line({"command": "UNSUB", "topic": "l.sub"}, answers=1),
    line(sub("l.*", id=1, **{"from": "latest"}), answers=1),
    line(pub("l.other", "by pattern", key="k"), answers=1, on="b"),
    line(answers=1),
    line({"command": "UNSUB", "id": 1}, answers=1),
    line(pub("l.sub", "second"), pub("l.sub", "third"), answers=2, on="b"),
    line(sub("l.sub", id="c", credit=1, **{"from": 0}), answers=2),
    line({"command": "CREDIT", "id": "c", "records": 2}, answers=3),
    line({"command": "UNSUB", "id": "c"}, answers=1),
    line(sub("l.sub", id="n", name="l.reader"), answers=4),
    line({"command": "UNSUB", "id": "n"}, answers=1),
    line(sub("l.sub", id="n2", name="l.reader"), answers=1),
    line(pub("l.sub", "fourth"), answers=1, on="b"),
    line(answers=1),
)
_add(
    "lines-group",
    "lines",
    "A group: ACK, NACK, REJECT, EXTEND, a delivery that is settled twice, and the dead letter.",
    line(pub("l.jobs", "j0"), pub("l.jobs", "j1", key="k"), pub("l.jobs", "j2"), answers=3),
    line(sub("l.jobs", group="l.crew", id="w", prefetch=8, ack_wait=600), answers=4),
    line({"command": "EXTEND", "delivery": 1, "seconds": 60}, answers=1),
    line({"command": "ACK", "delivery": 1}, answers=1),
    line({"command": "ACK", "delivery": 1}, answers=1),
    line({"command": "NACK", "delivery": 2, "delay": 0, "reason": "not yet"}, answers=2),
    line({"command": "REJECT", "delivery": 3, "reason": "never"}, answers=1),
    line({"command": "ACK", "delivery": 4, "durable": True}, answers=1),
    line({"command": "ACK", "delivery": 4}, answers=1),
    line(sub("dead-letters.l.crew", id="d", **{"from": "earliest"}), answers=2),
)
_add(
    "lines-errors",
    "lines",
    "Lines that are refused; the connection goes on.",
    line({"command": "PUBB", "topic": "t"}, answers=1),
    line({"command": "PUB", "topic": "t"}, answers=1),
    line({"command": "PUB", "topic": "t", "payload": "x", "paylod": 1, "id": 3}, answers=1),
    line({"command": "PUB", "topic": "a b", "payload": "x"}, answers=1),
    line({"command": "SUB", "topic": "t", "from": "yesterday"}, answers=1),
    line({"command": "SUB", "topic": "t", "from": 99, "id": "far"}, answers=1),
    line("not json", "[1]", "", '{"topic": "t"}', answers=3),
    line({"command": "ACK", "delivery": 99}, answers=1),
    line({"command": "UNSUB", "topic": "t"}, answers=1),
    line({"command": "PUB", "topic": "t", "payload": "%%%", "encoding": "base64"}, answers=1),
    line({"command": "CREDIT", "id": "none", "records": 1}, answers=1),
)
_add(
    "lines-http",
    "lines",
    "An HTTP request at the listener for JSON lines: an error, and the server closes.",
    line("POST / HTTP/1.1\r", "Host: localhost\r", answers=0, closes=True),
)

# -- HTTP ---------------------------------------------------------------------------------------------------------


def http(request: str, body: str = "", **more: Any) -> dict[str, Any]:
    """A request, and its answer."""
    return {"send": request, **({"body": body} if body else {}), **more}


JSON_BODY = {"Content-Type": "application/json"}
_add(
    "http-publish",
    "http",
    "One record with all that goes with it; sent again; many as lines; CloudEvents.",
    http("POST /topics/h.pub", "hello"),
    http(
        "POST /topics/h.pub",
        '{"n": 1}',
        headers={"Runnel-Key": "a%20%ff", "Runnel-Header-Shop": "eu%2Fde", "Runnel-Priority": "3", **JSON_BODY},
    ),
    http("POST /topics/h.pub", "once", headers={"Idempotency-Key": "i-1"}),
    http("POST /topics/h.pub", "once more", headers={"Idempotency-Key": "i-1"}),
    http("POST /topics/h.pub", "late", headers={"Runnel-Expected-Offset": "0"}),
    http("POST /topics/h.pub", '{"a":1}\n\n{"a":2}\n', headers={"Content-Type": "application/x-ndjson"}),
    http(
        "POST /topics/h.pub",
        "tea",
        headers={
            "ce-specversion": "1.0",
            "ce-type": "sold",
            "ce-source": "/shop",
            "ce-id": "1",
            "ce-partitionkey": "k",
        },
    ),
    http(
        "POST /topics/h.pub",
        json.dumps({"specversion": "1.0", "type": "sold", "source": "/shop", "id": "2", "data": {"n": 1}}),
        headers={"Content-Type": "application/cloudevents+json"},
    ),
    http("POST /topics/h%2Fslash", "with a slash"),
    http("GET /topics?pattern=h.*"),
    http("GET /topics"),
)
_add(
    "http-history",
    "http",
    "Pages of history, as JSON and as lines, from an offset, from the end, and where retention took some.",
    http("GET /topics/h.pub/records"),
    http("GET /topics/h.pub/records?from=2&limit=2"),
    http("GET /topics/h.pub/records?from=-1"),
    http("GET /topics/h.pub/records?from=latest"),
    http("GET /topics/h.pub/records?from=1&limit=2&format=ndjson"),
    http("GET /topics/h.pub/records?from=99"),
    http("GET /topics/h.none/records"),
    http("GET /topics/h.pub/records?limit=0"),
    http("GET /topics/h.pub/records?form=0"),
)
_add(
    "http-events",
    "http",
    "Server-sent events from the beginning, by key, and on from the last id.",
    http("GET /events?topic=h.pub&start=earliest", events=4, captures={"last": r"id: (\S+)"}),
    http("GET /events?topic=h.pub", headers={"Last-Event-ID": "{last}"}, events=4),
    http("GET /events?topic=h.pub&lastEventId={last}", events=3),
    http("GET /events?pattern=h.*&start=earliest&key=k", events=3),
    http("GET /events?topic=h.pub&start=-1", events=3),
    http("GET /events?topic=h.pub", headers={"Last-Event-ID": "no id"}),
    http("GET /events"),
)
_add(
    "http-look",
    "http",
    "Health, readiness, and what the interface says of itself.",
    http("GET /healthz"),
    http("GET /readyz"),
    http("GET /openapi.json"),
    http("GET /dead-letters"),
    http("GET /dead-letters/h.none"),
)
_add(
    "http-errors",
    "http",
    "Requests that are refused, as problems.",
    http("GET /nothing/here"),
    http("DELETE /topics/h.pub"),
    http("POST /topics/a..b", "x"),
    http("POST /topics/h.pub", "x", headers={"Runnel-Priority": "11"}),
    http("POST /topics/h.pub", "x", headers={"Runnel-Delay": "soon"}),
    http("POST /topics/h.pub", "x", headers={"Origin": "https://other.example"}),
    http("GET /healthz", headers={"Host": "other.example"}),
    http("POST /topics/h.pub", "{", headers={"Content-Type": "application/cloudevents+json"}),
    http("GET /ws"),
    http("POST /dead-letters/h.none/replay", "{}", headers=JSON_BODY),
)
