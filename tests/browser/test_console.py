"""The console, in a real browser: every view, live; through crashes, slow lines and several tabs; by keyboard alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Locator, Page, expect

import runnel
from runnel.server.server import Server
from tests.browser.accessibility import faults
from tests.browser.complaints import Complaints
from tests.browser.demo import HOSTILE, HOSTILE_TOPIC, demo
from tests.browser.keyboard import Keyboard
from tests.browser.served import Served

VIEWS = {
    "topics": "inventory.levels",
    "topics/orders.placed": "cents",
    "subscribers": "slow-exporter",
    "groups": "biller-1",
    "dead-letters": "was declined by the bank",
    "journal": "Sync latency",
    "relays": "the slot is lost",
    "analytics": "Spark is starting",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lively(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """A server on which much is going on."""
    async with demo(tmp_path_factory.mktemp("lively"), topics=1_200) as server:
        yield server


async def look(page: Page, url: str, view: str = "topics") -> None:
    """Open a view, and wait until figures come."""
    await page.goto(f"{url}/#/{view}")
    await expect(page.locator("#state-text")).to_have_text("live")


def tail(page: Page) -> Locator:
    """The lines of a topic's tail, the newest first."""
    return page.locator("ol.tail > li")


async def offsets(page: Page) -> list[int]:
    """The offsets of the lines, the oldest first."""
    shown = await page.locator("ol.tail .offset").all_text_contents()
    return [int(one) for one in reversed(shown)]


async def until_shown(page: Page, offset: int) -> None:
    await expect(page.locator("ol.tail .offset").first).to_have_text(str(offset))


async def bury(server: Served, *values: str) -> None:
    """Publish these, and have a group give them up."""
    async with runnel.open(server.native) as broker:
        async with broker.subscribe("orders", group="billing", start="earliest") as deliveries:
            for value in values:
                await broker.publish("orders", value)
                await (await anext(deliveries)).reject(f"no such shop: {value}")


# -- looking ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_view_shows_what_goes_on_and_can_be_read_by_everybody(
    scheme: Any, chromium: Browser, complaints: Complaints, lively: Server
) -> None:
    context = await chromium.new_context(color_scheme=scheme, reduced_motion="reduce")
    await complaints.hear(context)
    page = await context.new_page()
    for view, words in VIEWS.items():
        await look(page, lively.listeners[0].url, view)
        await expect(page.locator("#view").get_by_text(words).first).to_be_visible()
        assert await faults(page) == [], view
    await context.close()
    assert complaints.unexpected == []


async def test_a_topic_is_found_among_thousands_and_sorted_by_the_server(page: Page, lively: Server) -> None:
    await look(page, lively.listeners[0].url)
    rows = page.locator("tbody tr")
    await expect(page.get_by_text(re.compile(r"1–50 of 1,2\d\d topics"))).to_be_visible()
    await expect(rows).to_have_count(50)
    await page.get_by_role("button", name="Next").click()
    await expect(page.get_by_text(re.compile(r"51–100 of"))).to_be_visible()
    await page.get_by_role("searchbox", name="Filter").fill("00777")
    await expect(rows).to_have_count(1)
    await expect(rows.first).to_contain_text("jobs.00777.log")
    await page.get_by_role("searchbox", name="Filter").fill("")
    await page.get_by_role("button", name="Records/s").click()
    await expect(rows.first).to_contain_text("sensors.temperature")
    await expect(page.locator("th[aria-sort]")).to_have_attribute("aria-sort", "descending")


async def test_what_records_hold_is_text_whatever_it_looks_like(page: Page, lively: Server) -> None:
    await look(page, lively.listeners[0].url, "topics/" + HOSTILE_TOPIC.replace("/", "%2F").replace("<", "%3C"))
    await expect(tail(page).first).to_contain_text(HOSTILE)
    await tail(page).first.locator("summary").click()
    await expect(page.locator(".inside").first).to_contain_text("x-note")
    await look(page, lively.listeners[0].url, "dead-letters/dead-letters.hostile")
    await expect(page.locator("ol.letters")).to_contain_text(HOSTILE)
    assert await page.evaluate("document.querySelectorAll('#view img, #view script').length") == 0
    assert "owned" not in await page.title()


async def test_bytes_that_are_no_text_are_shown_as_hex_and_cut(page: Page, lively: Server) -> None:
    await look(page, lively.listeners[0].url, "topics/binary.blobs")
    await tail(page).first.locator("summary").click()
    inside = page.locator(".inside").first
    await expect(inside).to_contain_text("not UTF-8: in hex")
    await expect(inside).to_contain_text("89 50 4e 47")
    await expect(inside).to_contain_text("the beginning is shown")


