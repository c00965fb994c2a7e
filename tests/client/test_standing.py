"""How a subscription stands with its server: what is told to whom, and when, over a played link."""

import asyncio
from typing import Any

import pytest

import runnel
from runnel.client import standing
from runnel.client.options import ClientOptions
from runnel.client.standing import Standing
from runnel.core.errors import RunnelError
from runnel.wire.frame import FROM_CLIENT, FrameDecoder, Kind
from runnel.wire.messages import Subscribe, Subscribed, Welcome, encode
from runnel.wire.trouble import trouble_of
from tests.patience import PATIENCE


class PlayedLink:
    """Connected, and says nothing."""

    state = "connected"

    def __init__(self) -> None:
        self.options, self.welcome = ClientOptions(), Welcome()
        self.sent: list[Kind] = []
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
        self.sent += [Kind(kind) for kind, *_ in decoder.frames()]
        if len(self.sent) == 3:
            self.asked_again.set()


class PlayedReader:
    task = None

    def __init__(self) -> None:
        self.told: list[str] = []

    def asks(self) -> Subscribe:
        return Subscribe(pattern="t")

    def stands(self, said: Subscribed) -> None:
        self.told.append("stands")

    def arrived(self, kind: int, flags: int, extra: int, payload: bytes) -> None:
        self.told.append(Kind(kind).name)

    def flush(self) -> None:
        self.told.append("flush")

    def broken(self) -> None:
        self.told.append("broken")

    def over(self, error: RunnelError | None) -> None:
        self.told.append(f"over {error.code}" if error else "over")


STANDS = encode(Subscribed(label="t#1", eager=True, position=0))


def refusal(error: RunnelError) -> tuple[int, int, int, bytes]:
    return Kind.ERROR, 0, 0, encode(trouble_of(error))


async def entered() -> tuple[PlayedLink, PlayedReader, Standing]:
    link, reader = PlayedLink(), PlayedReader()
    made = Standing(link, reader)  # type: ignore[arg-type]
    entering = asyncio.ensure_future(made.enter())
    await asyncio.sleep(0)
    assert link.sent == [Kind.SUBSCRIBE]
    made.frame(Kind.SUBSCRIBED, 0, 0, STANDS)
    await entering
    return link, reader, made


async def test_it_stands_when_the_server_says_so_and_hands_frames_on() -> None:
    _, reader, made = await entered()
    made.frame(Kind.GAP, 0, 0, b"")
    made.flush()
    assert (made.is_up, reader.told) == (True, ["stands", "GAP", "flush"])
    assert repr(made) == "<Standing 1 up>"


async def test_after_a_lost_connection_it_is_asked_for_again_and_told_twice() -> None:
    link, reader, made = await entered()
    made.lost()
    assert not made.is_up
    made.id = 7
    made.connected()
    made.frame(Kind.SUBSCRIBED, 0, 0, STANDS)
    assert (made.is_up, reader.told) == (True, ["stands", "broken", "stands"])
    assert link.sent == [Kind.SUBSCRIBE, Kind.SUBSCRIBE]


async def test_leaving_is_over_when_the_server_says_so_and_what_was_under_way_is_dropped() -> None:
    link, reader, made = await entered()
    made.leave(5)
    made.leave(6)
    left = asyncio.ensure_future(made.left())
    made.frame(Kind.DELIVER, 0, 0, b"")
    await asyncio.sleep(0)
    assert not left.done()
    made.frame(Kind.END, 0, 0, b"")
    await left
    assert (link.sent, reader.told, link.owners) == ([Kind.SUBSCRIBE, Kind.UNSUBSCRIBE], ["stands"], [])


async def test_whoever_leaves_while_the_connection_is_lost_has_left() -> None:
    for lost_first in (True, False):
        link, _, made = await entered()
        if lost_first:
            made.lost()
        made.leave(None)
        if not lost_first:
            made.lost()
        await asyncio.wait_for(made.left(), PATIENCE)
        assert link.owners == []


async def test_the_end_and_an_error_are_told_once() -> None:
    _, reader, made = await entered()
    made.frame(Kind.END, 0, 0, b"")
    made.frame(*refusal(runnel.TopicDeleted("t", 1)))
    made.closed(None)
    assert reader.told == ["stands", "over"]
    _, reader, made = await entered()
    made.frame(*refusal(runnel.TopicDeleted("t", 1)))
    assert reader.told == ["stands", "over topic_deleted"]


async def test_a_name_that_is_taken_is_an_error_at_first_and_waited_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "PAUSE", 0.001)
    link, reader = PlayedLink(), PlayedReader()
    made = Standing(link, reader)  # type: ignore[arg-type]
    entering = asyncio.ensure_future(made.enter())
    await asyncio.sleep(0)
    made.frame(*refusal(runnel.NameInUse("n")))
    with pytest.raises(runnel.NameInUse):
        await entering
    link, reader, made = await entered()
    made.lost()
    made.connected()
    made.frame(*refusal(runnel.NameInUse("n")))
    await asyncio.wait_for(link.asked_again.wait(), PATIENCE)
    made.frame(Kind.SUBSCRIBED, 0, 0, STANDS)
    assert (made.is_up, reader.told) == (True, ["stands", "broken", "stands"])


async def test_a_name_that_stays_taken_is_an_error_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "PATIENCE", 0)
    _, reader, made = await entered()
    made.lost()
    made.connected()
    made.frame(*refusal(runnel.NameInUse("n")))
    assert reader.told == ["stands", "broken", "over name_in_use"]


async def test_a_broker_that_is_closed_while_a_name_is_waited_for_ends_the_reading() -> None:
    link, reader, made = await entered()
    made.lost()
    made.connected()
    made.frame(*refusal(runnel.NameInUse("n")))
    link.state = "closing"
    made._ask_again()  # as its timer does
    assert (reader.told, link.owners) == (["stands", "broken", "over"], [])
