"""The dead letters of a group on their way to their topic.

A letter is the last trace of a record. Where the journal cannot take it, because the disk is full say, it
is tried again, and its record does not count as settled on disk before the letter is there.
Below: publisher, group_keeper. Above: group_reader.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from runnel.broker import dead_letter
from runnel.broker.catalog import UNSAID
from runnel.broker.group.machine import DeadLetter
from runnel.broker.group_bringing import Stock
from runnel.broker.group_keeper import GroupKeeper
from runnel.core.errors import BrokerClosed, TooLarge
from runnel.core.journal_errors import DiskFull, JournalFailed

if TYPE_CHECKING:
    from runnel.broker.bus import Bus

RETRY = 1.0

logger = logging.getLogger("runnel")


class Letters:
    """Publishes what failed for good."""

    def __init__(self, bus: Bus, group: str, topic: str) -> None:
        self.topic = topic
        self.keeper: GroupKeeper | None = None  # where the group outlives its process
        self._bus, self._group = bus, group
        self._waiting: dict[int, DeadLetter] = {}  # those that found no room
        self._retrying = False

    def bury(self, letters: list[DeadLetter]) -> None:
        """Publish letters to the dead-letter topic, whoever is slow there."""
        for letter in letters:
            self._bury(letter)

    def _bury(self, letter: DeadLetter) -> None:
        assert isinstance(letter.stock, Stock)
        (record,) = letter.stock.records(letter.place, letter.place + 1)
        headers = dead_letter.story(record, letter.reason, attempts=str(letter.attempts), group=self._group)
        publisher = self._bus.publisher
        try:
            entry = publisher.one(self.topic, None, record.value, record.key, headers, None, None, 0, None)
        except TooLarge:  # it was as large as may be; its story makes it too large
            entry = publisher.one(self.topic, None, record.value, record.key, _short(headers), None, None, 0, None)
        try:
            log = self._bus.catalog.find(self.topic, UNSAID, declared=True)
            publisher.append(log, entry)
        except (DiskFull, JournalFailed, BrokerClosed) as error:  # it is tried again, in another life if need be
            self._told(letter, error)
            return
        if log.stored is not None and (gathering := log.stored.gathering) is not None:
            gathering.listeners.append(partial(self._told, letter))

    def _told(self, letter: DeadLetter, error: Exception | None) -> None:
        """A letter is on disk, or it is not."""
        place = letter.place
        if error is None:
            if self._waiting.pop(place, None) is not None and self.keeper is not None:
                self.keeper.release(place)
            return
        if place not in self._waiting:
            logger.error("a dead letter of group %r could not be stored and is kept: %s", self._group, error)
        store = self._bus.store
        if not self._retrying and store is not None and store.journal.failed is None and not store.commits.stopped:
            self._retrying = True
            store.commits.loop.call_later(RETRY, self._retry)
        self._waiting[place] = letter
        if self.keeper is not None:
            self.keeper.hold(place)

    def _retry(self) -> None:
        """Try again with those that found no room. They wait until they are told that they are there."""
        if self._bus.home.state != "open":
            return
        self._retrying = False
        for letter in list(self._waiting.values()):
            self._bury(letter)


def _short(headers: dict[str, str]) -> dict[str, str]:
    """The story alone."""
    return {name: text for name, text in headers.items() if name.startswith(dead_letter.PREFIX)}