async def test_the_tail_is_filtered_paused_and_goes_back_in_time(page: Page, one_server: Served) -> None:
    await one_server.publish("filtered", *(f"line {number}" for number in range(20)))
    await one_server.publish("filtered", "with a key", runnel_key="k7")
    await look(page, one_server.url, "topics/filtered")
    await expect(tail(page)).to_have_count(21)
    await page.get_by_role("searchbox", name="Filter").fill("line 1")
    await expect(tail(page)).to_have_count(11)  # 1, and 10 to 19
    await page.get_by_role("searchbox", name="Filter").fill("")
    await page.get_by_role("searchbox", name="Key").fill("k7")
    await page.keyboard.press("Enter")
    await expect(tail(page)).to_have_count(1)
    await page.get_by_role("searchbox", name="Key").fill("")
    await page.keyboard.press("Enter")
    await expect(tail(page)).to_have_count(21)

    await page.get_by_role("button", name="Pause").click()
    await one_server.publish("filtered", "while it is paused")
    await expect(page.get_by_text("Paused: 1 new record since.")).to_be_visible()
    await expect(tail(page)).to_have_count(21)
    await page.get_by_role("button", name="Pause").click()
    await expect(tail(page).first).to_contain_text("while it is paused")

    await page.get_by_label("From a time on").fill("2020-01-01T00:00:00")
    await page.get_by_role("button", name="Go").click()
    await expect(tail(page)).to_have_count(22)
    await expect(tail(page).first).to_contain_text("line 0")
    await page.get_by_role("button", name="Back to live").click()
    await expect(tail(page).first).to_contain_text("while it is paused")


async def test_colours_are_those_that_were_chosen_also_after_a_reload(page: Page, one_server: Served) -> None:
    await look(page, one_server.url)
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = await page.evaluate(ground)
    await page.get_by_label("Colours").select_option("dark")
    dark = await page.evaluate(ground)
    assert light != dark
    await page.reload()
    assert await page.evaluate(ground) == dark


# -- trouble ----------------------------------------------------------------------------------------------------


async def test_a_server_that_is_killed_and_comes_back_costs_no_line_and_repeats_none(
    page: Page, server: Served, complaints: Complaints
) -> None:
    complaints.expect_a_server_that_is_down()
    await server.publish("t", *map(str, range(10)))
    await look(page, server.url, "topics/t")
    await until_shown(page, 9)
    await server.publish("t", *map(str, range(10)))
    await server.kill()
    await expect(page.locator("#state-text")).to_contain_text("no connection")
    await server.start()
    await server.publish("t", *map(str, range(10)))
    await until_shown(page, 29)
    assert await offsets(page) == list(range(30))
    await expect(page.locator("#state-text")).to_have_text("live")
    await expect(page.get_by_text("missing here")).to_have_count(0)


async def test_two_tabs_show_the_same_and_one_sees_what_the_other_publishes(
    context: BrowserContext, one_server: Served
) -> None:
    await one_server.publish("both", "first")
    one, other = await context.new_page(), await context.new_page()
    for tab in (one, other):
        await look(tab, one_server.url, "topics/both")
        await until_shown(tab, 0)
    await one.get_by_label("Value", exact=True).fill('{"from": "one"}')
    await one.get_by_role("button", name="Publish").click()
    await expect(one.get_by_text("Stored in both at offset 1")).to_be_visible()
    for tab in (one, other):
        await expect(tail(tab).first).to_contain_text('{"from": "one"}')
        assert await offsets(tab) == [0, 1]


async def test_a_tab_on_a_slow_line_and_a_slow_machine_shows_the_newest_and_stays_usable(
    page: Page, context: BrowserContext, one_server: Served
) -> None:
    await one_server.publish("slow", "first")
    await look(page, one_server.url, "topics/slow")
    await until_shown(page, 0)
    session = await context.new_cdp_session(page)
    slow = {"offline": False, "latency": 300, "downloadThroughput": 400_000, "uploadThroughput": 100_000}
    await session.send("Network.emulateNetworkConditions", slow)
    await session.send("Emulation.setCPUThrottlingRate", {"rate": 4})
    for _ in range(4):
        await one_server.publish("slow", *(f"{number} {'x' * 500}" for number in range(500)))
    await until_shown(page, 2000)
    shown = await offsets(page)
    assert shown == list(range(2001 - len(shown), 2001))
    assert len(shown) == 200  # a page that kept all of them would become slow
    await page.get_by_role("searchbox", name="Filter").fill("499 ")
    await expect(tail(page)).to_have_count(2)  # of the last thousand


