"""What can be told of a page for those who cannot see it, or not well: names, landmarks, headings, tables, contrast."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Page

FAULTS = Path(__file__).with_name("accessibility.js").read_text()


async def faults(page: Page) -> list[str]:
    """What is wrong with the page as it is now, a sentence each."""
    found: list[str] = await page.evaluate(FAULTS)
    return found
