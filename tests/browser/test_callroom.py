"""The call room in two windows of a real browser: what one sends is a row, and the other one has it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Locator, Page, expect

from tests.browser.accessibility import faults
from tests.browser.complaints import Complaints
from tests.patience import PATIENCE
from tests.ports import free_port
from tools.postgres import found

pytestmark = pytest.mark.skipif(not (find_spec("psycopg") and found()), reason="no psycopg or no PostgreSQL")

APP = Path(__file__).parents[2] / "examples" / "callroom" / "app.py"
PIXELS = """canvas => {
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  return data.reduce((sum, one) => (sum * 31 + one) % 1000003, 0);
}"""


@pytest_asyncio.fixture(loop_scope="session")
async def url(tmp_path: Path, complaints: Complaints) -> AsyncIterator[str]:
    """The example, as its one command starts it: PostgreSQL, broker, relay and pages."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(APP), "--port", str(port), "--until-eof"),
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith(("COV", "RUNNEL"))},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            lines = [(await process.stdout.readline()).decode() for _ in range(2)]
        assert lines[1].startswith("http://"), lines
        yield f"http://127.0.0.1:{port}/rooms/tea"
    finally:
        complaints.enough()
        process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 0


async def enter(page: Page, url: str, name: str) -> None:
    await page.goto(url)
    await page.get_by_label("Your name").fill(name)
    await page.get_by_role("button", name="Join").click()
    await expect(page.locator("#connection")).to_have_text("live")


async def changes(canvas: Locator) -> None:
    """The picture is another one after a while."""
    before = await canvas.evaluate(PIXELS)
    async with asyncio.timeout(PATIENCE):
        while await canvas.evaluate(PIXELS) == before:  # noqa: ASYNC110  # frames are drawn, and nothing tells of it
            await asyncio.sleep(0.05)


async def test_two_windows_talk_see_and_hear_each_other(page: Page, context: BrowserContext, url: str) -> None:
    ada, grace = page, await context.new_page()
    await enter(ada, url, "ada")
    await enter(grace, url, "grace")
    for window, other in ((ada, "grace"), (grace, "ada")):
        await expect(window.locator("#people li")).to_have_count(2)
        await expect(window.locator("#people")).to_contain_text(other)
    await ada.get_by_label("Message", exact=True).fill("<b>Hello</b> Grace")
    await ada.get_by_role("button", name="Send").click()
    await expect(grace.locator("#messages p")).to_have_text("<b>Hello</b> Grace")
    await expect(ada.locator("#messages p")).to_have_text("<b>Hello</b> Grace")

    await ada.get_by_role("button", name="Call").click()
    await expect(ada.locator("#call")).to_have_text("Ringing …")
    await expect(grace.locator("#call")).to_have_text("ada is calling.")
    await grace.get_by_role("button", name="Answer").click()
    for window, other in ((ada, "grace"), (grace, "ada")):
        await expect(window.locator("#call")).to_have_text("In a call.")
        tile = window.locator(f".tile[data-user={other}][data-live]")
        await changes(tile.locator("canvas"))
        await expect(tile.locator(".numbers")).to_contain_text(" fps · ")
        await window.wait_for_function("tile => Number(tile.dataset.chunks) > 5", arg=await tile.element_handle())
        loud = "tile => Number(tile.querySelector('.meter').ariaValueNow) > 0.1"
        await window.wait_for_function(loud, arg=await tile.element_handle())
        # The clock of a page is known to a few milliseconds, and this machine is busy: only nonsense is excluded.
        assert -100 < int(await tile.get_attribute("data-median") or "") < PATIENCE * 1_000
        assert await faults(window) == []

    await ada.get_by_role("button", name="Replay 10 s").click()
    await expect(ada.get_by_role("dialog")).to_contain_text("frames that one SELECT found")
    await changes(ada.get_by_role("dialog").locator("canvas"))
    await ada.get_by_role("button", name="Close").click()
    await ada.get_by_role("button", name="Hang up").click()
    await expect(grace.locator("#call")).to_have_text("No call.")
    await expect(grace.locator(".tile[data-user=ada]:not([data-live])")).to_have_count(1)
    await grace.close()
    await expect(ada.locator("#people li")).to_have_text(["ada (you)"])
    await expect(ada.locator("#call")).to_contain_text("You are alone here")
