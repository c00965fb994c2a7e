"""`/console/live`: the one connection of an open page of the console, for figures and records alike.

A browser has six HTTP/1.1 connections for all tabs of a server together, and an event stream occupies one of them. A
WebSocket is not counted among them. It speaks JSON lines, as `/ws` does, with one command more:

    {"command": "LOOK", "query": "view=groups&sort=-lag"}

sends `{"event": "figures", ...}` now and each second, with what `GET /console/updates?view=groups&sort=-lag` sends,
until another LOOK.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from runnel.core.errors import BrokerClosed, NotAuthenticated, RunnelError
from runnel.security.principal import ConsoleRole
from runnel.server.access.access import CONSOLE
from runnel.server.http.console.pages import ConsoleQuery, parse_console_query
from runnel.server.http.console.sampling import INTERVAL
from runnel.server.http.requests import parameters
from runnel.server.json_lines.listener import JsonLinesListener
from runnel.server.json_lines.session import JsonLinesSession
from runnel.wire import json_events as events
from runnel.wire.json_commands import FORMS, Id, Quit

if TYPE_CHECKING:
    from runnel.server.access.access import Access
    from runnel.server.http.console.sampling import ConsoleSampling
    from runnel.server.json_lines.subscription import LineWriter
    from runnel.server.served_broker import ServedBroker

log = logging.getLogger("runnel")


class Look(msgspec.Struct, frozen=True, tag_field="command", tag="LOOK", forbid_unknown_fields=True):
    """Asks for figures: `query` is that of `/console/updates`."""

    query: str = ""
    id: Id | None = None


_look = msgspec.json.Decoder(Look)


def live_protocol(sampling: ConsoleSampling) -> Callable[..., JsonLinesListener]:
    """Makes the protocol of a page's connection."""
    return partial(JsonLinesListener, session=partial(ConsoleSession, sampling))


class ConsoleSession(JsonLinesSession):
    """The session of one page."""

    def __init__(
        self,
        sampling: ConsoleSampling,
        serving: ServedBroker,
        outlet: LineWriter,
        log_in: Callable[[str], Awaitable[Access]],
    ) -> None:
        super().__init__(serving, outlet, log_in)
        self._sampling = sampling
        self._query: ConsoleQuery | None = None
        self._fresh = asyncio.Event()
        self._showing: asyncio.Task[None] | None = None
        self._is_over = False
        self._refusal: RunnelError | None = None  # why no more figures are sent: its login lost the right to them
        self._is_counted = self._is_left = False

    async def handle(self, line: bytes) -> Quit | None:
        """Do what `line` says, and answer."""
        try:
            look = _look.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return await super().handle(line)  # another command, or an error that it words
        try:
            if not self.is_ready:
                raise NotAuthenticated("log in first: " + FORMS["AUTH"])
            if self.access is not None:
                self.access.check_role(ConsoleRole.VIEWER, "look at the console")
            query = parse_console_query(parameters({"query_string": look.query.encode()}))
            self._serving.backend.check_ready("looking at it")
            if self.access is not None and not self._is_counted:
                self.access.opened(self, CONSOLE, ())
                self._is_counted = True
        except RunnelError as error:
            self.answers.now(events.error(error, "LOOK", look.id))
            return None
        self._query, self._refusal = query, None
        self._fresh.set()
        if self._showing is None or self._showing.done():
            self._sampling.attach(self)
            self._showing = asyncio.create_task(self._show())
        return None

    @property
    def is_busy(self) -> bool:
        """A page that is looked at says nothing for long."""
        return super().is_busy or (self._showing is not None and not self._showing.done())

    async def close(self) -> None:
        """End the figures and the subscriptions, after the written ones."""
        self._leave()
        await super().close()

    def lost(self) -> None:
        """The page disconnected."""
        self._leave()
        super().lost()

    def _leave(self) -> None:
        self._is_left = True
        self._sampling.detach(self)
        if self._showing is not None:
            self._showing.cancel()

    # -- as the sampling knows it -----------------------------------------------------------------------------------

    def wake(self) -> None:
        """There are new figures."""
        self._fresh.set()

    def end(self, error: RunnelError | None = None) -> None:
        """The sampling ended: join another, unless the broker is closed, or the right was revoked."""
        if error is None:
            self._is_over = True
        else:
            self._refusal = error
        self._fresh.set()

    @property
    def ended(self) -> bool:
        """Whether it is closed: until then it may be called for figures again."""
        return self._is_left

    async def _show(self) -> None:
        """Send figures, the newest only, as fast as the page reads."""
        try:
            pages = await self._sampling.pages()
            while True:
                await self._fresh.wait()
                self._fresh.clear()
                if self._refusal is not None:
                    raise self._refusal
                if self._is_over:
                    await asyncio.sleep(INTERVAL)
                    self._is_over = False
                    pages = await self._sampling.pages()
                await self._outlet.writable()
                if self._query is not None:
                    self._outlet.write(_figures(pages.page(self._query)))
        except BrokerClosed:
            pass
        except RunnelError as error:
            self._outlet.write(events.error(error, "LOOK"))
        except Exception:
            log.exception("the figures of the console could not be sent")
        finally:
            self._sampling.detach(self)


def _figures(document: bytes) -> bytes:
    """A page as an event. It is an object and has fields."""
    return b'{"event":"figures",' + document[1:] + b"\n"
