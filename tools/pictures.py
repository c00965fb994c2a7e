"""The pictures that the docs show, made of what they show: a lively server and the job-log example, in Chromium.

`make docs` runs this as `python -m tools.pictures`. They go to docs/pictures, and are not part of the repository.
Without Chromium it says so, and the docs are built without them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from playwright.async_api import Browser, Page, async_playwright, expect

from tests.browser.demo import demo
from tests.browser.joblogs import JobLogs
from tools import chromium

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
MADE = ".made"  # newer than all that the pictures show: `make` looks at it
SIZE = {"width": 1120, "height": 700}
CONSOLE = {
    "console-overview": "#/overview?span=15m",
    "console-topics": "#/topics",
    "console-topic": "#/topics/orders.placed",
    "console-groups": "#/groups",
    "console-dead-letters": "#/dead-letters",
    "console-journal": "#/journal",
}
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")


@asynccontextmanager
async def tab(browser: Browser, scheme: Scheme) -> AsyncIterator[Page]:
    """A tab in light or dark, with twice the points of its size."""
    context = await browser.new_context(viewport={**SIZE}, color_scheme=scheme, device_scale_factor=2)  # type: ignore[arg-type]
    try:
        yield await context.new_page()
    finally:
        await context.close()


async def of_console(browser: Browser, lively: float) -> None:
    """The console of a server on which much went on for so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        async with demo(Path(folder), hostile=False) as server:
            url = server.listeners[0].url
            async with tab(browser, "light") as watching:  # figures are gathered while a page is open
                await watching.goto(url)
                await asyncio.sleep(lively)
                for scheme in SCHEMES:
                    async with tab(browser, scheme) as page:
                        for name, view in CONSOLE.items():
                            await page.goto(f"{url}/{view}")
                            await expect(page.locator("#state-text")).to_have_text("live")
                            await page.wait_for_timeout(1_500)  # the next figures, and the tail
                            await page.screenshot(path=FOLDER / f"{name}-{scheme}.png")


async def of_joblogs(browser: Browser) -> None:
    """The page of jobs, and the page of one that runs."""
    with tempfile.TemporaryDirectory() as folder:
        joblogs = JobLogs(Path(folder))
        try:
            await joblogs.start()
            async with tab(browser, "light") as page:
                await page.goto(joblogs.url)
                for number in range(4):
                    await joblogs.ask_for(f"thumbs-{number}", 20 + 7 * number, 20, "Thumbnails")
                for _ in range(8):
                    await page.get_by_role("button", name="Start a job").click()
                await joblogs.ask_for("nightly", 400, 8, "Nightly report")
                await page.goto(f"{joblogs.url}/jobs/nightly")
                await expect(page.locator("#L60")).to_be_attached(timeout=60_000)
            for scheme in SCHEMES:
                async with tab(browser, scheme) as page:
                    await page.goto(f"{joblogs.url}/jobs/nightly")
                    await expect(page.locator("#L60")).to_be_attached()
                    await page.screenshot(path=FOLDER / f"joblogs-job-{scheme}.png")
                    await page.goto(joblogs.url)
                    await expect(page.locator("#jobs tr")).to_have_count(13)
                    await page.screenshot(path=FOLDER / f"joblogs-jobs-{scheme}.png")
        finally:
            await joblogs.close()


async def make(path: str, lively: float) -> None:
    """All of them."""
    FOLDER.mkdir(exist_ok=True)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=arguments)
        await of_console(browser, lively)
        await of_joblogs(browser)
        await browser.close()
    (FOLDER / MADE).touch()


def main(lively: float = 40.0) -> int:
    """Make them, if there is a browser; the exit code."""
    path = chromium.find()
    if path is None:
        print("The docs are built without pictures: Chromium makes them, and none is on the PATH", file=sys.stderr)
        print(chromium.COMMANDS, file=sys.stderr)
        return 0
    print("Making the pictures of the docs (about a minute)", flush=True)
    asyncio.run(make(path, lively))
    return 0


if __name__ == "__main__":
    sys.exit(main())
