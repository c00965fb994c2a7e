"""A long write, cut into batches of a bounded size, one after the other as they are asked for.

Values are checked and encoded a few at a time, so that the loop never belongs to one writer for long.
Below: publisher, gathering. Above: stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from runnel.broker.gate import Entry
from runnel.broker.gathering import Gathering, Pending
from runnel.core.errors import InvalidOption, InvalidValue, TooLarge
from runnel.core.publishing import headers_of_each

if TYPE_CHECKING:
    from runnel.broker.bus import Bus
    from runnel.broker.log import Log
    from runnel.core.codec import Codec
    from runnel.core.publishing import Headers, Seconds

PIECE = 1024 * 1024  # bytes of values in a batch; a larger value is a batch of its own
SMALL_PIECE = 256 * 1024  # the same while others write, who share a commit with it
STEP = 1024  # values looked at in one go


class Cut:
    """The values of one write from number `at` on, as batches ready to be packed."""

    def __init__(
        self,
        bus: Bus,
        log: Log,
        codec: Codec[Any] | None,
        values: Sequence[object],
        keys: Sequence[object] | None,
        headers: Headers | None,
        delay: Seconds | None,
        expires: Seconds | None,
        priority: int,
    ) -> None:
        if isinstance(values, bytes | bytearray | memoryview | str) or not isinstance(values, Sequence):
            raise InvalidValue(log.name, "list of values", values, "a stage takes a sequence; put one value in a list")
        if keys is not None and len(keys) != len(values):
            raise InvalidOption("keys", len(keys), f"there are {len(values)} values; give a key or None for each")
        if isinstance(headers, list | tuple):
            headers_of_each(headers, len(values))
        self.at = 0
        self.piece = PIECE  # may change on the way
        self._bus, self._log, self._codec = bus, log, codec
        self._values, self._keys, self._headers = values, keys, headers
        self._rest = (delay, expires, priority)

    def __iter__(self) -> Iterator[Gathering]:
        batch = self._batch()
        for entry in self._entries():
            if batch.count and batch.weight + entry.size + entry.extra > self.piece:
                yield batch
                batch = self._batch()
            batch.add(entry)
        if batch.count:
            yield batch

    def _batch(self) -> Gathering:
        assert self._bus.home.loop is not None, "whoever writes is on the broker's loop"
        return Gathering(self._log, 0, Pending(0, self._bus.home.loop))

    def _entries(self) -> Iterator[Entry]:
        """Some values at a time, few enough for a batch: as many as the last ones suggest."""
        step = 1
        while self.at < len(self._values):
            entry = self._some(step)
            weight = entry.size + entry.extra
            if weight > self.piece and len(entry.values) > 1:
                step = 1  # larger values than before
                continue
            self.at += len(entry.values)
            fitting = self.piece * len(entry.values) // (2 * max(1, weight))
            step = max(1, min(STEP, 4 * len(entry.values), fitting))
            yield entry

    def _some(self, count: int) -> Entry:
        publisher, end = self._bus.publisher, self.at + count
        keys = None if self._keys is None else self._keys[self.at : end]
        headers = self._headers[self.at : end] if isinstance(self._headers, list | tuple) else self._headers
        try:
            entry = publisher.many(self._log.name, self._codec, self._values[self.at : end], keys, headers, *self._rest)
        except TooLarge:
            if count == 1:
                raise
            return self._some(1)  # together they are; perhaps none of them alone
        publisher._check_type(self._log, entry)
        return entry
