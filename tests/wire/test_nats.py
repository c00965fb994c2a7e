"""The NATS client protocol: every operation survives a round trip in any pieces, and wrong bytes are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import LimitExceeded, ProtocolError
from runnel.wire import nats
from runnel.wire.nats import Connect, Failure, Info, Message, NatsParser, Publish, Signal, Subscribe, Unsubscribe

subjects = st.text("abcxyz.*>_-é", min_size=1, max_size=20)
words = st.text("abc.1_", min_size=1, max_size=10)
heads = st.none() | st.dictionaries(st.text("abcX-", min_size=1, max_size=8), st.text("xyz 1:", max_size=9)).map(
    nats.headers
)
payloads = st.binary(max_size=300)
messages = st.builds(Message, st.integers(0, 10**9), subjects, st.none() | subjects, heads, payloads)
publishes = st.builds(Publish, subjects, st.none() | subjects, heads, payloads)
fields = st.dictionaries(words, st.integers(0, 9) | words | st.booleans(), max_size=4)
operations = st.one_of(
    messages,
    publishes,
    st.builds(Subscribe, subjects, st.none() | words, words),
    st.builds(Unsubscribe, words, st.none() | st.integers(0, 10**6)),
    st.builds(Info, fields),
    st.builds(Connect, fields),
    st.builds(Failure, words),
    st.sampled_from([Signal("PING"), Signal("PONG"), Signal("+OK")]),
)


def written(operation: nats.Operation) -> bytes:
    match operation:
        case Message(sid, subject, reply, head, payload):
            return nats.delivery(subject, sid, reply, head, payload)
        case Publish(subject, reply, head, payload):
            return nats.publish(subject, payload, reply, head)
        case Subscribe(subject, queue, sid):
            return nats.subscribe(subject, sid, queue)
        case Unsubscribe(sid, limit):
            return nats.unsubscribe(sid, limit)
        case Info(said):
            return nats.info(said)
        case Connect(said):
            return nats.connect(said)
        case Failure(why):
            return nats.failure(why)
        case Signal(name):
            return {"PING": nats.PING, "PONG": nats.PONG, "+OK": nats.OK}[name]


@given(st.lists(operations, max_size=8), st.integers(1, 40))
def test_operations_come_back_as_they_were_written_in_pieces_of_any_size(sent: list[nats.Operation], size: int) -> None:
    data = b"".join(map(written, sent))
    assert NatsParser().feed(data) == sent
    parser = NatsParser()
    assert [one for at in range(0, len(data), size) for one in parser.feed(data[at : at + size])] == sent
    assert parser.held == 0


def test_names_of_operations_are_read_in_any_case_and_with_any_white_space() -> None:
    data = b"ping\r\nmsg a 1 2\r\nhi\r\nPub  a\tb 2\r\nhi\r\nSub a 7\r\nunsub 7\r\n-err 'no'\r\n+ok\r\n"
    assert NatsParser().feed(data) == [
        Signal("PING"),
        Message(1, "a", None, None, b"hi"),
        Publish("a", "b", None, b"hi"),
        Subscribe("a", None, "7"),
        Unsubscribe("7", None),
        Failure("no"),
        Signal("+OK"),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\r\n",
        b"MSG a 1\r\n\r\n",
        b"MSG a b c d 2\r\nhi\r\n",
        b"MSG a x 2\r\nhi\r\n",
        b"MSG a 1 -2\r\nhi\r\n",
        b"MSG a 1 2\r\nhi!!",
        b"MSG \xff 1 2\r\nhi\r\n",
        b"HMSG a 1 9 2\r\nhi\r\n",
        b"HMSG a 1 4 6\r\nNATS: \r\n",
        b"SUB a\r\n",
        b"UNSUB 1 x\r\n",
        b"INFO [1]\r\n",
        b"CONNECT {\r\n",
        b"INFO\r\n",
        b"XY",
    ],
)
def test_what_breaks_the_rules_is_a_protocol_error_now_and_from_then_on(data: bytes) -> None:
    parser = NatsParser()
    for more in (data, b"PING\r\n"):
        with pytest.raises(ProtocolError):
            parser.feed(more)


def test_operations_before_a_wrong_one_are_returned_and_the_error_comes_next() -> None:
    parser = NatsParser()
    assert parser.feed(b"PING\r\nWHAT\r\n") == [Signal("PING")]
    with pytest.raises(ProtocolError):
        parser.feed(b"")


def test_a_line_and_a_payload_beyond_their_limits_are_refused_before_they_are_complete() -> None:
    with pytest.raises(LimitExceeded):
        NatsParser(max_line=100).feed(b"SUB " + b"a" * 100)
    with pytest.raises(LimitExceeded):
        NatsParser(max_payload=10).feed(b"PUB a 11\r\n")
    assert NatsParser(max_line=100).feed(b'INFO {"a":"' + b"b" * 200 + b'"}\r\n') == [Info({"a": "b" * 200})]


def test_a_large_payload_in_many_pieces_is_joined_once_it_is_there() -> None:
    parser = NatsParser()
    data = nats.publish("a", bytes(1_000_000))
    found = [one for at in range(0, len(data), 4096) for one in parser.feed(data[at : at + 4096])]
    assert found == [Publish("a", None, None, bytes(1_000_000))]


def test_a_header_block_says_a_status_or_fields() -> None:
    head = nats.headers({"Nats-Msg-Id": "a:1", "X": "one: two"})
    assert nats.read_headers(head) == {"Nats-Msg-Id": "a:1", "X": "one: two"}
    assert nats.read_status(head) is None
    assert nats.read_status(b"NATS/1.0 503\r\n\r\n") == (503, "")
    assert nats.read_status(nats.headers({}, "409 Consumer Deleted")) == (409, "Consumer Deleted")
    assert nats.read_headers(b"NATS/1.0 100 Idle\r\nNats-Last-Stream: 7\r\n\r\n") == {"Nats-Last-Stream": "7"}
