"""Who publishes and who reads: all of it is counted, latencies count from when a record was due."""

from __future__ import annotations

import asyncio

import pytest

import runnel
from runnel.cli import bench
from runnel.cli.bench import STAMP, BenchLoad, publish, receive
from tests.patience import PATIENCE


def load(**more: object) -> BenchLoad:
    given = {"size": 100, "batch": 10, "in_flight": 1, "messages": 95, "seconds": None, "rate": None} | more
    return BenchLoad("", "t", **given)  # type: ignore[arg-type]


async def test_as_many_as_were_asked_for_in_batches_that_say_when_they_were_due() -> None:
    async with runnel.open() as broker, broker.subscribe("t", buffer=1000) as reader:
        done = await publish(broker, load(in_flight=3))
        values: list[bytes] = []
        async for batch in reader.batches():
            values += batch.values
            if len(values) == 95:
                break
    assert (done.role, done.count) == ("publisher", 95)
    assert len(done.latencies) == 11  # ten calls, and the largest once more
    assert {len(value) for value in values} == {100}
    stamps = [STAMP.unpack_from(value)[0] / 1e9 for value in values]
    assert stamps == sorted(stamps)
    assert all(done.began <= stamp <= done.ended for stamp in stamps)


async def test_a_rate_is_kept_and_a_late_record_counts_from_when_it_was_due() -> None:
    async with runnel.open() as broker:
        done = await publish(broker, load(messages=20, batch=1, rate=100.0))
        assert done.ended - done.began >= 0.19
        slow = broker.topic("t")

        class Late:
            async def publish(self, value: bytes) -> None:
                await asyncio.sleep(0.05)
                await slow.publish(value)

        class Place:
            def topic(self, _: str) -> Late:
                return Late()

        late = await publish(Place(), load(messages=5, batch=1, rate=100.0))
    assert max(late.latencies) > 0.2  # the fifth was due after 0.04 s, and done after 0.25


async def test_a_time_ends_it() -> None:
    async with runnel.open() as broker:
        done = await publish(broker, load(messages=None, seconds=0.1))
    assert done.count > 0
    assert done.ended - done.began >= 0.1


async def test_a_reader_is_there_before_and_stops_when_it_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async with runnel.open() as broker:
        ready, total = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def expected() -> int:
            return int(await total)

        reading = asyncio.ensure_future(receive(broker, load(), ready.set, expected))
        await ready.wait()
        await publish(broker, load())
        total.set_result(95)
        done = await reading
        assert (done.role, done.count, done.missed) == ("subscriber", 95, 0)
        assert 0 < max(done.latencies) < PATIENCE


async def test_what_was_dropped_is_missed_and_what_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "QUIET_SECONDS", 0.1)
    async with runnel.open() as broker:
        ready, total = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def expected() -> int:
            return int(await total)

        reading = asyncio.ensure_future(receive(broker, load(buffer=100), ready.set, expected))
        await ready.wait()
        await broker.topic("t").publish_many([bytes(100)] * 1500)
        total.set_result(2000)  # 500 more
        done = await reading
    assert (done.count, done.missed) == (100, 1400)
