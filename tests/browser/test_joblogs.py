"""The job-log page in a real browser: every line once, in order, whoever is killed, slow, or comes late."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.browser.accessibility import faults
from tests.browser.complaints import Complaints
from tests.browser.joblogs import JobLogs
from tests.browser.keyboard import Keyboard
from tools.postgres import database, found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def steady(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[JobLogs]:
    """The example, for tests that let it live."""
    joblogs = JobLogs(tmp_path_factory.mktemp("joblogs"))
    try:
        await joblogs.start()
        yield joblogs
    finally:
        await joblogs.close()


@pytest_asyncio.fixture(loop_scope="session")
async def mortal(tmp_path: Path) -> AsyncIterator[JobLogs]:
    """The example, for tests that kill it."""
    joblogs = JobLogs(tmp_path)
    try:
        await joblogs.start()
        yield joblogs
    finally:
        await joblogs.close()


async def numbers(page: Page) -> list[int]:
    """The numbers of the lines on the page, from the top."""
    shown = await page.locator("#log .number").all_text_contents()
    return [int(one) for one in shown]


async def until_line(page: Page, number: int) -> None:
    await expect(page.locator(f"#L{number}")).to_be_attached()


async def check_whole(page: Page, lines: int) -> None:
    """All lines are there, once, in order; and the page counted the same."""
    await until_line(page, lines - 1)
    assert await numbers(page) == list(range(lines))
    await expect(page.locator("#status")).to_contain_text(f"{lines:,} lines, 0 to {lines - 1} · 0 missed · 0 repeated")


async def test_a_server_that_is_killed_in_the_middle_costs_no_line_and_repeats_none(
    page: Page, context: BrowserContext, mortal: JobLogs, complaints: Complaints
) -> None:
    complaints.expect_a_server_that_is_down()
    await mortal.ask_for("7", lines=60, rate=30)
    await page.goto(f"{mortal.url}/jobs/7")
    other = await context.new_page()
    await other.goto(f"{mortal.url}/jobs/7")
    await until_line(page, 10)
    await mortal.kill()
    await mortal.start()
    for tab in (page, other):
        await check_whole(tab, 60)
        await expect(tab.locator("#status")).to_contain_text("reconnected")
        await expect(tab.locator("#state")).to_contain_text("succeeded")
    await page.reload()
    await check_whole(page, 60)


async def test_a_late_reader_gets_past_lines_first_and_then_the_live_ones(
    page: Page, context: BrowserContext, steady: JobLogs
) -> None:
    await steady.ask_for("early", lines=40, rate=25)
    await page.goto(f"{steady.url}/jobs/early")
    await until_line(page, 15)
    await page.reload()
    late = await context.new_page()
    await late.goto(f"{steady.url}/jobs/early")
    for tab in (page, late):
        await check_whole(tab, 40)


@pytest.mark.skipif(not (find_spec("psycopg") and found()), reason="no psycopg or no PostgreSQL")
async def test_lines_that_are_rows_are_read_by_select_and_then_come_live(page: Page, tmp_path: Path) -> None:
    with database(None) as dsn:
        joblogs = JobLogs(tmp_path, ("--shape", "relay", "--dsn", dsn), ("--dsn", dsn))
        try:
            await joblogs.start()
            await joblogs.ask_for("rows", lines=30, rate=25)
            await page.goto(f"{joblogs.url}/jobs/rows")
            await until_line(page, 10)
            await page.reload()
            await check_whole(page, 30)
            await expect(page.locator("#connection")).to_have_text("live")
        finally:
            await page.goto("about:blank")
            await joblogs.close()


@pytest.mark.parametrize("lines", [400, pytest.param(1_500, marks=pytest.mark.nightly)])
async def test_a_tab_on_a_slow_line_and_a_slow_machine_gets_every_line(
    page: Page, context: BrowserContext, steady: JobLogs, lines: int
) -> None:
    session = await context.new_cdp_session(page)
    slow = {"offline": False, "latency": 300, "downloadThroughput": 300_000, "uploadThroughput": 100_000}
    await session.send("Network.enable")
    await session.send("Network.emulateNetworkConditions", slow)
    await session.send("Emulation.setCPUThrottlingRate", {"rate": 4})
    await steady.ask_for(f"slow-{lines}", lines=lines, rate=5_000)
    await page.goto(f"{steady.url}/jobs/slow-{lines}")
    await check_whole(page, lines)


async def test_jobs_are_started_found_and_followed_with_the_keyboard_alone(page: Page, steady: JobLogs) -> None:
    await page.goto(steady.url)
    await expect(page.locator("#connection")).to_contain_text("live", ignore_case=True)
    keys = Keyboard(page)
    await keys.open("Start a job")
    row = page.locator("#jobs tr").first
    await expect(row).to_contain_text("running")
    name = await row.get_by_role("link").first.text_content()
    assert name is not None
    await page.evaluate("document.activeElement.blur()")
    await keys.write("Filter jobs", name.strip())
    await expect(page.locator("#jobs tr")).to_have_count(1)
    await keys.open(name.strip(), "a")
    await until_line(page, 3)
    await keys.to("Search in this log")
    await keys.to("Follow")
    await keys.press()
    await expect(page.locator("#follow")).to_have_attribute("aria-pressed", "false")
    await keys.to("Lines of the job")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_both_pages_can_be_read_by_everybody(
    scheme: Any, chromium: Browser, complaints: Complaints, steady: JobLogs
) -> None:
    context = await chromium.new_context(color_scheme=scheme, reduced_motion="reduce")
    await complaints.hear(context)
    page = await context.new_page()
    await steady.ask_for(f"read-{scheme}", lines=60, rate=1_000)
    await page.goto(f"{steady.url}/jobs/read-{scheme}")
    await check_whole(page, 60)
    assert await faults(page) == []
    await page.goto(steady.url)
    await expect(page.locator("#jobs tr").first).to_be_visible()
    assert await faults(page) == []
    await context.close()
    assert complaints.unexpected == []
