"""Events: each record once or a told gap, whatever is cut off, whoever restarts."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import runnel
from runnel.server import Server
from runnel.server.http import event_stream
from tests.brokers import local_broker
from tests.nightly import nightly_beyond
from tests.server.http.browser import Browser, serving, web


@asynccontextmanager
async def folder(path: Path) -> AsyncIterator[Server]:
    async with serving(runnel.open(path, share=False, fsync="os")) as server:
        yield server


QUERIES = ("topic=a.1", "topic=a.1&topic=b", "pattern=a.*&topic=b", "pattern=>", "topic=late", "topic=a.1&topic=late")
TOPICS = ("a.1", "a.2", "b", "late")


def having(count: int) -> Callable[[Browser], object]:
    """Enough is so many records; 0: that the stream has begun."""
    return lambda browser: browser.readies and len(browser.records) >= count


def ending_with(payload: str) -> Callable[[Browser], object]:
    return lambda browser: browser.payloads[-1:] == [payload]


def reads(query: str, topic: str) -> bool:
    wanted = [part.partition("=")[2] for part in query.split("&")]
    return any(one in (topic, ">") or (one == "a.*" and topic.startswith("a.")) for one in wanted)


@pytest.mark.parametrize("seed", nightly_beyond(1, range(4)))
async def test_each_record_comes_once_through_cuts_and_restarts(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams are cut at any byte, the server restarts, records go to topics that are read and that are not."""
    monkeypatch.setattr(event_stream, "TAKE_RECORDS", 7)
    chance = random.Random(seed)
    browsers = [Browser("", query + "&start=earliest") for query in QUERIES]
    expected: dict[int, list[str]] = {number: [] for number in range(len(QUERIES))}
    count = 0
    for life in range(4):
        async with folder(tmp_path) as server:
            for _ in range(4):
                for _ in range(chance.randrange(12)):
                    topic = chance.choice(TOPICS[: 3 + (life > 1)])
                    text = f"{topic}/{count}"
                    await server.broker.publish(topic, text, key=chance.choice([None, "k"]))
                    for number, query in enumerate(QUERIES):
                        if reads(query, topic):
                            expected[number].append(text)
                    count += 1
                for browser in chance.sample(browsers, 3):
                    browser.url = f"{server.listeners[0].url}/events?{browser.query}"
                    number = browsers.index(browser)
                    most = chance.choice([None, chance.randrange(3000)])
                    wanted = len(expected[number])
                    if wanted > len(browser.records) or most is not None:
                        cut = most if wanted > len(browser.records) else min(most or 0, 60)
                        await browser.read(having(wanted), cut)
    async with folder(tmp_path) as server:
        for number, browser in enumerate(browsers):
            browser.url = f"{server.listeners[0].url}/events?{browser.query}"
            if len(browser.records) < len(expected[number]):
                await browser.read(having(len(expected[number])))
            assert browser.payloads == expected[number], browser.query
            assert browser.gaps == []


@pytest.mark.parametrize("seed", nightly_beyond(2, range(4)))
async def test_records_removed_by_retention_are_reported_and_nothing_else_is_missing(tmp_path: Path, seed: int) -> None:
    """Of each topic: what came and what was told as missed add up to what was published, and nothing comes twice."""
    chance = random.Random(seed)
    where = None if seed % 2 else tmp_path
    async with serving(runnel.open(where)) as server:
        broker, url = server.broker, server.listeners[0].url
        topics = [broker.topic(name, retention_count=50) for name in ("a", "b")]
        for topic in topics:
            await topic.declare()
        browsers = [Browser(url, query) for query in ("topic=a&start=earliest", "topic=a&topic=b&start=earliest")]
        published: list[str] = []
        for _ in range(6):
            for _ in range(chance.randrange(1, 200)):
                topic = chance.choice(topics)
                published.append(f"{topic.name}/{len(published)}")
                await topic.publish(published[-1].encode())
            for browser in browsers:
                mine = [one for one in published if one[0] == "a" or "b" in browser.query]
                await browser.read(ending_with(mine[-1]))
        for browser in browsers:
            mine = [one for one in published if one[0] == "a" or "b" in browser.query]
            seen = browser.payloads
            assert len(seen) == len(set(seen))
            missing = len(set(mine) - set(seen))
            assert missing == 0 or browser.gaps
            assert sum(gap["count"] or 0 for gap in browser.gaps) == missing
            at = [mine.index(one) for one in seen]
            assert at == sorted(at)


async def test_history_that_memory_has_forgotten_is_reported_to_several_topics() -> None:
    async with serving() as server:
        broker = server.broker
        for name in ("a", "b"):
            await broker.topic(name, retention_count=10).publish(b"first")
        browser = Browser(server.listeners[0].url, "topic=a&topic=b&start=earliest")
        await browser.read(lambda one: len(one.records) == 2)
        for number in range(20_000):
            await broker.publish("ab"[number % 2], b"%d" % number)
        await browser.read(lambda one: len(one.records) == 22)
        assert len(browser.gaps) >= 1
        assert browser.payloads[2:] == [str(number) for number in range(19_980, 20_000)]


async def test_a_topic_deleted_while_it_has_no_reader_is_reported() -> None:
    async with serving() as server:
        broker, url = server.broker, server.listeners[0].url
        await broker.publish("a", b"1")
        await broker.publish("b", b"1")
        browsers = [Browser(url, query) for query in ("topic=a&start=earliest", "topic=a&topic=b&start=earliest")]
        for browser in browsers:
            await browser.read(lambda one: one.records and one.records[-1]["topic"] == one.query[-16])
        await broker.publish("a", b"never read")
        await broker.delete("a")
        await broker.publish("a", b"new")
        for browser in browsers:
            await browser.read(lambda one: one.payloads[-1] == "new")
            assert len(browser.gaps) == 1
            assert "deleted" in browser.gaps[0]["reason"]
            assert browser.gaps[0]["count"] is None
            await browser.read(lambda one: len(one.readies) >= 3)
            assert len(browser.gaps) == 1  # told once


