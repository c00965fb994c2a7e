"""Cancelled records: published with a delay and a message id, and not to be handed to any group any more.

The record stays in its log, which is append-only. A marker says that what was published under that id up to now is
cancelled; groups that come later find it, too. It counts as expired in each group, when its time has come.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from runnel.core.clock import micros
from runnel.core.errors import LimitExceeded, UnknownTopic
from runnel.core.markers import Marker
from runnel.core.options import check_message_id
from runnel.core.record import MESSAGE_ID, header_of_id
from runnel.core.transaction import TransactionRequest

if TYPE_CHECKING:
    from runnel.broker.backend import LocalBackend
    from runnel.broker.group.records import GroupSlice
    from runnel.broker.markers import Markers

MARKER_PREFIX = "$runnel.cancelled."
MAX_CANCELLED = 65_536
KEPT = 366 * 24 * 3600 * 1_000_000  # microseconds after which a cancellation is forgotten, if others need its place


class Cancellations:
    """What was cancelled, as markers say it."""

    def __init__(self, markers: Markers) -> None:
        self._markers = markers
        self.any = False  # whether a group has to ask

    def recall(self) -> None:
        """The markers were read from disk."""
        self.any = any(name.startswith(MARKER_PREFIX) for name in self._markers.values)

    def covers(self, contents: GroupSlice, place: int) -> bool:
        """Whether the record at a group's place is cancelled."""
        record = contents.records(place, place + 1)[0]
        header = record.headers.get(MESSAGE_ID)
        if header is None:
            return False
        until = self._markers.values.get(_marker(record.topic, header))
        return isinstance(until, int) and micros(record.time) <= until


def _marker(topic: str, header: str) -> str:
    return MARKER_PREFIX + hashlib.blake2b(f"{topic}\0{header}".encode(), digest_size=16).hexdigest()


async def cancel(backend: LocalBackend, topic: str, message_id: str) -> None:
    """Hand what was published to `topic` under `message_id` to no group from now on. Durable when it returns."""
    backend.loop_owner.check_usable("cancelling a record")
    check_message_id("message_id", message_id)
    log = backend.catalog.logs.get(topic)
    if log is None:
        raise UnknownTopic(topic)
    request, now = TransactionRequest(), micros(backend.timeline.now())
    known = [name for name in backend.markers.values if name.startswith(MARKER_PREFIX)]
    if len(known) >= MAX_CANCELLED:
        old = [name for name in known if _time(backend, name) < now - KEPT]
        if not old:
            raise LimitExceeded("max_cancelled", len(known) + 1, MAX_CANCELLED)
        for name in old:
            request.mark(Marker(name, None))
    request.mark(Marker(_marker(topic, header_of_id(message_id)), now))
    backend.cancellations.any = True
    for group in backend.groups:
        group.group.is_cancelled = backend.cancellations.covers
    await backend.commit(request)


def _time(backend: LocalBackend, name: str) -> int:
    value = backend.markers.values[name]
    return value if isinstance(value, int) else 0
