"""The console, in a real browser: every view, live; through crashes, slow lines and several tabs; by keyboard alone."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
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
    "overview": "Busiest topics",
    "topics": "inventory.levels",
    "topics/orders.placed": "cents",
    "topics/orders.placed?at=0&find=pen": "found among",
    "topics/orders.placed?tab=readers": "ledger",
    "topics/orders.placed?tab=options": "retention_age",
    "topics/orders.placed?tab=chart": "The last hours",
    "subscribers": "slow-exporter",
    "groups": "biller-1",
    "dead-letters": "was declined by the bank",
    "connections": "WebSocket",
    "journal": "Sync latency",
    "relays": "the slot is lost",
    "analytics": "Spark is starting",
    "nonsense": "There is no such page",
}


class Order(msgspec.Struct):
    id: int
    currency: str = "EUR"


CUT_TEXTS = Path(__file__).with_name("cut_texts.js").read_text().partition("\n")[2]


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
    await page.get_by_role("searchbox", name="Find").fill("line 1")
    await expect(tail(page)).to_have_count(11)  # 1, and 10 to 19
    await page.get_by_role("searchbox", name="Find").fill("")
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

    await page.get_by_label("Go to").fill("2020-01-01 00:00")
    await page.get_by_role("button", name="Go", exact=True).click()
    await expect(tail(page)).to_have_count(22)
    await expect(tail(page).first).to_contain_text("line 0")
    assert "at=2020-01-01" in page.url
    await page.get_by_role("button", name="Back to live").click()
    await expect(tail(page).first).to_contain_text("while it is paused")


async def test_ten_of_ten_clicks_hit_a_list_that_gets_records_all_the_time(page: Page, one_server: Served) -> None:
    over = asyncio.Event()

    async def publish() -> None:
        async with runnel.open(one_server.native) as broker:
            number = 0
            while not over.is_set():
                await broker.publish("busy", json.dumps({"number": number}))
                number += 1
                await asyncio.sleep(1 / 25)

    await one_server.publish("busy", "first")
    publishing = asyncio.ensure_future(publish())
    try:
        await look(page, one_server.url, "topics/busy")
        await expect(tail(page).nth(9)).to_be_visible()
        box = await page.locator("ol.tail").bounding_box()
        assert box is not None
        await page.mouse.move(box["x"] + 400, box["y"] + 20)
        held = page.get_by_role("button", name=re.compile(r"^\d+ new$"))
        hits = 0
        for row in range(10):
            line = tail(page).nth(9 - row).locator("summary")
            aimed = await line.bounding_box()
            assert aimed is not None
            offset = await line.locator(".offset").text_content()
            await page.mouse.move(aimed["x"] + 300, aimed["y"] + aimed["height"] / 2)
            await expect(held).to_be_visible()  # something came meanwhile
            await page.mouse.down()
            await page.mouse.up()
            opened = page.locator("ol.tail details[open] .offset").first
            hits += await opened.text_content() == offset
            await page.evaluate(
                "for (const one of document.querySelectorAll('ol.tail details[open]')) one.open = false"
            )
        assert hits == 10
        count = int((await held.text_content() or "0").split()[0])
        assert count > 0
        top = int(await page.locator("ol.tail .offset").first.text_content() or "")
        await held.click()
        await expect(page.locator("ol.tail .offset").first).not_to_have_text(str(top))
        await page.mouse.move(5, 5)
        await page.evaluate("document.activeElement.blur()")
        await expect(held).to_have_count(0)
    finally:
        over.set()
        await publishing


async def test_history_is_searched_by_the_server_and_downloaded(page: Page, one_server: Served) -> None:
    await one_server.publish("archive", *(json.dumps({"id": number, "big": 2**60 + number}) for number in range(300)))
    await look(page, one_server.url, "topics/archive")
    await page.keyboard.press("/")
    await expect(page.get_by_role("searchbox", name="Find")).to_be_focused()
    await page.keyboard.type('"id": 123,')
    await page.keyboard.press("Enter")
    await expect(page.locator(".tail-state")).to_contain_text("1 found among 300 records")
    await expect(tail(page)).to_have_count(1)
    await tail(page).first.locator("summary").first.click()
    await expect(page.locator(".tree")).to_contain_text(str(2**60 + 123))  # as it was sent: JavaScript would round it
    assert "find=" in page.url
    await page.reload()
    await expect(tail(page)).to_have_count(1)
    async with page.expect_download() as download:
        await page.get_by_role("link", name="Download NDJSON").click()
    path = await (await download.value).path()
    assert [json.loads(json.loads(line)["value"])["id"] for line in path.read_text().splitlines()] == [123]


async def test_many_tabs_leave_connections_for_requests(context: BrowserContext, one_server: Served) -> None:
    await one_server.publish("tabs", "first")
    tabs = [await context.new_page() for _ in range(7)]  # one more than the connections that a browser has
    for number, tab in enumerate(tabs):
        await look(tab, one_server.url, "topics/tabs")
        await until_shown(tab, number)
        await tab.get_by_label("Value", exact=True).fill(f"from tab {number}")
        await tab.get_by_role("button", name="Publish").click()
        await expect(tab.get_by_text(f"Stored in tabs at offset {number + 1}")).to_be_visible()
    for tab in tabs:
        await until_shown(tab, len(tabs))


async def test_the_address_holds_what_is_looked_at(page: Page, lively: Server, complaints: Complaints) -> None:
    complaints.expect("status of 404")  # of the topic that is not there
    url = lively.listeners[0].url
    await look(page, url, "topics?filter=sensors&sort=-rate")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(page.get_by_role("searchbox", name="Filter")).to_have_value("sensors")
    await page.get_by_role("searchbox", name="Filter").fill("orders")
    await expect(page.locator("tbody tr").first).to_contain_text("orders.")
    assert "filter=orders" in page.url
    await look(page, url, "analytics?span=days")
    await expect(page.get_by_label("7 days")).to_be_checked()
    await look(page, url, "groups?filter=%E0%A4%A")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Groups")
    await page.goto(f"{url}/#/topics/no.such.topic")
    await expect(page.get_by_text("There is no such topic.")).to_be_visible()
    await expect(page.get_by_text(re.compile("Live|Connecting"))).to_have_count(0)
    assert "no.such.topic" not in await lively.broker.topics()  # looking for a topic makes none
    for nowhere in ("nonsense", "groups/of/nothing", "%E0%A4%A"):
        await page.goto(f"{url}/#/{nowhere}")
        await expect(page.get_by_role("heading", level=1)).to_have_text("There is no such page")


async def test_a_topic_is_made_changed_trimmed_and_deleted(page: Page, one_server: Served) -> None:
    await look(page, one_server.url, "topics")
    await page.get_by_role("button", name="Create a topic…").click()
    await page.get_by_label("Name").fill("made.here")
    await page.get_by_label("Keep at most, records").fill("500")
    await page.get_by_role("button", name="Create", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("made.here")
    await expect(page.locator("#view .facts")).to_contain_text("500")
    await one_server.publish("made.here", "a", "b", "c")
    await page.get_by_role("button", name="Change options…").click()
    await page.get_by_label("Keep at most, records").fill("400")
    await page.get_by_role("button", name="Change", exact=True).click()
    await expect(page.locator("#view .facts")).to_contain_text("400")
    await page.get_by_role("button", name="Trim…").click()
    await page.get_by_label("Before").fill("tomorrow")
    await page.get_by_label("Type made.here to confirm").fill("made.here")
    await page.get_by_role("button", name="Trim", exact=True).click()
    await expect(page.get_by_role("dialog")).to_contain_text("is no offset and no time")  # and can be put right
    await page.get_by_label("Before").fill("2")
    await page.get_by_role("button", name="Trim", exact=True).click()
    await expect(page.get_by_text("The first offset is 2 now.").first).to_be_visible()
    await page.get_by_role("button", name="Delete…").click()
    delete = page.get_by_role("button", name="Delete", exact=True)
    await expect(delete).to_be_disabled()
    await page.get_by_label("Type made.here to confirm").fill("made.here")
    await delete.click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    async with runnel.open(one_server.native) as broker:
        assert "made.here" not in await broker.topics()


async def test_a_typed_topic_shows_its_type_and_takes_nothing_else(
    page: Page, one_server: Served, complaints: Complaints
) -> None:
    complaints.expect("status of 422")  # a browser tells of every refusal
    async with runnel.open(one_server.native) as broker:
        await broker.topic("typed.orders", Order).publish(Order(id=1))
    await look(page, one_server.url, "topics/typed.orders?tab=options")
    await expect(page.get_by_role("table", name="Fields of the type")).to_contain_text("currency")
    await look(page, one_server.url, "topics/typed.orders")
    await expect(page.get_by_text("It is to be Order")).to_be_visible()
    form = page.locator("form.publish")
    await form.get_by_label("Value", exact=True).fill('{"id": "one"}')
    await form.get_by_role("button", name="Publish").click()
    await expect(form.locator(".told")).to_contain_text("id")
    await expect(form.locator(".told")).to_have_attribute("data-bad", "")
    await form.get_by_label("Value", exact=True).fill('{"id": 2}')
    await form.get_by_role("button", name="Publish").click()
    await expect(form.locator(".told")).to_contain_text("Stored in typed.orders at offset 1")


async def test_a_group_is_stuck_paused_reset_and_forgotten(page: Page, one_server: Served) -> None:
    await one_server.publish("work", "a", "b", "c")
    async with runnel.open(one_server.native) as broker:
        async with broker.subscribe("work", group="workers", start="earliest") as deliveries:
            await (await anext(deliveries)).ack(durable=True)
    await look(page, one_server.url, "groups?filter=workers")
    card = page.get_by_role("article", name="Group workers")
    await expect(card.locator(".verdict")).to_have_text(re.compile("stuck.*2 records wait, and no member is connected"))
    await card.get_by_role("button", name="Pause").click()
    await expect(card.locator(".verdict")).to_contain_text("paused")
    await card.get_by_role("button", name="Resume").click()
    await card.get_by_role("button", name="Reset workers").click()
    await page.get_by_label("Go on from").fill("latest")
    await page.get_by_role("button", name="Reset", exact=True).click()
    await expect(card.locator(".verdict")).to_have_text(re.compile("idle.*everything is acked"))
    await card.get_by_role("button", name="Forget workers").click()
    await page.get_by_label("Type workers to confirm").fill("workers")
    await page.get_by_role("button", name="Forget", exact=True).click()
    await expect(card).to_have_count(0)


async def test_on_a_phone_no_label_is_cut_and_no_page_is_wider_than_the_screen(
    chromium: Browser, complaints: Complaints, lively: Server
) -> None:
    context = await chromium.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    await complaints.hear(context)
    page = await context.new_page()
    for view in VIEWS:
        await look(page, lively.listeners[0].url, view)
        assert await page.evaluate(CUT_TEXTS) == [], view
    await context.close()
    assert complaints.unexpected == []


async def test_colours_are_those_that_were_chosen_also_after_a_reload(page: Page, one_server: Served) -> None:
    await look(page, one_server.url)
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = await page.evaluate(ground)
    await page.get_by_label("Colors").select_option("dark")
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
    await page.get_by_role("searchbox", name="Find").fill("499 ")
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
    await look(page, server.url, "topics")
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
    await expect(page.get_by_role("button", name="1 new")).to_be_visible()  # while a record is open, nothing moves
    await page.evaluate("document.activeElement.blur()")
    await keys.press("?")
    await expect(page.get_by_role("dialog")).to_contain_text("search or filter what is shown")
    await keys.press("Escape")

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
    await keys.to("Colors")


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
