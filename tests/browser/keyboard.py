"""Hands that have only a keyboard: Tab, Enter, Space and what is typed. What has the focus must be seen to have it."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Page

MOST = 150  # presses of Tab before something counts as out of reach

FOCUSED = Path(__file__).with_name("focus.js").read_text()


class Keyboard:
    """Goes through a page."""

    def __init__(self, page: Page) -> None:
        self._page = page

    async def to(self, name: str, tag: str | None = None, *, back: bool = False) -> None:
        """Press Tab until what has this name has the focus."""
        passed: list[str] = []
        for _ in range(MOST):
            await self._page.keyboard.press("Shift+Tab" if back else "Tab")
            found = await self._page.evaluate(FOCUSED)
            if found is None:
                continue
            passed.append(f"{found['tag']} {found['name'][:40]!r}")
            assert found["seen"], f"{passed[-1]} has the focus, and is not on the screen"
            assert found["ringed"], f"{passed[-1]} has the focus, and does not show it"
            if found["name"].startswith(name) and tag in (None, found["tag"]):
                return
        raise AssertionError(f"no way by keyboard to {name!r}; there were {passed}")

    async def press(self, key: str = "Enter") -> None:
        """Press a key."""
        await self._page.keyboard.press(key)

    async def open(self, name: str, tag: str | None = None) -> None:
        """Go there, and press Enter."""
        await self.to(name, tag)
        await self.press()

    async def write(self, name: str, text: str) -> None:
        """Go to a field, and write into it."""
        await self.to(name)
        await self._page.keyboard.type(text)
