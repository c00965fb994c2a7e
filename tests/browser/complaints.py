"""What a browser complains about: errors on its console, in scripts, of the content policy. A test fails for any."""

from __future__ import annotations

import re

from playwright.async_api import BrowserContext, ConsoleMessage, WebError

# Chromium tells of a violation on the console only in words; this has it say which rule, of which file.
WATCH_THE_POLICY = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`the content policy forbids ${event.violatedDirective}: ${event.blockedURI} ${event.sourceFile}`));
"""
DOWN = (
    r"net::ERR_(CONNECTION_REFUSED|CONNECTION_RESET|INCOMPLETE_CHUNKED_ENCODING|EMPTY_RESPONSE|INTERNET_DISCONNECTED)"
)


class Complaints:
    """All that the pages of a context complained about, those aside that a test expects."""

    def __init__(self) -> None:
        self._found: list[str] = []
        self._expected: list[re.Pattern[str]] = []
        self._over = False

    async def hear(self, context: BrowserContext) -> None:
        """Listen to all pages of `context`, those that are opened later included."""
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)
        await context.add_init_script(WATCH_THE_POLICY)

    def expect(self, pattern: str) -> None:
        """Complaints with these words are no fault of the page."""
        self._expected.append(re.compile(pattern))

    def expect_a_server_that_is_down(self) -> None:
        """A browser tells of every request that nobody answers; no script can keep it from doing so."""
        self.expect(DOWN)

    def enough(self) -> None:
        """The test is over: what pages say to a server that is taken from them is not heard."""
        self._over = True

    @property
    def unexpected(self) -> list[str]:
        """Those that no test expects."""
        return [one for one in self._found if not any(pattern.search(one) for pattern in self._expected)]

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not self._over:
            self._found.append(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    def _on_error(self, error: WebError) -> None:
        if not self._over:
            self._found.append(f"script: {error.error}")
