"""The session of a subscription with its server: what is told to whom, and when, over a played link."""

import asyncio
from typing import Any

import pytest

import runnel
from runnel.client import subscription_session
from runnel.client.options import ClientOptions
from runnel.client.subscription_session import RemoteSession
from runnel.core.errors import RunnelError
from runnel.wire.errors import wire_error
from runnel.wire.frames import FROM_CLIENT, FrameDecoder, FrameKind
from runnel.wire.msgpack_messages import Subscribe, SubscribeReply, Welcome, encode_message
from tests.patience import PATIENCE


class PlayedLink:
    """Connected, and says nothing."""

    state = "connected"

    def __init__(self) -> None:
        self.options, self.welcome = ClientOptions(), Welcome()
        self.sent: list[FrameKind] = []
        self.owners: list[Any] = []
        self.ids = 0
        self.asked_again = asyncio.Event()

    def check_usable(self, doing: str) -> None:
        pass

    def attach(self, owner: Any) -> None:
        if self.state == "closing":
            raise runnel.BrokerClosed("subscribing")
        self.owners.append(owner)
        if self.state == "connected":
            self.ids += 1
            owner.id = self.ids
            owner.connected()

    def detach(self, owner: Any) -> None:
        if owner in self.owners:
            self.owners.remove(owner)

    def send(self, data: bytes, *, ahead: bool = False) -> None:
        decoder = FrameDecoder(kinds=FROM_CLIENT)
        decoder.feed(data)
        self.sent += [FrameKind(kind) for kind, *_ in decoder.frames()]
        if len(self.sent) == 3:
            self.asked_again.set()


class PlayedSession(RemoteSession):
    """Writes down what it is told."""

    def __init__(self, link: Any) -> None:
        super().__init__(link)
        self.told: list[str] = []

    def asks(self) -> Subscribe:
        return Subscribe(pattern="t")

    def stands(self, said: SubscribeReply) -> None:
        self.told.append("stands")

    def arrived(self, kind: int, flags: int, extra: int, payload: bytes) -> None:
        self.told.append(FrameKind(kind).name)

    def flush(self) -> None:
        self.told.append("flush")

    def broken(self) -> None:
        self.told.append("broken")

    def over(self, error: RunnelError | None) -> None:
        self.told.append(f"over {error.code}" if error else "over")


STANDS = encode_message(SubscribeReply(label="t#1", eager=True, position=0))


def refusal(error: RunnelError) -> tuple[int, int, int, bytes]:
    return FrameKind.ERROR, 0, 0, encode_message(wire_error(error))


async def entered() -> tuple[PlayedLink, PlayedSession]:
    link = PlayedLink()
    made = PlayedSession(link)
    entering = asyncio.ensure_future(made.subscribe())
    await asyncio.sleep(0)
    assert link.sent == [FrameKind.SUBSCRIBE]
    made.frame(FrameKind.SUBSCRIBED, 0, 0, STANDS)
    await entering
    return link, made


async def test_it_stands_when_the_server_says_so_and_hands_frames_on() -> None:
    _, made = await entered()
    made.frame(FrameKind.GAP, 0, 0, b"")
    assert (made.is_up, made.told) == (True, ["stands", "GAP"])


async def test_after_a_lost_connection_it_is_requested_again_and_reported_twice() -> None:
    link, made = await entered()
    made.lost()
    assert not made.is_up
    made.id = 7
    made.connected()
    made.frame(FrameKind.SUBSCRIBED, 0, 0, STANDS)
    assert (made.is_up, made.told) == (True, ["stands", "broken", "stands"])
    assert link.sent == [FrameKind.SUBSCRIBE, FrameKind.SUBSCRIBE]


async def test_leaving_is_over_when_the_server_says_so_and_what_was_under_way_is_dropped() -> None:
    link, made = await entered()
    made.unsubscribe(5)
    made.unsubscribe(6)
    left = asyncio.ensure_future(made.left())
    made.frame(FrameKind.DELIVER, 0, 0, b"")
    await asyncio.sleep(0)
    assert not left.done()
    made.frame(FrameKind.END, 0, 0, b"")
    await left
    assert (link.sent, made.told, link.owners) == ([FrameKind.SUBSCRIBE, FrameKind.UNSUBSCRIBE], ["stands"], [])


async def test_a_member_that_leaves_while_the_connection_is_lost_has_left() -> None:
    for lost_first in (True, False):
        link, made = await entered()
        if lost_first:
            made.lost()
        made.unsubscribe(None)
        if not lost_first:
            made.lost()
        await asyncio.wait_for(made.left(), PATIENCE)
        assert link.owners == []


async def test_the_end_and_an_error_are_reported_once() -> None:
    _, made = await entered()
    made.frame(FrameKind.END, 0, 0, b"")
    made.frame(*refusal(runnel.TopicDeleted("t", 1)))
    made.closed(None)
    assert made.told == ["stands", "over"]
    _, made = await entered()
    made.frame(*refusal(runnel.TopicDeleted("t", 1)))
    assert made.told == ["stands", "over topic_deleted"]


async def test_a_name_that_is_taken_is_an_error_at_first_and_waited_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_session, "PAUSE", 0.001)
    made = PlayedSession(PlayedLink())
    entering = asyncio.ensure_future(made.subscribe())
    await asyncio.sleep(0)
    made.frame(*refusal(runnel.NameInUse("n")))
    with pytest.raises(runnel.NameInUse):
        await entering
    link, made = await entered()
    made.lost()
    made.connected()
    made.frame(*refusal(runnel.NameInUse("n")))
    await asyncio.wait_for(link.asked_again.wait(), PATIENCE)
    made.frame(FrameKind.SUBSCRIBED, 0, 0, STANDS)
    assert (made.is_up, made.told) == (True, ["stands", "broken", "stands"])


async def test_a_name_that_stays_taken_is_an_error_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_session, "PATIENCE", 0)
    _, made = await entered()
    made.lost()
    made.connected()
    made.frame(*refusal(runnel.NameInUse("n")))
    assert made.told == ["stands", "broken", "over name_in_use"]


async def test_a_broker_that_is_closed_while_a_name_is_waited_for_ends_the_reading() -> None:
    link, made = await entered()
    made.lost()
    made.connected()
    made.frame(*refusal(runnel.NameInUse("n")))
    link.state = "closing"
    made._ask_again()  # as its timer does
    assert (made.told, link.owners) == (["stands", "broken", "over"], [])
