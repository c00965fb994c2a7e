"""The page of the trades example: candles take the place of what they were, alerts come on top, nonsense is no harm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Page, expect

import runnel
from examples.trades.app import WebServer
from tests.browser.joblogs import free_port


class Shown:
    """A broker, and the page before it."""

    def __init__(self, broker: runnel.Broker, url: str) -> None:
        self.broker, self.url = broker, url

    async def candle(self, symbol: str, number: int, close: float, **other: object) -> None:
        """Say how a candle is now."""
        start = f"2026-01-05T12:{number * 5 // 60:02}:{number * 5 % 60:02}.000Z"
        prices = {"open": 100.0, "high": max(100.0, close) + 1, "low": min(100.0, close) - 1, "close": close}
        told = {"symbol": symbol, "start": start, **prices, "volume": 50 + number, "ticks": 3, **other}
        await self.broker.publish("trades.candles", json.dumps(told).encode(), key=symbol)

    async def alert(self, symbol: str, before: float, price: float) -> None:
        """Say that a price jumped."""
        told = {"symbol": symbol, "at": "2026-01-05T12:00:01.000Z", "before": before, "price": price}
        value = json.dumps({**told, "change": price / before - 1}).encode()
        await self.broker.publish("trades.alerts", value, key=symbol)


@pytest_asyncio.fixture(loop_scope="session")
async def shown(tmp_path: Path) -> AsyncIterator[Shown]:
    async with runnel.open(tmp_path / "data") as broker:
        for name in ("trades.candles", "trades.alerts"):
            await broker.topic(name).declare()
        port = free_port()
        web = WebServer(broker, port)
        serving = asyncio.create_task(web.serve())
        while not web.started:  # noqa: ASYNC110  # it says so in no other way
            await asyncio.sleep(0.02)
        yield Shown(broker, f"http://127.0.0.1:{port}")
        web.should_exit = web.force_exit = True
        broker.close()  # with it event streams end
        await serving
        await web.lifespan.shutdown()  # left out by `force_exit`: a task would stay behind


async def test_candles_and_alerts_are_shown_as_they_come(shown: Shown, page: Page) -> None:
    for number in range(3):
        await shown.candle("BOLT", number, 101.0)
        await shown.candle("ACME", number, 99.0)
    await page.goto(shown.url)
    charts = page.locator("article.chart")
    await expect(charts.locator("h2")).to_have_text(["ACME", "BOLT"])
    await expect(charts.first.locator("rect.candle.down")).to_have_count(3)
    await expect(charts.last.locator("rect.candle.up")).to_have_count(3)
    await expect(page.locator("#connection")).to_have_text("live")
    await expect(page.locator("#calm")).to_be_visible()
    await shown.candle("ACME", 2, 104.0)  # the same one, grown
    await expect(charts.first.locator(".price")).to_have_text("104.00")
    await expect(charts.first.locator("rect.candle")).to_have_count(3)
    await shown.alert("ACME", 100.0, 104.0)
    await shown.alert("BOLT", 100.0, 96.0)
    await expect(page.locator("#alerts li .change")).to_have_text(["▼ −4.0 %", "▲ +4.0 %"])
    await expect(page.locator("#calm")).to_be_hidden()


async def test_what_is_no_candle_is_not_shown_and_names_are_text(shown: Shown, page: Page) -> None:
    for value in (b"", b"{", b"[]", b"null", b'{"symbol": "X"}', b'{"symbol": 5, "start": "2026-01-05T12:00:00Z"}'):
        await shown.broker.publish("trades.candles", value)
        await shown.broker.publish("trades.alerts", value)
    await shown.candle("<b id=bold>", 0, 101.0)
    await page.goto(shown.url)
    await expect(page.locator("article.chart h2")).to_have_text(["<b id=bold>"])
    await expect(page.locator("#bold")).to_have_count(0)
    await expect(page.locator("#alerts li")).to_have_count(0)


async def test_the_candle_under_the_mouse_is_described_in_words(shown: Shown, page: Page) -> None:
    for number in range(36):
        await shown.candle("ACME", number, 99.0 + number)
    await page.goto(shown.url)
    await expect(page.locator("rect.candle")).to_have_count(36)
    picture = page.locator("article.chart svg")
    box = await picture.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 3, box["y"] + 40)
    await expect(page.locator(".details")).to_contain_text("C 99.00")
    await page.mouse.move(0, 0)
    await expect(page.locator(".details")).to_contain_text("C 134.00")
