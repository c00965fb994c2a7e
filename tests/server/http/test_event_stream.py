"""One stream: heartbeats, frozen browsers, ends. On real sockets."""

import asyncio
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import runnel
from runnel.core.backend import SharedSteps
from runnel.server.http import event_stream, sse
from runnel.server.http.event_stream import StreamScheduler
from runnel.server.http.sse import parse_id
from tests.patience import PATIENCE
from tests.server.http.browser import Browser, mounted, serving
from tests.server.native_client import until


def ending_with(payload: str) -> Callable[[Browser], object]:
    return lambda browser: browser.payloads[-1:] == [payload]


async def test_a_stream_says_how_to_come_back_and_where_it_begins() -> None:
    async with serving() as server:
        await server.broker.publish("t", b"before")
        browser = Browser(server.listeners[0].url, "topic=t")
        await browser.read(lambda one: one.readies)
        assert browser.readies == [{"resumed": False, "topics": ["t"]}]
        assert parse_id(browser.last_id).offset == 1
        assert 1000 <= browser.retries[0] <= 3000
        assert browser.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert browser.headers["x-accel-buffering"] == "no"
        await server.broker.publish("t", b"while it was away")
        await browser.read(lambda one: one.records)
        assert browser.payloads == ["while it was away"]  # though it had not seen any event before
        assert browser.readies[1]["resumed"] is True


async def test_retries_differ_from_browser_to_browser() -> None:
    async with serving() as server:
        browser = Browser(server.listeners[0].url, "topic=t")
        for _ in range(5):
            await browser.read(lambda one: one.retries)
        assert len(set(browser.retries)) > 1


