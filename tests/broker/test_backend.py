"""The local backend: a broker put together of its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel.api.broker import Broker
from runnel.broker.backend import LocalBackend
from runnel.broker.topic.readers import PUBLISH_TURN
from runnel.core.errors import BrokerClosed, NameInUse, UnknownName
from runnel.core.publishing import Append
from runnel.testing import JumpingClock
from tests.broker.durable_broker import Disk, commits_of, log_of, open_on, turns, until
from tests.brokers import local_broker


async def test_a_publisher_pauses_when_its_turn_is_over() -> None:
    async with local_broker() as broker:
        log = broker.backend.catalog.find("t")
        await broker.topic("t").publish_many([b"x"] * (PUBLISH_TURN - 1))
        is_over, entry = broker.backend.publisher.is_turn_over, Append([b"x"], None, 1)
        assert not is_over(log, entry)
        broker.topic("t").publish_nowait(b"x")
        assert is_over(log, entry)
        await asyncio.sleep(0)
        assert not is_over(log, entry)
        async with broker.subscribe("t", buffer=10):
            await broker.topic("t").publish_many([b"x"] * 10)
            assert is_over(log, entry), "a reader has no room for another"


async def test_numbers_are_given_once() -> None:
    broker = local_broker()
    assert [broker.backend.next_number() for _ in range(3)] == [1, 2, 3]


async def test_closing_ends_readers_refuses_publishers_and_may_be_repeated() -> None:
    async with local_broker() as broker, broker.subscribe("t", policy="block", buffer=1) as records:
        await broker.publish("t", b"x")
        waiting = asyncio.create_task(broker.publish("t", b"y"))
        await asyncio.sleep(0)
        broker.backend.close()
        broker.backend.close()
        with pytest.raises(BrokerClosed):
            await waiting
        assert [record.value async for record in records] == [b"x"]


async def test_only_readers_of_this_life_of_the_topic_are_watched() -> None:
    backend = LocalBackend(auto_create=True, clock=JumpingClock())
    log = backend.catalog.find("t")
    assert backend.publisher.watch(log, log.position(0)) == {}


class Abandoned:
    """A broker whose loop is closed while tasks still wait for it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.loop = asyncio.new_event_loop()
        self.tasks: list[asyncio.Task[Any]] = []

    def after(self, use: Callable[[Abandoned], Awaitable[None]]) -> None:
        """Enter the broker, use it, and close the loop."""

        async def life() -> None:
            await self.broker.__aenter__()
            await use(self)

        self.loop.run_until_complete(life())
        self.loop.close()

    def start(self, waiting: Awaitable[Any]) -> None:
        task = self.loop.create_task(_awaited(waiting))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.tasks.append(task)


async def _awaited(waiting: Awaitable[Any]) -> None:
    await waiting


async def reading(life: Abandoned) -> None:
    broker = life.broker
    named, every, deliveries = broker.subscribe("t", name="n"), broker.subscribe("*"), broker.subscribe("t", group="g")
    subscriptions: list[Any] = [named, every, deliveries]
    for subscription in subscriptions:
        await subscription.__aenter__()
        if subscription is not every:
            await anext(subscription)
        life.start(anext(subscription))
    await turns()


async def publishing(life: Abandoned) -> None:
    life.start(life.broker.publish("t", b"1"))
    life.start(life.broker.delete("t2"))
    await asyncio.sleep(0)


async def reading_and_publishing(life: Abandoned) -> None:
    await reading(life)
    await publishing(life)


async def blocked(life: Abandoned) -> None:
    await life.broker.subscribe("t", policy="block", buffer=1).__aenter__()
    await life.broker.publish("t", b"1")
    for _ in range(2):
        life.start(life.broker.publish("t", b"2"))
    await turns()


async def watching(life: Abandoned) -> None:
    await life.broker.subscribe("t").__aenter__()
    life.start(life.broker.topic("t").publish_and_wait(b"1"))
    await until(lambda: log_of(life.broker, "t").end == 2)
    await turns()


@pytest.mark.parametrize("use", [reading, publishing, reading_and_publishing, blocked, watching])
def test_closing_after_the_loop_lets_the_folder_go(tmp_path: Path, use: Callable[[Abandoned], Awaitable[None]]) -> None:
    disk = Disk()
    broker = open_on(disk, tmp_path)

    async def begin(life: Abandoned) -> None:
        await broker.publish("t", b"0")
        await broker.publish("t2", b"0")
        await use(life)

    life = Abandoned(broker)
    life.after(begin)
    broker.close()
    broker.close()
    assert list(broker.backend.readers) == []

    async def again() -> int:
        async with open_on(disk, tmp_path) as opened:
            return opened.statistics().topics["t"].end

    assert asyncio.run(again()) == (1 if use is reading else 2), "what was handed over is stored"
    with pytest.raises(BrokerClosed):
        asyncio.run(_awaited(broker.publish("t", b"x")))


async def test_whatever_fails_in_closing_the_folder_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    broker = await open_on(disk, tmp_path).__aenter__()

    drain = commits_of(broker).drain

    def broken() -> None:
        drain()
        raise RuntimeError("a bug")

    monkeypatch.setattr(commits_of(broker), "drain", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        broker.close()
    async with open_on(disk, tmp_path):
        pass


async def test_a_name_can_be_forgotten_unless_it_has_a_reader(runnel_broker: Broker) -> None:
    await runnel_broker.topic("t").publish_many(["a", "b", "c"])
    async with runnel_broker.subscribe("t", name="n") as records:
        await anext(records)
        await anext(records)
        with pytest.raises(NameInUse):
            await runnel_broker.forget("n")
    await runnel_broker.forget("n")
    with pytest.raises(UnknownName):
        await runnel_broker.forget("n")
    async with runnel_broker.subscribe("t", name="n") as records:
        assert (await anext(records)).offset == 0, "it begins anew"


async def test_what_was_forgotten_is_forgotten_after_a_restart(tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as broker:
        await broker.topic("t").publish_many(["a", "b", "c"])
        for name in ("one", "two"):
            async with broker.subscribe("t", name=name) as records:
                await anext(records)
                await anext(records)
        async with broker.subscribe("t", group="g") as deliveries:
            async for delivery in deliveries:
                await delivery.ack()
                break
        await broker.forget("one")
        await broker.forget_group("g", "t")
    async with runnel.open(tmp_path) as broker:
        async with broker.subscribe("t", name="one") as one, broker.subscribe("t", name="two") as two:
            assert ((await anext(one)).offset, (await anext(two)).offset) == (0, 1)
        with pytest.raises(runnel.UnknownGroup):
            broker.group("g", "t")
