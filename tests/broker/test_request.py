"""An inbox per request, gone when the answer is there."""

import asyncio
from pathlib import Path

import pytest

from runnel.core.errors import NoResponders, RequestTimeout
from runnel.core.record import INBOX
from runnel.testing.clock import JumpingClock
from tests.broker.durable_broker import Disk, log_of, open_on, until
from tests.brokers import local_broker
from tests.patience import PATIENCE


async def test_an_inbox_lives_as_long_as_its_request() -> None:
    async with local_broker() as broker, broker.subscribe("ask") as questions:
        asking = asyncio.ensure_future(broker.request("ask", b"?"))
        question = await anext(questions)
        assert question.reply_to is not None
        assert question.reply_to.startswith(INBOX)
        assert len(broker.backend.inboxes) == 1
        assert await broker.reply(question, b"!")
        assert await broker.reply(question, b"again") is False  # the requester has not even run
        assert (await asking).value == b"!"
        assert len(broker.backend.inboxes) == 0
        assert list(broker.backend.catalog.logs) == ["ask"]


async def test_the_name_of_an_inbox_cannot_be_guessed() -> None:
    async with local_broker() as broker, broker.subscribe("ask") as questions:
        asking = [asyncio.ensure_future(broker.request("ask", b"?")) for _ in range(3)]
        names = [str((await anext(questions)).reply_to).removeprefix(INBOX) for _ in asking]
        assert [len(bytes.fromhex(name)) for name in names] == [16, 16, 16]
        assert len({name[:6] for name in names}) == 3
        for one in asking:
            one.cancel()
        await asyncio.wait(asking)


async def test_nothing_stays_behind_however_it_ends() -> None:
    clock = JumpingClock()
    async with local_broker(clock=clock) as broker:
        with pytest.raises(NoResponders):
            await broker.request("ask", b"?")
        async with broker.subscribe("ask"):
            late = asyncio.ensure_future(broker.request("ask", b"?", timeout=1))
            cancelled = asyncio.ensure_future(broker.request("ask", b"?"))
            await clock.advance(1)
            cancelled.cancel()
            with pytest.raises(RequestTimeout):
                await late
            await asyncio.wait([cancelled])
        assert list(broker.backend.catalog.logs) == ["ask"]
        assert list(broker.backend.readers) == []
        assert len(broker.backend.inboxes) == 0
        assert all(timer.callback is None for _, _, timer in clock._timers)


async def test_a_broker_that_closes_ends_the_request() -> None:
    async with local_broker() as broker, broker.subscribe("ask"):
        asking = asyncio.ensure_future(broker.request("ask", b"?"))
        await asyncio.sleep(0)
        broker.close()
        with pytest.raises(Exception) as caught:  # noqa: PT011
            await asyncio.wait_for(asking, PATIENCE)
        assert type(caught.value).__name__ == "BrokerClosed"


async def test_a_request_that_outlived_its_broker_is_not_answered_to_another_client(tmp_path: Path) -> None:
    disk, clock = Disk(), JumpingClock()
    async with open_on(disk, tmp_path, clock) as broker, broker.subscribe("ask", group="g"):
        asking = asyncio.ensure_future(broker.request("ask", b"tea?", timeout=1))
        await until(lambda: log_of(broker, "ask").end)
        await clock.advance(1)
        with pytest.raises(RequestTimeout):
            await asking
    async with open_on(disk, tmp_path, clock) as broker, broker.subscribe("ask", group="g") as questions:
        asking = asyncio.ensure_future(broker.request("ask", b"coffee?"))
        old, new = await anext(questions), await anext(questions)
        assert (old.value, new.value) == (b"tea?", b"coffee?")
        assert await broker.reply(old, b"tea!") is False
        assert await broker.reply(new, b"coffee!")
        assert (await asking).value == b"coffee!"
