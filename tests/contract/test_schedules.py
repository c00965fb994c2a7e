"""Schedules: functions called at times, once however many processes run them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import runnel
from runnel import Broker, Firing
from runnel.testing.clock import START, JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.lives import Folder
from tests.contract.reading import at_rest, soon, until


@asynccontextmanager
async def at_work(*brokers: Broker) -> AsyncIterator[None]:
    """The handlers of brokers, running."""
    running = [asyncio.create_task(broker.run(signals=False)) for broker in brokers]
    try:
        for broker in brokers:
            await soon(broker.ready())
        yield
    finally:
        for broker in brokers:
            broker.stop()
        await soon(asyncio.gather(*running))


def twin(broker: Broker) -> Broker:
    """Another broker on the same backend, as another process has one."""
    return Broker(broker.backend)


@on_every_socket
async def test_it_fires_once_at_each_due_time_however_many_run_it(broker: Broker, clock: JumpingClock) -> None:
    fired: list[tuple[str, float]] = []
    brokers = [broker, twin(broker), twin(broker)]
    for number, one in enumerate(brokers):

        @one.every(60, name="tick")
        async def tick(firing: Firing, number: int = number) -> None:
            assert (firing.schedule, firing.missed) == ("tick", False)
            fired.append((f"broker {number}", firing.due.timestamp()))

    async with at_work(*brokers):
        for minute in range(1, 5):
            await clock.advance(60)
            await until(lambda minute=minute: len(fired) >= minute)  # type: ignore[misc]
        await at_rest()
    assert sorted(due for _, due in fired) == [START + 60 * minute for minute in range(1, 5)]
    async with broker.subscribe("schedules.tick", start="earliest") as firings:
        assert len([await soon(anext(firings)) for _ in range(4)]) == 4
    assert await broker.mark("schedule:tick") == (START + 240) * 1000


@pytest.mark.parametrize(("missed", "expected"), [("skip", []), ("once", [7]), ("all", [1, 2, 3, 4, 5, 6, 7])])
@on_every_socket
async def test_what_was_missed_is_made_up_for_by_policy(
    broker: Broker, clock: JumpingClock, missed: str, expected: list[int]
) -> None:
    fired: list[Firing] = []

    @broker.every(3600, missed=missed)
    async def hourly(firing: Firing) -> None:
        fired.append(firing)

    async with at_work(broker):
        pass
    await clock.advance(7 * 3600 + 600)
    async with at_work(broker):
        await until(lambda: len(fired) >= len(expected))
        await at_rest()
        assert [(firing.due.timestamp() - START) / 3600 for firing in fired] == expected
        assert all(firing.missed for firing in fired)
        fired.clear()
        await clock.advance(3000)
        await until(lambda: bool(fired))
    assert [(firing.due.timestamp() - START) / 3600 for firing in fired] == [8]
    assert not fired[0].missed


async def test_a_little_late_is_not_missed(broker: Broker, clock: JumpingClock) -> None:
    fired: list[int] = []

    @broker.every(3600, missed="skip")
    async def hourly() -> None:
        fired.append(1)

    async with at_work(broker):
        pass
    await clock.advance(3630)
    async with at_work(broker):
        await until(lambda: bool(fired))


async def test_a_schedule_survives_a_restart(folder: Folder) -> None:
    fired: list[float] = []

    def scheduled(broker: Broker) -> None:
        @broker.cron("0 9 * * mon-fri", "Europe/Berlin")
        async def morning(firing: Firing) -> None:
            fired.append(firing.due.timestamp())

    async with folder.life() as broker:
        scheduled(broker)
        async with at_work(broker):
            await folder.clock.advance(8 * 3600)  # Thursday, 1 January 2026
            await until(lambda: bool(fired))
    assert fired == [START + 8 * 3600]
    await folder.clock.advance(4 * 24 * 3600)
    async with folder.life() as broker:
        scheduled(broker)
        async with at_work(broker):
            await until(lambda: len(fired) == 2)
    assert fired[1] == START + (4 * 24 + 8) * 3600  # of Friday and Monday, the newest


async def test_a_firing_that_fails_is_tried_again_and_its_result_is_published(
    broker: Broker, clock: JumpingClock
) -> None:
    attempts: list[int] = []

    @broker.every(60, retries=2, backoff=[1], publish="reports")
    async def report() -> dict[str, int]:
        attempts.append(1)
        if len(attempts) < 2:
            raise RuntimeError("not yet")
        return {"attempts": len(attempts)}

    async with at_work(broker), broker.subscribe("reports") as reports:
        await clock.advance(60)
        await until(lambda: len(attempts) == 1)
        await at_rest()
        await clock.advance(2)
        assert (await soon(anext(reports))).value == b'{"attempts":2}'


def test_what_makes_no_sense_is_refused_where_it_is_written() -> None:
    broker = runnel.open()

    @broker.every(60)
    def tick() -> None:
        pass

    wrongs: list[Callable[[], object]] = [
        lambda: broker.every(60)(tick),
        lambda: broker.every(60, name="a b")(tick),
        lambda: broker.every(60, name="other", missed="some")(tick),
        lambda: broker.every(60, name="other", group="g")(tick),
        lambda: broker.every(60, name="other", colour="red")(tick),
    ]
    for wrong in wrongs:
        with pytest.raises(runnel.InvalidOption):
            wrong()
    with pytest.raises(runnel.InvalidOption, match="give the schedule a name"):
        broker.every(1)(lambda: None)
    with pytest.raises(runnel.InvalidOption, match="above 0"):
        broker.every(0)
    with pytest.raises(runnel.InvalidOption, match="cron"):
        broker.cron("at noon")
    with pytest.raises(runnel.InvalidOption, match="tz"):
        broker.cron("@daily", "Europe/Nowhere")
