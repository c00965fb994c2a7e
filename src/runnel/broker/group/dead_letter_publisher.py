"""Publishes what failed for good to the group's dead-letter topic.

A dead letter is the last trace of a record. If the journal cannot take it (a full disk), it is tried again, and the
record does not count as settled on disk before the letter is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from runnel.broker.durable.pending_acks import PendingAcks
from runnel.broker.group.logic.group import DeadLetter
from runnel.broker.group.records import GroupSlice
from runnel.broker.topic.catalog import UNDECLARED, TopicCatalog
from runnel.broker.topic.publisher import Publisher
from runnel.core import dead_letter
from runnel.core.errors import BrokerClosed, DiskFull, JournalFailed, TooLarge
from runnel.core.record import Record
from runnel.runtime.dead_letter_log import DeadLetterLog

RETRY = 1.0

logger = logging.getLogger("runnel")


class DeadLetterPublisher:
    """Publishes what failed for good."""

    def __init__(
        self,
        publisher: Publisher,
        catalog: TopicCatalog,
        retry: Callable[[float, Callable[[], None]], bool] | None,
        group: str,
        topic: str,
        log: DeadLetterLog,
    ) -> None:
        self.topic, self.log = topic, log
        self.pending_acks: PendingAcks | None = None  # where the group outlives its process
        self.tell_requester: Callable[[Record[bytes], str], None] = lambda record, reason: None
        self.count: Callable[[str], None] = lambda reason: None
        self._publisher, self._catalog, self._retry_later, self._group = publisher, catalog, retry, group
        self._waiting: dict[int, DeadLetter] = {}  # those that found no room
        self._retrying = False

    def publish(self, letters: list[DeadLetter]) -> None:
        """Publish letters to the dead-letter topic, without waiting for its slow readers."""
        for letter in letters:
            self.count(letter.reason)
            self._publish(letter, is_first=True)

    def _publish(self, letter: DeadLetter, *, is_first: bool = False) -> None:
        assert isinstance(letter.contents, GroupSlice)
        (record,) = letter.contents.records(letter.place, letter.place + 1)
        self.tell_requester(record, letter.reason)
        headers = dead_letter.dead_letter_headers(
            record, letter.reason, attempts=str(letter.attempts), group=self._group
        )
        if is_first:
            self.log.note(record.topic, record.offset, headers[dead_letter.REASON], self.topic)
        publisher = self._publisher
        try:
            entry = publisher.own(self.topic, record.value, record.key, headers)
        except TooLarge:  # it was as large as may be; its story makes it too large
            entry = publisher.own(self.topic, record.value, record.key, _short(headers))
        try:
            log = self._catalog.find(self.topic, UNDECLARED, declared=True)
            publisher.append(log, entry)
        except (DiskFull, JournalFailed, BrokerClosed) as error:  # it is tried again, in another life if need be
            self._told(letter, error)
            return
        if entry.pending_batch is not None:
            entry.pending_batch.listeners.append(partial(self._told, letter))

    def _told(self, letter: DeadLetter, error: Exception | None) -> None:
        """A letter is on disk, or it is not."""
        place = letter.place
        if error is None:
            if self._waiting.pop(place, None) is not None and self.pending_acks is not None:
                self.pending_acks.release(place)
            return
        if place not in self._waiting:
            logger.error("a dead letter of group %r could not be stored and is kept: %s", self._group, error)
        if not self._retrying and self._retry_later is not None:
            self._retrying = self._retry_later(RETRY, self._retry)
        self._waiting[place] = letter
        if self.pending_acks is not None:
            self.pending_acks.hold(place)

    def _retry(self) -> None:
        """Try again with those that found no room. They wait until their letter is stored."""
        self._retrying = False
        for letter in list(self._waiting.values()):
            self._publish(letter)


def _short(headers: dict[str, str]) -> dict[str, str]:
    """The story alone."""
    return {name: text for name, text in headers.items() if name.startswith(dead_letter.PREFIX)}
