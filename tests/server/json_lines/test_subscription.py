"""A subscription writes while somebody reads, and is over when it is told so."""

import asyncio
import json
from typing import Any

import pytest

import runnel
from runnel.core.errors import OffsetOutOfRange
from runnel.server.json_lines.subscription import TAKE_RECORDS, JsonLinesSubscription


class Outlet:
    """A client that reads when the test says so."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.wrote = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.lines += [json.loads(line) for line in data.splitlines()]
        self.wrote.set()

    async def writable(self) -> None:
        await self.reads.wait()

    async def until(self, count: int) -> None:
        while len(self.lines) < count:
            self.wrote.clear()
            await self.wrote.wait()


def stream(
    subscription: Any, outlet: Outlet, group: str | None = None, credit: int | None = None, name: str | None = None
) -> JsonLinesSubscription:
    opened = b'{"event":"subscribed"}\n'
    numbers = iter(range(1, 1_000_000))
    about: dict[str, Any] = {"topic": "t", "id": "s", "group": group, "name": name, "credit": credit}
    return JsonLinesSubscription(subscription, outlet, opened, lambda _: next(numbers), **about)


async def test_it_says_that_it_is_open_before_anything_else() -> None:
    async with runnel.open() as broker:
        await broker.publish("t", "1")
        outlet, gone = Outlet(), asyncio.Event()
        ours = stream(broker.subscribe("t", start="earliest"), outlet)
        await ours.open(lambda _: gone.set())
        await outlet.until(2)
        assert [line["event"] for line in outlet.lines] == ["subscribed", "message"]
        await ours.close()
        await gone.wait()
        assert outlet.lines[-1]["event"] == "message"


async def test_why_it_cannot_be_opened_is_raised() -> None:
    async with runnel.open() as broker:
        outlet, gone = Outlet(), asyncio.Event()
        with pytest.raises(OffsetOutOfRange):
            await stream(broker.subscribe("t", start=7), outlet).open(lambda _: gone.set())
        await gone.wait()
        assert outlet.lines == []


async def test_nothing_is_taken_without_a_reader() -> None:
    async with runnel.open() as broker:
        topic = broker.topic("t")
        outlet = Outlet()
        ours = stream(broker.subscribe("t", policy="block", buffer=1_000), outlet)
        await ours.open(lambda _: None)
        outlet.reads.clear()
        await topic.publish_many([b"%d" % n for n in range(900)])
        await outlet.until(2)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(outlet.lines) == 1 + TAKE_RECORDS
        outlet.reads.set()
        await outlet.until(901)
        assert [line["offset"] for line in outlet.lines[1:]] == list(range(900))
        await ours.close()


async def test_large_records_are_written_one_at_a_time() -> None:
    async with runnel.open() as broker:
        outlet = Outlet()
        ours = stream(broker.subscribe("t"), outlet)
        await ours.open(lambda _: None)
        outlet.reads.clear()
        await broker.topic("t").publish_many([b"x" * 100_000] * 5)
        await outlet.until(2)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(outlet.lines) == 2
        await ours.close()


async def test_a_cancelled_member_gives_back_what_it_held_at_once() -> None:
    async with runnel.open() as broker:
        outlet = Outlet()
        ours = stream(broker.subscribe("t", group="g"), outlet, "g")
        await ours.open(lambda _: None)
        await broker.publish("t", "1")
        await outlet.until(2)
        assert (outlet.lines[1]["delivery"], outlet.lines[1]["attempt"]) == (1, 1)
        async with broker.subscribe("t", group="g") as others:
            ours.cancel()
            delivery = await anext(aiter(others))
            assert (delivery.value, delivery.attempt) == (b"1", 2)
            await delivery.ack()


async def test_the_end_of_the_broker_is_reported_as_an_end() -> None:
    async with runnel.open() as broker:
        outlet, gone = Outlet(), asyncio.Event()
        await stream(broker.subscribe("t"), outlet).open(lambda _: gone.set())
        broker.close()
        await gone.wait()
        assert outlet.lines[-1] == {"event": "end", "topic": "t", "id": "s"}


async def test_a_failure_of_the_server_ends_it_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def __aenter__(self) -> "Broken":
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def batches(self, _: int) -> Any:
            raise ZeroDivisionError
            yield

    outlet, gone = Outlet(), asyncio.Event()
    await stream(Broken(), outlet).open(lambda _: gone.set())
    await gone.wait()
    assert outlet.lines[-1]["code"] == "runnel_error"
    assert "ZeroDivisionError" in caplog.text


# -- credit -----------------------------------------------------------------------------------------------------


async def test_no_more_is_sent_than_was_asked_for() -> None:
    async with runnel.open() as broker:
        outlet = Outlet()
        ours = stream(broker.subscribe("t"), outlet, credit=0)
        await ours.open(lambda _: None)
        await broker.topic("t").publish_many([b"%d" % n for n in range(100)])
        sent = 0
        for asked in (1, 2, TAKE_RECORDS, 5):
            ours.allow(asked)
            sent += asked
            await outlet.until(1 + sent)
            for _ in range(10):
                await asyncio.sleep(0)
            assert [line["offset"] for line in outlet.lines[1:]] == list(range(sent))
            assert ours.credit == 0
        ours.allow(1000)
        await outlet.until(101)
        assert ours.credit == 1000 - 28
        await ours.close()


async def test_a_gap_costs_nothing_and_is_reported_where_it_is() -> None:
    async with runnel.open() as broker:
        topic = broker.topic("t", retention_count=3)
        outlet = Outlet()
        ours = stream(broker.subscribe("t", buffer=TAKE_RECORDS), outlet, credit=1)
        await ours.open(lambda _: None)
        for n in range(10 * TAKE_RECORDS):
            await topic.publish(b"%d" % n)
        await outlet.until(2)
        ours.allow(1000)
        while outlet.lines[-1].get("offset") != 10 * TAKE_RECORDS - 1:
            await outlet.until(len(outlet.lines) + 1)
        missed = [line["count"] for line in outlet.lines if line["event"] == "gap"]
        told = [line["offset"] for line in outlet.lines if line["event"] == "message"]
        assert missed
        assert sum(missed) + len(told) == 10 * TAKE_RECORDS
        assert told == sorted(told)
        await ours.close()


async def test_a_name_stands_behind_what_was_sent_and_not_behind_what_waits() -> None:
    async with runnel.open() as broker:
        await broker.topic("t").publish_many([b"%d" % n for n in range(10)])
        outlet = Outlet()
        ours = stream(broker.subscribe("t", name="me"), outlet, credit=3, name="me")
        await ours.open(lambda _: None)
        await outlet.until(4)
        for _ in range(10):
            await asyncio.sleep(0)
        await ours.close()
        async with broker.subscribe("t", name="me") as again:
            assert (await anext(again)).offset == 3


async def test_it_ends_while_it_waits_for_credit() -> None:
    async with runnel.open() as broker:
        outlet, gone = Outlet(), asyncio.Event()
        ours = stream(broker.subscribe("t"), outlet, credit=0)
        await ours.open(lambda _: gone.set())
        await broker.publish("t", "1")
        for _ in range(5):
            await asyncio.sleep(0)
        await ours.close()
        await gone.wait()
        assert [line["event"] for line in outlet.lines] == ["subscribed"]
