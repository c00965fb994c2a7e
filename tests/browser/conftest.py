"""Real Chromium before a real server. BROWSER=0 leaves all of this out.

A browser lasts for all tests of a worker, a context (its tabs, cookies and storage) for one test.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from tests.browser.complaints import Complaints
from tests.browser.served import Served
from tests.patience import PATIENCE
from tools import chromium as system

HERE = Path(__file__).parent
WAIT = min(60.0, PATIENCE / 2) * 1_000  # milliseconds that a page has for what it ought to show


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    if not system.wanted():
        items[:] = [item for item in items if item not in mine]
        config.hook.pytest_deselected(items=mine)
        return
    for item in mine:
        # The browser lives in one event loop, and so must the tests that it is for.
        item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """The system's Chromium, without a window."""
    path = system.find()
    assert path is not None, system.missing()
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # its sandbox does not work for root
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=arguments)
        expect.set_options(timeout=WAIT)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def complaints() -> Complaints:
    """What the pages of the test complain about; in the end there may be none that was not expected."""
    return Complaints()


@pytest_asyncio.fixture(loop_scope="session")
async def context(chromium: Browser, complaints: Complaints) -> AsyncIterator[BrowserContext]:
    """Storage of its own, and tabs; in the end nothing may have been complained about."""
    context = await chromium.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    context.set_default_timeout(WAIT)
    await complaints.hear(context)
    yield context
    await context.close()
    assert complaints.unexpected == []


@pytest_asyncio.fixture(loop_scope="session")
async def page(context: BrowserContext) -> Page:
    """A tab."""
    return await context.new_page()


@pytest_asyncio.fixture(loop_scope="session")
async def server(tmp_path: Path, complaints: Complaints) -> AsyncIterator[Served]:
    """A server on a folder of its own; it can be killed, and comes back at the same address."""
    served = Served(tmp_path)
    await served.start()
    yield served
    complaints.enough()
    await served.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def one_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """A server for all tests of a file, that use topics of their own and let it live."""
    served = Served(tmp_path_factory.mktemp("one"))
    await served.start()
    yield served
    await served.stop()