async def test_a_tab_that_was_frozen_goes_on_where_it_was(
    page: Page, context: BrowserContext, one_server: Served
) -> None:
    await one_server.publish("frozen", "first")
    await look(page, one_server.url, "topics/frozen")
    await until_shown(page, 0)
    session = await context.new_cdp_session(page)
    await session.send("Page.setWebLifecycleState", {"state": "frozen"})
    await one_server.publish("frozen", *map(str, range(100)))
    await session.send("Page.setWebLifecycleState", {"state": "active"})
    await until_shown(page, 100)
    assert await offsets(page) == list(range(101))


# -- dead letters, and the keyboard ---------------------------------------------------------------------------------


async def test_dead_letters_are_replayed_and_discarded_once_it_is_confirmed(page: Page, server: Served) -> None:
    await bury(server, "a", "b", "c")
    await look(page, server.url, "dead-letters")
    letters = page.locator("ol.letters > li")
    await expect(letters).to_have_count(3)
    await expect(letters.first).to_contain_text("no such shop: a")
    await letters.first.get_by_role("button", name="Discard").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    await expect(letters).to_have_count(3)
    await letters.first.get_by_role("button", name="Discard").click()
    await page.get_by_role("dialog").get_by_role("button", name="Discard").click()
    await expect(letters).to_have_count(2)
    await letters.first.get_by_role("checkbox").check()
    await page.get_by_role("button", name="Replay 1", exact=True).click()
    await page.get_by_role("dialog").get_by_role("button", name="Replay").click()
    await expect(page.get_by_text("1 letter put back.").first).to_be_visible()
    await expect(letters).to_have_count(1)
    async with runnel.open(server.native) as broker:
        async with broker.subscribe("orders", start="earliest") as records:
            assert [(await anext(records)).value for _ in range(4)] == [b"a", b"b", b"c", b"b"]


async def test_everything_can_be_done_with_the_keyboard_alone(page: Page, server: Served) -> None:
    await bury(server, "a", "b")
    await server.publish("greetings", "hello")
    await look(page, server.url)
    keys = Keyboard(page)
    await keys.open("Skip to the content")
    assert await page.evaluate("document.activeElement.id") == "main"
    await keys.write("Filter", "greet")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await keys.open("greetings", "a")
    await expect(page.get_by_role("heading", name="greetings")).to_be_focused()  # a screen reader says where one is
    await until_shown(page, 0)

    await keys.to("Pause")
    await keys.press("Space")
    await expect(page.get_by_text("Paused:")).to_be_visible()
    await keys.press("Enter")
    await expect(page.get_by_text("Paused:")).to_have_count(0)
    await keys.to("Records of greetings", "ol")  # so that it can be scrolled
    await keys.open("", "summary")
    await expect(page.locator(".inside").first).to_be_visible()
    await keys.write("Value", "by hand")
    await keys.open("Publish", "button")
    await expect(page.get_by_text("Stored in greetings at offset 1")).to_be_visible()
    await until_shown(page, 1)

    for view in ("Subscribers", "Groups", "Journal", "Dead letters"):
        await page.evaluate("document.activeElement.blur()")
        await keys.open(view, "a")
        await expect(page.get_by_role("heading", level=1)).to_have_text(view)
    letters = page.locator("ol.letters > li")
    await expect(letters).to_have_count(2)
    await keys.open("Replay the letter at 0")
    await keys.to("Replay", "button")
    await keys.press()
    await expect(letters).to_have_count(1)
    await keys.open("Discard the letter at 1")
    await keys.press("Escape")
    await asyncio.sleep(0)
    await expect(letters).to_have_count(1)
    await keys.press()  # the focus is back where it was
    await keys.open("Discard", "button")
    await expect(letters).to_have_count(0)
    await keys.to("Colours")


async def test_analytics_are_plotted_over_minutes_hours_and_days(page: Page, lively: Server) -> None:
    await look(page, lively.listeners[0].url, "analytics")
    plots = page.locator(".plots section")
    await expect(plots).to_have_count(6)
    throughput = plots.filter(has_text="Throughput")
    line = throughput.locator("path.series-0")
    await expect(line).to_have_attribute("d", re.compile(r"M.*L"))
    await expect(page.get_by_text("analytics: Spark is starting")).to_be_visible()
    slow = page.locator("tr").filter(has_text="slow-exporter")
    await expect(slow).to_contain_text("slow: drops")
    for span in ("24 hours", "7 days"):
        before = await throughput.locator("svg text").last.text_content()
        await page.get_by_label(span).check()
        await expect(throughput.locator("svg text").last).not_to_have_text(before or "")
        await expect(page.locator("tr").filter(has_text="orders.placed").first).to_be_visible()
    moved = await line.get_attribute("d")
    await page.get_by_label("15 minutes").check()
    await expect(line).not_to_have_attribute("d", moved or "")
