"""Schedules: functions that are called at times, `@broker.every(60)` and `@broker.cron("0 9 * * mon-fri")`.

At a due time every process that runs the schedule tries the same transaction: it publishes the firing and moves the
marker of the schedule from the last due time to this one. One of them succeeds, so there is one firing, without a
leader. The firing is a record that a group works on, with its retries and dead letters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

import msgspec

from runnel.api.topic import Topic
from runnel.api.transaction import Transaction
from runnel.core.clock import Clock
from runnel.core.errors import Ended, InvalidName, InvalidOption, MarkConflict, NotSupported, RunnelError, TopicConflict
from runnel.core.markers import MarkerValue
from runnel.core.pattern import check_name
from runnel.core.timing import Timing
from runnel.runtime.waiting import resolve_waiter

GROUP = "schedules"
LATE = 60.0  # seconds: a newest due time that is over for longer counts as missed
MOST_MISSED = 1000  # firings that are made up for
LONGEST_WAIT = 60.0  # seconds without a look at the clock, which may be set, or stand still while a machine sleeps
KEPT = 1000  # firings that the topic keeps, and where only an age can be said:
KEPT_SECONDS = 7 * 24 * 3600.0
PAUSES = (1.0, 2.0, 5.0, 15.0)  # seconds before a firing is tried again after an error

log = logging.getLogger("runnel")


class Missed(StrEnum):
    """Policies for due times at which no process ran the schedule."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class Firing(msgspec.Struct, frozen=True):
    """One firing of a schedule: `due` says for which time. `missed`: it was published more than a minute later."""

    schedule: str
    due: datetime
    missed: bool = False


class ScheduleBroker(Protocol):
    """The parts of the broker that schedules use."""

    @property
    def clock(self) -> Clock:
        """The clock by which they are due."""

    @property
    def topic(self) -> Callable[..., Topic[Any]]:
        """A handle on a topic, with options."""

    async def mark(self, name: str) -> MarkerValue | None:
        """The value of a mark."""

    def transaction(self) -> Transaction:
        """Several changes at once."""


class Schedule:
    """A name, the due times, and what happens to missed ones."""

    def __init__(self, name: str, timing: Timing, missed: str) -> None:
        self.name, self.timing = name, timing
        try:
            self.topic = check_name(f"schedules.{name}")
        except InvalidName as error:
            raise InvalidOption("name", name, f"{error}; give the schedule a name: name=") from None
        self._mark = f"schedule:{name}"
        try:
            self.missed = Missed(missed)
        except ValueError:
            why = f"expected one of {', '.join(one.value for one in Missed)}"
            raise InvalidOption("missed", missed, why) from None
        self._last = 0.0  # the due time up to which everything was fired or given up

    def __repr__(self) -> str:
        return f"<Schedule {self.name!r} {self.timing!r}>"

    async def begin(self, broker: ScheduleBroker) -> None:
        """Make the topic, and note that the schedule exists: due times from now on may count as missed."""
        for options in ({"retention_count": KEPT}, {"retention_age": KEPT_SECONDS}):
            with contextlib.suppress(NotSupported, TopicConflict):  # the user gave it options, or a cluster counts not
                await broker.topic(self.topic, **options).declare()
                break
        with contextlib.suppress(MarkConflict):  # it was begun before
            async with broker.transaction() as transaction:
                transaction.mark(self._mark, _millis(broker.clock.time()), expected=None)
        await self._recall(broker)

    async def run(self, broker: ScheduleBroker) -> None:
        """Fire whenever it is due, until cancelled. Errors are logged, and the firing is tried again."""
        failures = 0
        while True:
            due = self.timing.next(self._last)
            if due is None:
                log.warning("schedule %s is never due again", self.name)
                return
            await self._wait(broker.clock, due)
            try:
                await self._fire(broker, broker.clock.time())
                failures = 0
            except Ended:
                return  # the broker was closed
            except RunnelError as error:
                pause = PAUSES[min(failures, len(PAUSES) - 1)]
                log.warning("schedule %s could not fire, and is tried again in %g s: %s", self.name, pause, error)
                failures += 1
                await _sleep(broker.clock, pause)

    @staticmethod
    async def _wait(clock: Clock, until: float) -> None:
        while (left := until - clock.time()) > 0:
            await _sleep(clock, min(left, LONGEST_WAIT))

    async def _recall(self, broker: ScheduleBroker) -> None:
        found = await broker.mark(self._mark)
        if not isinstance(found, int):
            raise InvalidOption("name", self.name, f"the mark {self._mark!r} is {found!r}, and not one of a schedule")
        self._last = found / 1000

    async def _fire(self, broker: ScheduleBroker, now: float) -> None:
        """Publish what is due, unless another process has."""
        limit = MOST_MISSED if self.missed is Missed.ALL else 1
        dues = self.timing.between(self._last, now, limit)
        if not dues:
            return  # the clock was set back
        firings = [Firing(self.name, datetime.fromtimestamp(due, UTC), now - due > LATE) for due in dues]
        if self.missed is Missed.SKIP:
            firings = [firing for firing in firings if not firing.missed]
        try:
            async with broker.transaction() as transaction:
                for firing in firings:
                    transaction.publish(self.topic, msgspec.json.encode(firing), key=self.name)
                transaction.mark(self._mark, _millis(dues[-1]), expected=_millis(self._last))
        except MarkConflict:
            pass
        else:
            if transaction.applied:
                self._last = dues[-1]
                return
        await self._recall(broker)  # another process was first


def _millis(time: float) -> int:
    return round(time * 1000)


async def _sleep(clock: Clock, seconds: float) -> None:
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_later(seconds, partial(resolve_waiter, over))
    try:
        await over
    finally:
        timer.cancel()
