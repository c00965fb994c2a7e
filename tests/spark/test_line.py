"""A line asks and is answered; what was lost on the way is asked again, and nothing is answered twice."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from runnel.client.options import ClientOptions
from runnel.core.errors import ConnectionLost, InvalidOption, LimitExceeded, NoAnswer, NotSupported, Unreachable
from runnel.spark.connection import MAX_PENDING_CALLS, PAUSES, BlockingConnection
from runnel.wire.errors import wire_error
from runnel.wire.frames import FrameKind
from runnel.wire.msgpack_messages import encode_message
from tests.patience import PATIENCE
from tests.spark.plain_peer import PlainPeer, a_plain_peer
from tests.spark.rig import Served

Start = Callable[..., "Future[Any]"]


@pytest.fixture
def peer() -> Iterator[PlainPeer]:
    with a_plain_peer() as found:
        yield found


@pytest.fixture
def line(peer: PlainPeer) -> Iterator[BlockingConnection]:
    with BlockingConnection(lambda: [peer.address], ClientOptions(timeout=PATIENCE, connect_timeout=PATIENCE)) as made:
        yield made


@pytest.fixture
def start() -> Iterator[Start]:
    """Do something in another thread: it blocks, and the test plays the server meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


def test_a_question_is_answered(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        served.publish_many("t", [b"a", b"b"])
        from runnel.client.address import parse_url

        with BlockingConnection(lambda: parse_url(served.url).addresses, ClientOptions()) as line:
            assert line.ask("topics") == ["t"]
            assert line.welcome.durable
            line.check_durable()
            assert line.ask("mark", name="none") is None
            with pytest.raises(InvalidOption, match="there is no such call"):
                line.ask("nonsense")
            assert line.ask("topics") == ["t"]  # an error of the server is no end of the line


def test_notifications_go_ahead_and_are_settled_together(
    peer: PlainPeer, line: BlockingConnection, start: Start
) -> None:
    told = start(lambda: [line.tell("note", number=number) for number in range(MAX_PENDING_CALLS)])
    caller = peer.accept()
    questions = told.result(PATIENCE)
    ids = [caller.call()[0] for _ in range(MAX_PENDING_CALLS)]
    another = start(line.tell, "note", number=MAX_PENDING_CALLS)
    assert not another.done()  # no more than so many are under way
    caller.reply(ids[1], "b")  # out of order
    another.result(PATIENCE)
    assert [question.is_over for question in questions] == [False, True, False, False]
    settled = start(line.settle)
    for id, answer in zip([ids[0], *ids[2:], caller.call()[0]], "acde", strict=True):
        caller.reply(id, answer)
    settled.result(PATIENCE)
    assert [question.result for question in questions] == ["a", "b", "c", "d"]


def test_a_lost_connection_is_made_again_and_what_was_not_answered_is_asked_again(
    peer: PlainPeer, line: BlockingConnection, start: Start
) -> None:
    told = start(lambda: [line.tell("write", at=at) for at in range(3)])
    first = peer.accept()
    told.result(PATIENCE)
    ids = [first.call()[0] for _ in range(3)]
    first.reply(ids[0], "done")
    settled = start(line.settle)
    first.close()
    second = peer.accept()
    again = [second.call() for _ in range(2)]
    assert [(method, args["at"]) for _, method, args in again] == [("write", 1), ("write", 2)]  # in order
    for id, _, _ in again:
        second.reply(id, "done")
    settled.result(PATIENCE)
    assert line.losses == 1


def test_a_connection_that_was_lost_while_nothing_was_asked_is_no_loss(
    peer: PlainPeer, line: BlockingConnection, start: Start
) -> None:
    asked = start(line.ask, "one")
    first = peer.accept()
    first.reply(first.call()[0], 1)
    assert asked.result(PATIENCE) == 1
    first.close()
    asked = start(line.ask, "two")
    second = peer.accept()
    id, method, _ = second.call()
    assert method == "two"
    second.reply(id, 2)
    assert asked.result(PATIENCE) == 2


def test_a_ping_is_answered_while_an_answer_is_waited_for(
    peer: PlainPeer, line: BlockingConnection, start: Start
) -> None:
    asked = start(line.ask, "slow")
    caller = peer.accept()
    id, _, _ = caller.call()
    caller.send(FrameKind.PING, 0, b"here?")
    assert caller.next() == (FrameKind.PONG, 0, b"here?")
    caller.reply(id, "at last")
    assert asked.result(PATIENCE) == "at last"


def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(peer: PlainPeer, start: Start) -> None:
    with BlockingConnection(lambda: [peer.address], ClientOptions(timeout=0.05)) as line:
        asked = start(line.ask, "slow")
        caller = peer.accept()
        with pytest.raises(NoAnswer, match=r"slow\(\)"):
            asked.result(PATIENCE)
        caller.close()


def test_an_error_about_the_connection_itself_is_raised(
    peer: PlainPeer, line: BlockingConnection, start: Start
) -> None:
    asked = start(line.ask, "one")
    caller = peer.accept()
    caller.call()
    caller.send(FrameKind.ERROR, 0, encode_message(wire_error(LimitExceeded("max_calls", 3, 2))))
    with pytest.raises(LimitExceeded):
        asked.result(PATIENCE)


def test_a_missing_responder_is_reported_at_once_or_after_a_while(peer: PlainPeer) -> None:
    peer.close()
    with pytest.raises(Unreachable, match="connection refused"):
        BlockingConnection(lambda: [peer.address], ClientOptions()).ask("topics")
    rounds: list[int] = []

    def where() -> Any:
        rounds.append(1)
        return [peer.address]

    with pytest.raises(Unreachable):
        BlockingConnection(where, ClientOptions(wait=0.2)).ask("topics")
    assert len(rounds) > 1


def test_a_server_that_is_gone_for_good_is_a_lost_connection(peer: PlainPeer, start: Start) -> None:
    with BlockingConnection(lambda: [peer.address], ClientOptions(timeout=0.2)) as line:
        asked = start(line.ask, "one")
        caller = peer.accept()
        caller.call()
        peer.close()
        caller.close()
        with pytest.raises(ConnectionLost, match="and then connection refused"):
            asked.result(PATIENCE)


def test_one_that_drops_every_connection_is_given_up_at_the_deadline_and_asked_a_few_times(
    peer: PlainPeer, start: Start
) -> None:
    connections = 0

    def drop_all() -> None:
        nonlocal connections
        with suppress(AssertionError):  # one that says nothing ends it
            while True:
                peer.accept().close()
                connections += 1

    dropping = Thread(target=drop_all)
    dropping.start()
    try:
        with BlockingConnection(lambda: [peer.address], ClientOptions(timeout=0.4)) as line:
            asked = start(line.ask, "one")
            with pytest.raises((NoAnswer, ConnectionLost)):
                asked.result(PATIENCE)
            line.settle()  # nothing is left of it that would be asked again
    finally:
        socket.create_connection((peer.address.host, peer.address.port)).close()
        dropping.join(PATIENCE)
    assert 2 <= connections <= 0.4 / (PAUSES[0] / 2) + 2


def test_one_that_hangs_up_before_it_greets_is_not_reached(peer: PlainPeer, start: Start) -> None:
    line = BlockingConnection(lambda: [peer.address], ClientOptions())
    asked = start(line.ask, "one")
    connection, _ = peer._socket.accept()
    connection.close()
    with pytest.raises(Unreachable):
        asked.result(PATIENCE)


def test_a_server_in_memory_cannot_be_written_to(peer: PlainPeer, line: BlockingConnection, start: Start) -> None:
    checked = start(line.check_durable)
    peer.accept(durable=False)
    with pytest.raises(NotSupported, match="--data"):
        checked.result(PATIENCE)


def test_a_line_tells_how_it_is(peer: PlainPeer, line: BlockingConnection, start: Start) -> None:
    assert repr(line) == "<BlockingConnection, not connected, 0 questions under way>"
    told = start(line.tell, "note")
    peer.accept()
    told.result(PATIENCE)
    assert repr(line) == "<BlockingConnection, connected, 1 questions under way>"
    line.close()
    line.close()
