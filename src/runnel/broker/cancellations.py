"""Cancelled records: published with a delay and a message id, and no longer delivered to any group.

The record stays in its log, which is append-only. A marker says that every record published under that id up to now is
cancelled; groups that come later find it, too. It counts as expired in each group, when its time has come.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import TYPE_CHECKING, Any

from runnel.core.clock import micros
from runnel.core.errors import LimitExceeded
from runnel.core.markers import Marker
from runnel.core.options import check_message_id
from runnel.core.record import MESSAGE_ID, header_of_id
from runnel.core.transaction import TransactionRequest

if TYPE_CHECKING:
    from runnel.broker.markers import Markers

MARKER_PREFIX = "$runnel.cancelled."
MAX_CANCELLED = 65_536
KEPT = 366 * 24 * 3600 * 1_000_000  # microseconds after which a cancellation is forgotten, if others need its place


class Cancellations:
    """The cancelled ids, as stored in markers."""

    def __init__(self, markers: Markers) -> None:
        self._markers = markers
        self.any = False  # whether a group has to ask

    def recall(self) -> None:
        """The markers were read from disk."""
        self.any = any(name.startswith(MARKER_PREFIX) for name in self._markers.values)

    def covers(self, contents: Any, place: int) -> bool:
        """Whether the record at a group's place is cancelled."""
        record = contents.records(place, place + 1)[0]
        header = record.headers.get(MESSAGE_ID)
        if header is None:
            return False
        until = self._markers.values.get(_marker(record.topic, header))
        return isinstance(until, int) and micros(record.time) <= until

    def request(self, topic: str, message_id: str, now: datetime) -> TransactionRequest:
        """The marker that cancels the record of `topic` with that id. From now on, groups check for it."""
        check_message_id("message_id", message_id)
        request, time, values = TransactionRequest(), micros(now), self._markers.values
        known = [name for name in values if name.startswith(MARKER_PREFIX)]
        if len(known) >= MAX_CANCELLED:
            old = [name for name in known if isinstance(at := values[name], int) and at < time - KEPT]
            if not old:
                raise LimitExceeded("max_cancelled", len(known) + 1, MAX_CANCELLED)
            for name in old:
                request.mark(Marker(name, None))
        request.mark(Marker(_marker(topic, header_of_id(message_id)), time))
        self.any = True
        return request


def _marker(topic: str, header: str) -> str:
    return MARKER_PREFIX + hashlib.blake2b(f"{topic}\0{header}".encode(), digest_size=16).hexdigest()