async def test_a_broker_in_memory_that_was_replaced_is_reported_and_all_its_records_follow() -> None:
    browser = Browser("", "topic=t")
    for life in range(2):
        async with serving() as server:
            browser.url = f"{server.listeners[0].url}/events?topic=t"
            await server.broker.publish("t", b"%d" % life)
            await browser.read(having(life))
    assert browser.payloads == ["1"]
    assert "another broker" in browser.gaps[0]["reason"]
    assert [ready["resumed"] for ready in browser.readies] == [False, False]


async def test_an_id_in_the_query_counts_and_the_header_wins() -> None:
    async with web() as (broker, client):
        await broker.topic("t").publish_many([b"0", b"1", b"2", b"3"])
        url = str(client.base_url).rstrip("/")
        ids = []
        for count in (1, 3):
            browser = Browser(url, "topic=t&start=earliest")
            await browser.read(having(count))
            ids.append(browser.last_id)
        by_query = Browser(url, f"topic=t&lastEventId={ids[0]}")
        await by_query.read(lambda one: len(one.records) == 3)
        assert by_query.payloads == ["1", "2", "3"]
        by_header = Browser(url, f"topic=t&lastEventId={ids[0]}")
        by_header.last_id = ids[1]
        await by_header.read(lambda one: one.records)
        assert by_header.payloads == ["3"]


@pytest.mark.parametrize(
    ("query", "headers", "status", "code"),
    [
        ("", {}, 400, "invalid_option"),
        ("topic=a%0Ab", {}, 400, "invalid_pattern"),
        ("topic=a%00", {}, 400, "invalid_pattern"),
        ("topic=%FF", {}, 400, "invalid_option"),
        ("pattern=a.%3E.b", {}, 400, "invalid_pattern"),
        ("topic=" + "x" * 300, {}, 400, "invalid_pattern"),
        ("topic=a&start=soon", {}, 400, "invalid_option"),
        ("topic=a&topic=b&start=3", {}, 400, "invalid_option"),
        ("topic=a&lastEventId=nonsense", {}, 400, "invalid_option"),
        ("topic=a&lastEventId=a%0D%0Ab", {}, 400, "invalid_option"),
        ("topic=a", {"last-event-id": "a b"}, 400, "invalid_option"),
        ("topic=a&topic=b&topic=c", {}, 503, "limit_exceeded"),
    ],
)
async def test_what_makes_no_sense_is_refused(query: str, headers: dict[str, str], status: int, code: str) -> None:
    async with web(max_subscriptions=2) as (broker, client):
        answer = await client.get(f"/events?{query}", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        assert await broker.topics() == []
        assert broker.statistics().subscriptions == ()


async def test_more_streams_than_there_may_be_are_refused_until_one_ends() -> None:
    async with serving(max_streams=1) as server:
        browser = Browser(server.listeners[0].url, "topic=t")
        reading = asyncio.ensure_future(browser.read(lambda one: one.records))
        while not browser.readies:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        late = Browser(server.listeners[0].url, "topic=t")
        with pytest.raises(AssertionError, match="max_streams"):
            await late.read(lambda one: one.readies)
        await server.broker.publish("t", b"x")
        await reading
        while server.broker.statistics().subscriptions:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        await late.read(lambda one: one.readies)


async def test_a_stream_makes_no_topic_and_joins_when_it_is_made() -> None:
    async with serving(local_broker(auto_create=False)) as server:
        browser = Browser(server.listeners[0].url, "topic=later&topic=other")
        reading = asyncio.ensure_future(browser.read(lambda one: one.records))
        while not browser.readies:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        assert await server.broker.topics() == []
        topic = server.broker.topic("later")
        await topic.declare()
        await topic.publish(b"here")
        await reading
        assert browser.payloads == ["here"]


async def test_a_topic_covered_twice_comes_once() -> None:
    async with serving() as server:
        browser = Browser(server.listeners[0].url, "topic=a.b&pattern=a.*&pattern=>&start=earliest")
        reading = asyncio.ensure_future(browser.read(lambda one: len(one.records) == 2))
        while not browser.readies:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        await server.broker.publish("a.b", b"1")
        await server.broker.publish("a.b", b"2")
        await reading
        assert browser.payloads == ["1", "2"]


async def test_a_deletion_that_was_seen_is_not_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT", 0.02)
    async with serving() as server:
        broker = server.broker
        await broker.publish("a", b"1")
        await broker.publish("b", b"1")
        browser = Browser(server.listeners[0].url, "topic=a&topic=b&start=earliest")
        reading = asyncio.ensure_future(browser.read(lambda one: one.payloads[-1:] == ["done"] and one.comments))
        while len(browser.records) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        await broker.delete("b")  # all of it was read
        await broker.publish("elsewhere", b"so that there is a new place to tell")
        seen = browser.last_id
        while browser.last_id == seen:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        await broker.publish("a", b"done")
        browser.comments = 0
        await reading
        await broker.publish("a", b"after")
        await browser.read(lambda one: one.payloads[-1:] == ["after"])
        assert browser.payloads == ["1", "1", "done", "after"]
        assert browser.gaps == []
