"""Structured payloads come back as they went; what does not fit is refused with its field named."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runnel.core.errors import InvalidOption, LimitExceeded, ProtocolError
from runnel.core.options import Policy, PolicyKind, TopicOptions
from runnel.core.position import Position, Start
from runnel.core.record import Gap
from runnel.core.replication import Generation
from runnel.core.schema import Codec, Schema
from runnel.wire.frames import MAX_CONTROL_FRAME
from runnel.wire.msgpack_messages import (
    AtSequence,
    Goodbye,
    Hello,
    LapsedRange,
    PublishDetails,
    Settlement,
    SettleVerb,
    Subscribe,
    SubscribeReply,
    Welcome,
    WireError,
    WireGap,
    WirePolicy,
    call_payload,
    decode_message,
    encode_message,
    lapsed_payload,
    read_call,
    read_gap,
    read_lapsed,
    read_policy,
    read_reply,
    read_settle,
    read_start,
    settle_payload,
    wire_gap,
    wire_policy,
    wire_start,
)
from tests.nightly import examples

MESSAGES = (Hello, Welcome, PublishDetails, Subscribe, SubscribeReply, WireGap, Goodbye, WireError, WirePolicy)
NUMBERS = st.integers(0, 2**64 - 1)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def packed(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


# -- golden -----------------------------------------------------------------------------------------------------

GOLDEN: list[tuple[object, str]] = [
    (Hello(version=1, client="py"), "82 a776657273696f6e 01 a6636c69656e74 a27079"),
    (Goodbye(reason="stop", retry=1.5), "82 a6726561736f6e a473746f70 a57265747279 cb3ff8000000000000"),
    (PublishDetails(message_id="m"), "81 aa6d6573736167655f6964 a16d"),
    (
        Subscribe(pattern="t", start="earliest", credit=1),
        "de0003 a77061747465726e a174 a57374617274 a86561726c69657374 a6637265646974 01",
    ),
    (("topics", {}), "92 a6746f70696373 80"),
    ([Settlement(7, 1, SettleVerb.ACK, 0, 3)], "91 97 07 01 01 00 03 c0 c0"),
    ([LapsedRange(1, 0, 3)], "91 93 01 00 03"),
    (WireError(code="full", message="m"), "82 a4636f6465 a466756c6c a76d657373616765 a16d"),
]


@pytest.mark.parametrize(("message", "golden"), GOLDEN)
def test_a_message_looks_like_this_for_ever(message: object, golden: str) -> None:
    assert encode_message(message).hex(" ") == bytes.fromhex(golden).hex(" ")


def test_fields_have_these_names_for_ever() -> None:
    names = {
        "Hello": "version client features token seen",
        "Welcome": (
            "version server features journal durable fsync max_frame ping time connection expires generation origin"
        ),
        "PublishDetails": "message_id expected_offset options schema reads wait timeout sent",
        "Subscribe": (
            "pattern start name group policy buffer buffer_bytes prefetch prefetch_bytes strict dead_letter drops "
            "ack_wait max_ack_pending max_deliver backoff jitter hold credit resume until several partial presence"
        ),
        "SubscribeReply": "label eager position epoch is_pattern",
        "WireGap": "pattern first end count reason unshown",
        "Goodbye": "reason retry",
        "WireError": "code message facts branch",
        "WirePolicy": "kind after timeout",
    }
    assert {kind.__name__: sorted(kind.__struct_fields__) for kind in MESSAGES} == {
        kind: sorted(fields.split()) for kind, fields in names.items()
    }


# -- there and back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MESSAGES)
@examples(30, 100)
@given(st.data())
def test_every_message_comes_back_as_it_went(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    message = data.draw(st.builds(kind, **_fields(kind)))
    assert decode_message(kind, encode_message(message)) == message


def _fields(kind: type[msgspec.Struct]) -> dict[str, st.SearchStrategy[Any]]:
    """A strategy for each field, by its type; the checks of msgspec are built the same way, from the same types."""
    by_type: dict[str, st.SearchStrategy[Any]] = {
        "int": NUMBERS,
        "float": st.floats(allow_nan=False, allow_infinity=False),
        "str": st.text(max_size=20),
        "bool": st.booleans(),
        "list": st.just([]),
        "dict": st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=2),
        "any": st.none() | st.text(max_size=5) | st.integers(0, 9),
        "none": st.none(),
        "namedtuple": st.builds(Schema, st.sampled_from(["json", "msgpack"]), st.just({"type": "integer"})),
    }
    by_class: dict[type, st.SearchStrategy[Any]] = {
        WirePolicy: st.builds(WirePolicy, kind=st.sampled_from(["block", "disconnect"]), after=st.integers(1, 9)),
        Generation: st.builds(Generation, st.text(max_size=5), st.integers(0, 9), st.text(max_size=5)),
    }

    def strategy(info: Any) -> st.SearchStrategy[Any]:
        if isinstance(info, msgspec.inspect.UnionType):
            return st.one_of([strategy(one) for one in info.types])
        if isinstance(info, msgspec.inspect.ListType):
            return st.lists(strategy(info.item_type), max_size=3)
        if isinstance(info, msgspec.inspect.VarTupleType):
            return st.lists(strategy(info.item_type), max_size=3).map(tuple)
        if isinstance(info, msgspec.inspect.Metadata):
            return strategy(info.type)
        if isinstance(info, msgspec.inspect.StructType):
            return by_class[info.cls]
        return by_type[type(info).__name__.removesuffix("Type").lower()]

    found = msgspec.inspect.type_info(kind)
    assert isinstance(found, msgspec.inspect.StructType)
    return {field.name: strategy(field.type) for field in found.fields}


@given(st.text(), st.dictionaries(st.text(), ANYTHING, max_size=4))
def test_a_call_comes_back_as_it_went(method: str, args: dict[str, Any]) -> None:
    assert repr(read_call(call_payload(method, args))) == repr((method, args))  # by repr: a NaN is a NaN


@given(ANYTHING)
def test_a_reply_comes_back_as_it_went(result: object) -> None:
    assert repr(read_reply(encode_message(result))) == repr(result)


@given(
    st.lists(
        st.builds(
            Settlement,
            NUMBERS,
            NUMBERS,
            st.sampled_from(SettleVerb),
            NUMBERS,
            NUMBERS,
            st.none() | st.floats(allow_nan=False),
            st.none() | st.text(),
        )
    )
)
def test_settlements_come_back_as_they_went(settlements: list[Settlement]) -> None:
    back = read_settle(settle_payload(settlements))
    assert back == settlements
    assert all(type(one) is Settlement and type(one.verb) is SettleVerb for one in back)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS)))
def test_lapses_come_back_as_they_went(lapses: list[tuple[int, int, int]]) -> None:
    assert read_lapsed(lapsed_payload(lapses)) == lapses


@pytest.mark.parametrize(
    "options", [{}, {"durable": True, "backoff": (1, 2.5), "retention_age": 3600, "dead_letter": "dead"}]
)
def test_the_options_of_a_topic_come_back(options: dict[str, Any]) -> None:
    said = TopicOptions.of(options)
    back = decode_message(PublishDetails, encode_message(PublishDetails(options=said.given()))).options
    assert TopicOptions.of(back or {}) == said


def test_the_schema_of_a_typed_topic_comes_back() -> None:
    class Order(msgspec.Struct):
        id: int

    codec: Codec[Order] = Codec(Order)
    schema = Schema(codec.encoding, codec.schema)
    back = decode_message(PublishDetails, encode_message(PublishDetails(schema=schema))).schema
    assert back == schema
    codec.succeed("orders", back or Schema("msgpack", {}))


def test_a_field_that_is_not_known_is_left_alone() -> None:
    later = packed({"version": 2, "client": "c", "features": ["x"], "mood": {"a": [1]}})
    assert decode_message(Hello, later) == Hello(version=2, client="c", features=["x"])


def test_what_is_not_said_has_its_default() -> None:
    assert decode_message(Hello, packed({"version": 1})) == Hello(version=1, client="", features=[])
    assert decode_message(Subscribe, packed({"pattern": "t"})) == Subscribe(pattern="t")
    assert decode_message(PublishDetails, packed({})) == PublishDetails()
    assert len(encode_message(PublishDetails())) == 1


# -- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "payload", "why"),
    [
        (Hello, packed({}), r"Hello\.version: .*missing required field"),
        (Hello, packed({"version": "1"}), r"Hello\.version: Expected `int`, got `str`"),
        (Hello, packed({"version": 1, "features": [1]}), r"Hello\.features\[0\]: Expected `str`"),
        (Hello, packed({"version": -1}), r"Hello\.version: Expected `int` >= 0"),
        (Hello, packed([1, "c"]), r"Hello: Expected `object`, got `array`"),
        (Hello, b"", r"Hello: .*truncated"),
        (Hello, packed({"version": 1}) + b"x", r"Hello: .*trailing"),
        (Goodbye, b"\x81\xa6reason\xa1\xff", r"Goodbye: .*utf-8"),
        (Goodbye, packed({"retry": float("nan")}), r"Goodbye\.retry: Expected `float` >="),
        (Subscribe, packed({"pattern": "t", "policy": {}}), r"Subscribe\.policy\.kind: .*missing required"),
        (PublishDetails, packed({"schema": ["json"]}), r"PublishDetails\.schema: Expected `array` of length 2"),
        (WireGap, packed({"pattern": "t", "first": 1, "end": -1}), r"WireGap\.end: Expected `int` >= 0"),
    ],
)
def test_a_wrong_field_is_named(kind: type[msgspec.Struct], payload: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        decode_message(kind, payload)


def test_what_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ProtocolError, match="nested too deeply"):
        read_reply(b"\x91" * 100_000 + b"\x01")


@pytest.mark.parametrize("payload", [packed([[1, 1, 9, 0, 1, None, None]]), packed([[1, 1]]), packed({"a": 1})])
def test_settlements_that_are_none_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_settle(payload)


@pytest.mark.parametrize("value", [2**64, object(), {"a": [2**70]}])
def test_what_cannot_travel_is_an_error_of_the_caller(value: object) -> None:
    with pytest.raises(InvalidOption, match="cannot travel"):
        encode_message(value)


# -- starts -----------------------------------------------------------------------------------------------------

ZONES = st.builds(timezone, st.integers(-1439, 1439).map(lambda minutes: timedelta(minutes=minutes)))
TIMES = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=ZONES)


@given(
    st.none()
    | st.sampled_from(["latest", "earliest"])
    | NUMBERS
    | TIMES
    | st.builds(Position, NUMBERS, NUMBERS)
    | st.builds(AtSequence, NUMBERS)
)
def test_every_start_comes_back_as_it_went(start: Start | AtSequence) -> None:
    travelled = decode_message(Subscribe, encode_message(Subscribe(pattern="t", start=wire_start(start)))).start
    back = read_start(travelled)
    assert back == start
    assert type(back) is type(start)


@pytest.mark.parametrize(
    ("start", "note"),
    [
        (Position(3, 17), {"epoch": 3, "offset": 17}),
        (AtSequence(5), {"sequence": 5}),
        (datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC), {"time": "2026-01-02T03:04:05.000678+00:00"}),
    ],
)
def test_a_start_travels_like_this_for_ever(start: Start | AtSequence, note: object) -> None:
    assert wire_start(start) == note


@pytest.mark.parametrize("note", ["yesterday", -1])
def test_what_the_broker_checks_in_process_it_checks_here_too(note: Any) -> None:
    assert read_start(note) == note


@pytest.mark.parametrize(
    "note",
    [
        True,
        1.5,
        b"latest",
        [],
        {},
        {"epoch": 1},
        {"epoch": 1, "offset": -1},
        {"epoch": True, "offset": 1},
        {"epoch": 1, "offset": 1, "time": "x"},
        {"sequence": -1},
        {"sequence": "1"},
        {"time": 5},
        {"time": "yesterday"},
        {"time": "2026-01-02T03:04:05"},
        {"time": "9999-12-31T23:59:59-05:00"},
    ],
)
def test_what_is_no_start_is_refused(note: object) -> None:
    with pytest.raises(ProtocolError, match=r"Subscribe\.start"):
        read_start(note)


# -- policies and gaps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy",
    [
        Policy.drop_oldest(),
        Policy.drop_newest(),
        Policy.block(),
        Policy.block(0),
        Policy.block(2.5),
        Policy.disconnect(),
        Policy.disconnect(7),
        *(kind.value for kind in PolicyKind),
    ],
)
def test_every_policy_comes_back_as_it_went(policy: Policy | str) -> None:
    note = decode_message(Subscribe, encode_message(Subscribe(pattern="t", policy=wire_policy(policy)))).policy
    assert read_policy(note) == Policy.of(policy)


def test_no_policy_stays_none_since_that_is_not_the_default_policy() -> None:
    assert wire_policy(None) is None
    assert read_policy(None) is None


@pytest.mark.parametrize(
    "note",
    [
        WirePolicy(kind="forget"),
        WirePolicy(kind="block", timeout=-1),
        WirePolicy(kind="block", timeout=float("nan")),
        WirePolicy(kind="disconnect", after=0),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_as_in_process(note: WirePolicy) -> None:
    with pytest.raises(InvalidOption):
        read_policy(note)


@pytest.mark.parametrize("count", [None, 0, 5])
def test_a_gap_comes_back_as_it_went(count: int | None) -> None:
    gap = Gap("orders.*", 5, 10, count, "its buffer was full")
    assert read_gap(encode_message(wire_gap(gap))) == (gap, 0)
    assert read_gap(encode_message(wire_gap(gap, 7))) == (gap, 7)


# -- garbage ----------------------------------------------------------------------------------------------------

READERS = [
    *((lambda payload, kind=kind: decode_message(kind, payload)) for kind in MESSAGES),
    read_reply,
    read_call,
    read_settle,
    read_lapsed,
    read_gap,
]


@settings(max_examples=500)
@given(st.binary(max_size=200) | ANYTHING.map(packed))
@example(b"\x81\x80\x01")
@example(b"\x81\x91\x80\x01")
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\xc6\xff\xff\xff\xff")
@example(b"\xd6\xff\xff\xff\xff\xff")
@example(b"\xd8\xff" + b"\xff" * 16)
def test_garbage_is_a_message_or_a_protocol_error(payload: bytes) -> None:
    for reader in READERS:
        with contextlib.suppress(ProtocolError):
            reader(payload)


@given(st.dictionaries(st.sampled_from(["pattern", *Subscribe.__struct_fields__]), ANYTHING))
def test_a_subscribe_of_garbage_is_read_or_refused(fields: dict[str, Any]) -> None:
    try:
        asked = decode_message(Subscribe, packed({"pattern": "t", **fields}))
        read_start(asked.start)
        read_policy(asked.policy)
    except (ProtocolError, InvalidOption):
        pass


def test_a_large_call_is_of_batches_and_not_of_other_things() -> None:
    large = bytes(MAX_CONTROL_FRAME)
    for args in (
        {"batch": large},
        {"publishes": [["t", large, None], ["t", b"", {"wait": True}]], "acks": [[1, 2, 3, 4]]},
    ):
        assert read_call(call_payload("transact", args)) == ("transact", args)
    with pytest.raises(LimitExceeded) as refused:
        read_call(call_payload("topics", {"x": large}))
    assert refused.value.limit == "max_frame"
    with pytest.raises(LimitExceeded):
        read_call(call_payload("transact", {"publishes": [["t", b"", {"message_id": "x" * MAX_CONTROL_FRAME}]]}))
    nothing: list[list[int]] = [[]] * MAX_CONTROL_FRAME
    for name in ("batch", "publishes"):
        with pytest.raises(ProtocolError):
            read_call(call_payload("transact", {name: nothing}))
