"""Samples of the broker for the console: each second while a page is open, and at every step of the ring otherwise.

There is one sample for all pages. A slow page gets the newest figures and skips those between.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from runnel.core.errors import BrokerClosed, NotNow
from runnel.server.http.console import sampler as sampler_module
from runnel.server.http.console.connections import ConnectionTrends
from runnel.server.http.console.pages import ConsolePages
from runnel.server.http.console.ring import Key, SampleRing
from runnel.server.http.console.sampler import BrokerSampler

if TYPE_CHECKING:
    from runnel.server.served_broker import ServedBroker

INTERVAL = 1.0  # seconds between two samples while a page is open
IDLE_TIMEOUT = 30.0  # seconds of sampling without pages, so that a reloaded page finds fresh figures
KEPT_SECONDS = 6 * 3600.0  # that the ring holds
MOST_TOPICS = 200  # topics with the highest rates that are kept of each step
MOST_NAMES = 200  # groups, and named subscriptions

log = logging.getLogger("runnel")


class Viewer(Protocol):
    """An open page."""

    def wake(self) -> None:
        """There are new figures."""

    def end(self) -> None:
        """There will be no more."""


class ConsoleSampling:
    """Takes the samples. `begin` is for a server of its own; otherwise the first page begins it."""

    def __init__(self, serving: ServedBroker) -> None:
        self._serving = serving
        self._viewers: set[Viewer] = set()
        self._pages: ConsolePages | None = None
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()  # a page came: sample now
        self._fresh: asyncio.Future[None] | None = None  # done at the next sample
        self._alone_since: float | None = None
        self.ring = SampleRing(sampler_module.STEP, KEPT_SECONDS)
        self.connections = ConnectionTrends(serving.connections)

    @property
    def viewers(self) -> int:
        """How many pages are open."""
        return len(self._viewers)

    def begin(self) -> None:
        """Sample from now on, at every step. A gateway begins with its first page: its samples cross a network."""
        if not self._serving.backend.is_remote:
            self._start(after=self._until_step())

    def stop(self) -> None:
        """Sample no more."""
        if self._task is not None:
            self._task.cancel()

    def attach(self, viewer: Viewer) -> None:
        """A page is open: samples come each second from now on."""
        if not self._viewers:
            self._wanted.set()
        self._viewers.add(viewer)

    def detach(self, viewer: Viewer) -> None:
        """It disconnected. Harmless for one that never was connected."""
        self._viewers.discard(viewer)
        self._alone_since = None if self._viewers else asyncio.get_running_loop().time()

    async def pages(self) -> ConsolePages:
        """The pages of a sample that is no older than a second or two."""
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done():
            self._start(after=0.0)
        elif self._pages is None or loop.time() - self._pages.made > 2 * INTERVAL:
            self._wanted.set()
            self._fresh = self._fresh or loop.create_future()
        if self._fresh is not None:
            await asyncio.wait([self._fresh])
        assert self._pages is not None
        return self._pages

    def _start(self, after: float) -> None:
        loop = asyncio.get_running_loop()
        sampler = BrokerSampler(self._serving.backend)
        self._pages = ConsolePages(self._serving, sampler, self.connections)
        self._fresh = None if after else loop.create_future()
        self._wanted.clear()
        self._task = loop.create_task(self._run(sampler, self._pages, after), name="samples for the console")

    async def _run(self, sampler: BrokerSampler, pages: ConsolePages, after: float) -> None:
        """Take samples until the broker is closed."""
        loop, backend = asyncio.get_running_loop(), self._serving.backend
        due = loop.time() + after
        try:
            while True:
                try:
                    await asyncio.wait_for(self._wanted.wait(), max(0.0, due - loop.time()))
                    due = loop.time()
                except TimeoutError:
                    pass
                self._wanted.clear()
                if backend.loop_owner.state != "open":
                    return
                try:
                    if await sampler.take():
                        self.ring.add(backend.clock.time(), _values(sampler, len(self._serving.connections)))
                except NotNow as error:  # the server that has the topics is away: the figures stay as they were
                    log.debug("no new figures for the console: %s", error)
                pages.renew(loop.time())
                self._tell()
                interval = INTERVAL if self._is_watched(loop.time()) else self._until_step()
                # However long a sample takes, others come to their turn.
                due = max(due + interval, loop.time() + INTERVAL / 4)
        except BrokerClosed:
            pass
        except Exception:
            log.exception("the figures of the console could not be made")
        finally:
            if self._task is asyncio.current_task():
                self._resolve()
                for viewer in list(self._viewers):
                    viewer.end()

    def _tell(self) -> None:
        self._resolve()
        for viewer in list(self._viewers):
            viewer.wake()

    def _resolve(self) -> None:
        fresh, self._fresh = self._fresh, None
        if fresh is not None and not fresh.done():
            fresh.set_result(None)

    def _until_step(self) -> float:
        """Seconds until a little after the next step begins."""
        step = sampler_module.STEP
        return step - self._serving.backend.clock.time() % step + min(0.1, step / 10)

    def _is_watched(self, now: float) -> bool:
        return bool(self._viewers) or (self._alone_since is not None and now - self._alone_since < IDLE_TIMEOUT)


def _values(sampler: BrokerSampler, connections: int) -> dict[Key, float]:
    """The ring's values of a step: rates over the step, and lags at its end."""
    found: dict[Key, float] = {
        ("totals", "", name): trend.rates[-1]
        for name, trend in (
            ("published", sampler.published),
            ("published_bytes", sampler.published_bytes),
            ("delivered", sampler.delivered),
            ("acked", sampler.acked),
            ("dropped", sampler.dropped),
        )
        if trend.rates
    }
    found["totals", "", "lag"] = sampler.lag
    found["totals", "", "connections"] = connections
    if sampler.syncs and (last := sampler.syncs[-1]).syncs:
        found["totals", "", "sync_p50"], found["totals", "", "sync_p99"] = last.p50, last.p99
    moving = [(rates[-1], name) for name, one in sampler.topics.items() if (rates := one.published.rates)]
    for rate, name in sorted(moving, reverse=True)[:MOST_TOPICS]:
        found["topic", name, "published"] = rate
    groups = sorted(sampler.groups.values(), key=lambda one: -one.figures.lag)[:MOST_NAMES]
    for group in groups:
        key = f"{group.figures.name}\n{group.figures.pattern}"
        found["group", key, "lag"] = group.figures.lag
        found["group", key, "in_flight"] = group.figures.in_flight
        found["group", key, "acked"] = group.acked.rates[-1] if group.acked.rates else 0.0
    named = [(one.figures.lag, one.figures.name) for one in sampler.subscribers if one.figures.name is not None]
    named += [(one.lag, one.name) for one in sampler.cursors if one.lag is not None]
    for lag, name in sorted(named, reverse=True)[:MOST_NAMES]:
        found["subscription", name, "lag"] = lag
    return found
