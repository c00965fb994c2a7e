"""A page that complains fails its test: errors of scripts, of the console, of the content policy."""

import re

import pytest
from playwright.async_api import BrowserContext, Page

from tests.browser.complaints import Complaints
from tests.browser.served import Served

SAID = {
    "console.error('oh dear')": ("console", "error: oh dear"),
    "console.warn('careful')": ("console", "warning: careful"),
    "setTimeout(() => { throw new Error('unseen') })": ("weberror", "script: unseen"),
    "void Promise.reject(new Error('unheard'))": ("weberror", "script: unheard"),
}


@pytest.mark.parametrize("script", SAID)
async def test_what_goes_wrong_in_a_page_is_heard(
    script: str, context: BrowserContext, page: Page, complaints: Complaints
) -> None:
    event, words = SAID[script]
    async with context.expect_event(event):
        await page.evaluate(script)
    (heard,) = complaints.unexpected
    assert words in heard
    complaints.expect(re.escape(words))
    assert complaints.unexpected == []


async def test_what_the_content_policy_forbids_is_heard(
    context: BrowserContext, page: Page, complaints: Complaints
) -> None:
    policy = {"content-security-policy": "default-src 'none'"}
    await page.route("**/*", lambda route: route.fulfill(body="<p>text", content_type="text/html", headers=policy))
    await page.goto("http://page.example/")
    async with context.expect_event("console", lambda message: "the content policy forbids" in message.text):
        await page.evaluate("document.body.setAttribute('style', 'color: red')")
    assert any("style-src" in one for one in complaints.unexpected)
    complaints.expect("style|Content Security Policy")


async def test_a_killed_server_comes_back_at_the_same_address_with_what_it_had(server: Served) -> None:
    url = server.url
    first = await server.publish("t", "one")
    await server.restart()
    assert server.url == url
    assert (await server.publish("t", "two", "three"))["first"] == first["offset"] + 1
