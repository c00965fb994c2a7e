"""Signing in to the console, and out again, in a real browser."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Browser, expect

import runnel
from runnel.server.access.files import AuthFiles
from tests.browser.accessibility import faults
from tests.browser.served import Served
from tests.security.guarded import Tokens


async def test_people_sign_in_and_see_what_they_may_do(chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "auth.toml"
    file.write_text('[roles.viewer]\nconsole = "viewer"\n')
    tokens = Tokens()
    token = tokens.add("ada", roles=["admin"])
    viewer = tokens.add("viv", ["subscribe:orders"], roles=["viewer"])
    files = AuthFiles(file)
    tokens.write(files)
    server = Served(tmp_path, "--auth", str(file))
    await server.start()
    context = await chromium.new_context()
    try:
        page = await context.new_page()
        await page.goto(server.url)
        assert await faults(page) == []
        await page.get_by_label("Token").fill("rnl_wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_contain_text("does not know the token")
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator("#state-text")).to_have_text("live")
        await expect(page.get_by_text("ada", exact=True)).to_be_visible()
        async with runnel.open(server.native, token=token) as broker:
            await broker.publish("orders", "1")
        await page.goto(f"{server.url}/#/topics/orders")
        await expect(page.locator("ol.tail > li")).to_have_count(1)  # nothing moves any more
        form = page.locator("form.publish")
        await form.locator("textarea").first.fill("from the console")
        await form.get_by_role("button", name="Publish").click()
        await expect(form.locator(".told")).to_contain_text("Stored in orders at offset 1")
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        await page.goto(server.url)
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()

        await page.get_by_label("Token").fill(viewer)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator("#state-text")).to_have_text("live")
        await page.goto(f"{server.url}/#/topics/orders?tab=options")
        await expect(page.get_by_role("heading", name="Options")).to_be_visible()
        await expect(page.locator("#view button")).to_have_count(0)  # what is not allowed is not shown
        await page.goto(f"{server.url}/#/topics/orders")
        await expect(page.locator("ol.tail > li")).to_have_count(2)
        await expect(page.locator("form.publish")).to_be_hidden()
        await page.goto(f"{server.url}/#/connections")
        await expect(page.get_by_role("cell", name="viv").first).to_be_visible()
        await expect(page.get_by_role("button", name="Close")).to_have_count(0)

        files.write_tokens(files.read_tokens().without("viv")[0])
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()  # the session ends with its token
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Connections")  # and goes on where it was
    finally:
        await context.close()
        await server.stop()
