"""The page of docs/tutorial/live-page.md, followed: records as they come, over a restart of the server, each once."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, expect

import runnel
from tests.browser.complaints import Complaints
from tests.browser.served import Served
from tests.project.project import ROOT

TUTORIAL = (ROOT / "docs" / "tutorial" / "live-page.md").read_text()


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A web server beside runnel's, as `python3 -m http.server` is, its folder and its port."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield tmp_path, server.server_address[1]
        server.shutdown()
        thread.join()


async def test_the_page_of_the_tutorial_misses_nothing_over_a_restart(
    context: BrowserContext, complaints: Complaints, pages: tuple[Path, int], tmp_path: Path
) -> None:
    found = re.search(r"```html\n(.*?)```", TUTORIAL, re.DOTALL)
    assert found is not None
    folder, port = pages
    (tmp_path / "served").mkdir()
    server = Served(tmp_path / "served", "--http-cors", f"http://localhost:{port}")
    await server.start()
    try:
        (folder / "index.html").write_text(found[1].replace("http://127.0.0.1:7780", server.url))
        page = await context.new_page()
        await page.goto(f"http://localhost:{port}/")
        lines = page.locator("#orders li")
        await expect(page.locator("#state")).to_have_text("open")
        async with runnel.open(server.native) as broker:
            await broker.publish("orders", '{"item": "tea"}')
            await broker.publish("orders", '{"item": "coffee"}')
        await expect(lines).to_have_text(['0: {"item":"tea"}', '1: {"item":"coffee"}'])
        complaints.expect_a_server_that_is_down()
        complaints.expect("favicon")
        complaints.expect("403")
        await page.goto(f"http://127.0.0.1:{port}/")  # an origin that the server does not know
        refused = f"closed: pages of http://127.0.0.1:{port} may not use this server"
        await expect(page.locator("#state")).to_contain_text(refused)
        await page.goto(f"http://localhost:{port}/")
        await expect(page.locator("#state")).to_have_text("open")
        await server.restart()
        async with runnel.open(server.native) as broker:
            await broker.publish("orders", '{"item": "cocoa"}')
        await expect(lines).to_have_text(['0: {"item":"tea"}', '1: {"item":"coffee"}', '2: {"item":"cocoa"}'])
    finally:
        await server.stop()