@pytest.mark.parametrize("query", ["topic=t", "pattern=*", "topic=t&key=k"])
async def test_no_event_waits_for_a_heartbeat(monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT", 10 * PATIENCE)
    async with serving() as server, mounted(server.broker) as application:
        await server.broker.publish("t", b"it is there, so that it is read by offset")
        browsers = [Browser(server.listeners[0].url, query), Browser(application, query)]
        reading = [asyncio.ensure_future(browser.read(ending_with("9"))) for browser in browsers]
        await until(lambda: all(browser.readies for browser in browsers))
        for number in range(10):  # each when the one before it has arrived, and the streams wait again
            await server.broker.publish("t", b"%d" % number, key=b"k")
            await until(lambda: all(len(one.records) > number for one in browsers))  # noqa: B023 - called at once
        await asyncio.gather(*reading)


async def test_silence_is_filled_with_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT", 0.02)
    async with serving() as server:
        browser = Browser(server.listeners[0].url, "topic=t")
        await browser.read(lambda one: one.comments >= 3)
        assert browser.records == []


@pytest.mark.parametrize("query", ["topic=t&key=mine", "pattern=t*&topic=t&key=mine".replace("t*", "*")])
async def test_what_a_filter_leaves_out_is_not_read_again(monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT", 0.02)
    async with serving() as server:
        broker = server.broker
        browser = Browser(server.listeners[0].url, f"{query}&start=earliest")
        for number in range(10):
            await broker.publish("t", b"%d" % number, key="mine" if number in (2, 5) else "other")
        await browser.read(lambda one: len(one.records) == 2)
        assert browser.payloads == ["2", "5"]
        await browser.read(lambda one: parse_id(one.last_id).sequence == 10)
        await broker.publish("t", b"last", key="mine")
        await browser.read(lambda one: len(one.records) == 3)
        assert browser.payloads == ["2", "5", "last"]


async def test_a_frozen_browser_is_dropped_and_holds_little_and_others_are_not_held_up() -> None:
    async with serving(send_timeout=1.0) as server:
        broker = server.broker
        await broker.topic("t").publish_many([b"x" * 100_000] * 200)
        with socket.create_connection((server.listeners[0].host, server.listeners[0].port)) as frozen:
            frozen.sendall(b"GET /events?topic=t&start=earliest HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await until(lambda: broker.statistics().subscriptions)
            assert server.serving is not None
            (one,) = server.serving.connections
            await until(lambda: one.describe()["unsent_bytes"] > 0)
            assert one.describe()["unsent_bytes"] < 2_000_000
            other = Browser(server.listeners[0].url, "topic=t&start=earliest")
            await other.read(lambda browser: len(browser.records) == 200)
            await until(lambda: not broker.statistics().subscriptions)
            await until(lambda: server.connections == 0)


async def test_a_browser_that_goes_is_noticed_at_once() -> None:
    async with serving() as server:
        browser = Browser(server.listeners[0].url, "topic=a&pattern=b.*")
        await browser.read(lambda one: one.readies)
        await until(lambda: not server.broker.statistics().subscriptions)
        assert server.broker.backend.readers.patterns.covering("b.x") == []


async def test_a_deleted_topic_ends_its_stream_with_the_reason() -> None:
    async with serving() as server:
        await server.broker.publish("t", b"x")
        browser = Browser(server.listeners[0].url, "topic=t&start=earliest")
        reading = asyncio.ensure_future(browser.read(lambda one: one.ends))
        await until(lambda: browser.records)
        await server.broker.delete("t")
        await reading
        assert browser.ends[0]["code"] == "topic_deleted"


async def test_a_closed_broker_ends_its_streams_after_what_was_published(tmp_path: Path) -> None:
    broker = runnel.open(tmp_path)
    async with serving(broker) as server:
        browser = Browser(server.listeners[0].url, "pattern=>&start=earliest")
        reading = asyncio.ensure_future(browser.read(lambda one: False))
        await until(lambda: browser.readies)
        await broker.publish("t", b"last")
        broker.close()
        assert await reading is True
        assert browser.payloads == ["last"]


async def test_a_slow_browser_of_a_topic_in_memory_gets_a_gap_for_what_it_missed() -> None:
    async with serving() as server:
        topic = server.broker.topic("t", retention_count=5)
        await topic.publish(b"first")
        browser = Browser(server.listeners[0].url, "topic=t&start=earliest")
        await browser.read(lambda one: one.records)
        await topic.publish_many([b"%d" % number for number in range(20)])
        await browser.read(lambda one: len(one.records) == 6)
        assert browser.payloads == ["first", "15", "16", "17", "18", "19"]
        assert [(gap["first"], gap["end"], gap["count"]) for gap in browser.gaps] == [(1, 16, 15)]


async def test_delivered_counts_and_waiting_publishers_see_what_was_sent() -> None:
    async with serving() as server:
        browser = Browser(server.listeners[0].url, "topic=t")
        reading = asyncio.ensure_future(browser.read(lambda one: len(one.records) == 2))
        await until(lambda: server.broker.statistics().subscriptions)
        await server.broker.topic("t").publish_and_wait(b"a", timeout=PATIENCE)
        (told,) = server.broker.statistics().subscriptions
        assert (told.delivered, told.lag) == (1, 0)
        await server.broker.publish("t", b"b")
        await reading


@pytest.mark.parametrize("query", ["topic=t", "topic=t&topic=u", "pattern=t.*"])
async def test_the_place_of_a_quiet_stream_keeps_up_with_the_broker(
    monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT", 0.02)
    async with serving() as server:
        await server.broker.publish("t", b"0")
        browser = Browser(server.listeners[0].url, query)
        reading = asyncio.ensure_future(browser.read(lambda one: one.last_id and parse_id(one.last_id).sequence == 6))
        await until(lambda: browser.readies)
        for _ in range(5):
            await server.broker.publish("elsewhere", b"")
        await reading
        assert browser.records == []


@pytest.mark.parametrize("query", ["topic=t", "topic=t&topic=late", "pattern=*", "topic=t&key=k"])
async def test_our_listener_and_a_mounted_application_send_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(event_stream, "TAKE_RECORDS", 16)
    chance = random.Random(query)
    async with serving(runnel.open(tmp_path, fsync="os")) as server, mounted(server.broker) as url:
        broker = server.broker
        browsers = [Browser(one, f"{query}&start=earliest") for one in (server.listeners[0].url, url) for _ in range(3)]
        await broker.publish("t", b"first", key="k")
        reading = [asyncio.ensure_future(one.read(ending_with("last"))) for one in browsers]
        for number in range(40):
            await broker.publish(chance.choice(["t", "t", "u", "late"]), b"%d" % number, key=chance.choice("kl"))
            if chance.random() < 0.2:
                await broker.topic("t").publish_many([b"x" * chance.choice([10, 1_000, 60_000])] * 20)
            await asyncio.sleep(0)
        await broker.publish("t", b"last", key="k")
        await asyncio.gather(*reading)
        for one in browsers[1:]:
            assert one.records == browsers[0].records
            assert (one.last_id, one.gaps) == (browsers[0].last_id, [])


async def test_a_frozen_browser_of_a_mounted_application_is_dropped_too() -> None:
    async with runnel.open() as broker, mounted(broker, send_timeout=0.2) as url:
        await broker.topic("t").publish_many([b"x" * 100_000] * 200)
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port)) as frozen:
            frozen.sendall(b"GET /events?topic=t&start=earliest HTTP/1.1\r\nhost: here\r\n\r\n")
            await until(lambda: broker.statistics().subscriptions)
            await until(lambda: not broker.statistics().subscriptions)


async def test_browsers_side_by_side_are_sent_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    parts = sse.parts

    def counted(records: Any, mark: bytes) -> list[bytes]:
        written.append(len(records))
        return parts(records, mark)

    monkeypatch.setattr(sse, "parts", counted)
    async with serving() as server:
        browsers = [
            Browser(server.listeners[0].url, query) for query in ("topic=t", "topic=t&topic=u") for _ in range(5)
        ]
        reading = [asyncio.ensure_future(one.read(lambda one: len(one.records) == 3)) for one in browsers]
        await until(lambda: all(one.readies for one in browsers))
        for number in range(3):
            await server.broker.publish("t", b"%d" % number)
        await asyncio.gather(*reading)
        assert [one.payloads for one in browsers] == [["0", "1", "2"]] * 10
        assert len(written) <= 6  # once for each way of ending an id, however many browsers there are


async def test_a_client_that_leaves_in_the_middle_keeps_no_caller_waiting() -> None:
    async with serving() as server:
        browsers = [Browser(server.listeners[0].url, "topic=t") for _ in range(30)]
        stay = [asyncio.ensure_future(one.read(lambda one: len(one.records) == 60)) for one in browsers[::3]]
        leave = [asyncio.ensure_future(one.read(lambda one: one.records)) for one in browsers[1::3]]
        await until(lambda: all(one.readies for one in (*browsers[::3], *browsers[1::3])))
        assert server.serving is not None
        for number in range(60):
            await server.broker.publish("t", b"%d" % number)
            if number == 30:
                for one in list(server.serving.connections)[5:8]:
                    one.abort()  # woken, and gone before it is served
            await asyncio.sleep(0)
        await asyncio.gather(*leave)
        ends = await asyncio.gather(*stay, return_exceptions=True)
        assert sum(end is False for end in ends) >= 7
        await until(lambda: not server.broker.statistics().subscriptions)


async def test_a_fault_of_ours_ends_the_stream_it_happened_to_and_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server:
        browsers = [Browser(server.listeners[0].url, f"topic=t&key={key}") for key in ("bad", "good")]
        reading = [asyncio.ensure_future(one.read(lambda one: one.records)) for one in browsers]
        await until(lambda: all(one.readies for one in browsers))
        chunks = sse.chunks

        def broken(slices: Any, form: sse.EventFormat) -> Any:
            if b"bad" in form.keys:
                raise RuntimeError("a bug")
            return chunks(slices, form)

        monkeypatch.setattr(sse, "chunks", broken)
        await server.broker.publish("t", b"x", key="good")
        ends = await asyncio.gather(*reading, return_exceptions=True)
        assert browsers[1].payloads == ["x"]
        assert isinstance(ends[0], httpx.RemoteProtocolError)
        assert "a bug" in caplog.text
        await until(lambda: not server.broker.statistics().subscriptions)


# -- Rounds: everybody who was woken is served, a handful at a time, whatever one of them does ---------------


class One:
    def __init__(self, all: list[tuple[int, SharedSteps]], number: int, again: StreamScheduler | None = None) -> None:
        self.all, self.number, self.again = all, number, again

    def serve(self, steps: SharedSteps) -> None:
        self.all.append((self.number, steps))
        if self.number == 13:
            raise RuntimeError("a bug")
        if self.again is not None:
            self.again.add(One(self.all, self.number + 100))


async def test_a_handful_shares_a_moment_and_others_have_their_turn_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "STREAMS_PER_TURN", 3)
    served: list[tuple[int, SharedSteps]] = []
    made, turns = StreamScheduler(), []
    for number in range(7):
        made.add(One(served, number))
    assert served == []  # nobody is served while somebody publishes
    while len(served) < 7:
        await asyncio.sleep(0)
        turns.append(len(served))
    assert [number for number, _ in served] == list(range(7))
    assert {3, 6, 7} <= set(turns)
    assert len({id(steps) for _, steps in served}) == 3


async def test_who_comes_while_others_are_served_is_served_too() -> None:
    served: list[tuple[int, SharedSteps]] = []
    made = StreamScheduler()
    for turn in range(2):
        made.add(One(served, len(served), made))
        await until(lambda turn=turn: len(served) == 2 * turn + 2)  # type: ignore[misc]
    assert [number for number, _ in served] == [0, 100, 2, 102]


async def test_one_that_fails_does_not_keep_the_others_waiting() -> None:
    served: list[tuple[int, SharedSteps]] = []
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    made = StreamScheduler()
    for number in (12, 13, 14):
        made.add(One(served, number))
    await until(lambda: len(served) == 3)
    made.add(One(served, 15))
    await until(lambda: len(served) == 4)
    assert [number for number, _ in served] == [12, 13, 14, 15]
    assert len(told) == 1
