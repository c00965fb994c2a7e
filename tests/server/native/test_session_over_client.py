"""A session whose topics live on another server: what it publishes, withdraws, stages and commits goes on to there."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from runnel.core.batch_format import pack
from runnel.core.errors import NotSupported, StageEnded
from runnel.core.position import Position
from runnel.core.publishing import PublishDetails
from runnel.server.native.calls import CALLS, Caller
from runnel.server.options import ServerOptions
from runnel.server.served_broker import ServedBroker
from runnel.testing.clock import JumpingClock
from runnel.wire.binary_messages import publish_frame, read_published
from runnel.wire.errors import read_error
from runnel.wire.frames import FrameKind, frame
from tests.client.memory_link import JoinedLink
from tests.contract.afar import Served
from tests.patience import PATIENCE

KEY = ("w", 1, 0, 0)


@pytest.fixture
async def remote(tmp_path: Any) -> AsyncIterator[Any]:
    """The broker of a folder, on another server."""
    async with Served(JumpingClock(), tmp_path / "data", {}, unix=False) as broker:
        yield broker


class ServedRemote(ServedBroker):
    """A remote broker, served again."""

    fsync = None


class Link(JoinedLink):
    """A client of the session, which notes what publishes are answered."""

    def __init__(self, serving: ServedBroker) -> None:
        super().__init__(serving)
        self.answers_to: dict[int, asyncio.Future[Any]] = {}

    def publish(self, topic: str, batch: bytes, details: PublishDetails | None = None) -> int:
        id = self.new_id()
        self.answers_to[id] = asyncio.get_running_loop().create_future()
        self.send(b"".join(publish_frame(id, topic.encode(), batch, details)))
        return id

    def receive(self, kind: int, flags: int, extra: int, id: int, payload: bytes) -> None:
        if kind == FrameKind.PUBLISHED:
            self.answers_to[id].set_result(read_published(payload))
        elif kind == FrameKind.ERROR and id in self.answers_to:
            self.answers_to[id].set_exception(read_error(payload))
        else:
            super().receive(kind, flags, extra, id, payload)

    async def answer(self, id: int) -> Any:
        return await asyncio.wait_for(self.answers_to[id], PATIENCE)


@pytest.fixture
async def link(remote: Any) -> AsyncIterator[Link]:
    link = Link(ServedRemote(remote, ServerOptions()))
    link.connect()
    link.pass_on()
    yield link
    if link.state == "connected":
        link.cut()


async def test_a_publish_is_answered_when_the_other_server_answers(link: Link, remote: Any) -> None:
    first, second = link.publish("t", pack([b"a", b"b"])), link.publish("t", pack([b"c"]))
    epoch, *span = await link.answer(first)
    assert span == [0, 1]
    assert await link.answer(second) == (epoch, 2, 2)
    assert await remote.publish("t", b"d") == Position(epoch, 3)
    wrong = link.publish("t", pack([b"e"]), PublishDetails(expected_offset=0))
    with pytest.raises(Exception, match="offset") as refused:
        await link.answer(wrong)
    assert refused.value.code == "offset_conflict"  # type: ignore[attr-defined]


async def test_one_that_waits_there_is_cancelled_there(link: Link, remote: Any) -> None:
    async with remote.subscribe("t", policy="block", buffer=1) as records:
        await link.answer(link.publish("t", pack([b"a"])))
        blocked = link.publish("t", pack([b"b"]))
        await remote.topics()  # the other server has looked at it
        link.send(frame(FrameKind.CANCEL, blocked))
        with pytest.raises(Exception, match="cancel") as refused:
            await link.answer(blocked)
        assert refused.value.code == "publish_cancelled"  # type: ignore[attr-defined]
        assert (await anext(records)).value == b"a"
        last = link.publish("t", pack([b"c"]))
        assert (await anext(records)).value == b"c"
        await link.answer(last)


async def test_when_its_client_is_lost_what_waits_there_is_withdrawn(link: Link, remote: Any) -> None:
    async with remote.subscribe("t", policy="block", buffer=1) as records:
        await link.answer(link.publish("t", pack([b"a"])))
        link.publish("t", pack([b"b"]))
        await remote.topics()
        link.cut()
        publishing = asyncio.create_task(remote.publish("t", b"c"))
        assert [(await anext(records)).value for _ in range(2)] == [b"a", b"c"]
        await publishing


async def call(remote: Any, method: str, **args: Any) -> Any:
    serving: Any = SimpleNamespace(broker=remote, backend=remote.backend, publisher=remote.backend.packed_publisher())
    nobody: Any = lambda subscription: None  # noqa: E731
    return await CALLS[method](Caller(serving, nobody, nobody), args)


async def test_a_transaction_is_committed_there(remote: Any) -> None:
    publishes = [["t", pack([b"a", b"b"]), None], ["u", pack([b"c"]), PublishDetails(message_id="m")]]
    found = await call(remote, "transact", publishes=publishes, marks=[["m", 5]])
    assert found["applied"]
    assert [span[1:] for span in found["spans"]] == [(0, 1), (0, 0)]
    again = await call(remote, "transact", publishes=publishes, marks=[["m", 5]])
    assert (again["applied"], again["spans"]) == (False, [None, None])
    assert await remote.mark("m") == 5


async def test_a_stage_is_written_and_committed_there(remote: Any) -> None:
    assert await call(remote, "stage_write", topic="t", key=KEY) == {"records": 0, "bytes": 0}
    batch = pack([b"a", b"b"])
    for _ in range(2):
        found = await call(remote, "stage_write", topic="t", key=KEY, batch=batch, ordinal=0)
        assert found["records"] == 2
    assert await call(remote, "stage_state", topic="t", key=KEY) == found
    done = await call(remote, "transact", commits=[KEY])
    assert [span[1:] for span in done["spans"]] == [(0, 1)]
    with pytest.raises(StageEnded):
        await call(remote, "stage_write", topic="t", key=KEY, batch=batch)
    await call(remote, "stage_drop", topic="t", key=KEY)


async def test_the_numbers_of_a_producer_are_kept_there(link: Link, remote: Any) -> None:
    assert await call(remote, "producer_next", producer=9) is None
    await link.answer(link.publish("t", pack([b"a", b"b"], producer=9, producer_sequence=0)))
    assert await call(remote, "producer_next", producer=9) == 2


async def test_where_there_are_no_stages_that_is_said() -> None:
    async with Served(JumpingClock(), None, {}, unix=False) as remote:
        assert await call(remote, "stage_state", topic="t", key=KEY) == {"records": 0, "bytes": 0}
        with pytest.raises(NotSupported, match="in memory only"):
            await call(remote, "stage_write", topic="t", key=KEY)
        with pytest.raises(NotSupported, match="in memory only"):
            await call(remote, "transact", commits=[KEY])
