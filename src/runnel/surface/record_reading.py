"""What every subscription to records does alike: what was missed is told with the next item, values are decoded.

Below: reading, decoding. Above: broker.subscription, the client's.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from runnel.core.batch import Batch
from runnel.core.codec import Codec
from runnel.core.errors import RecordsMissed, ValidationFailed
from runnel.core.missed import TOO_SLOW, Missed, joined
from runnel.core.record import Gap, Record
from runnel.surface.decoding import decoded
from runnel.surface.reading import Reading

T = TypeVar("T")

WARN_SHARE = 0.01  # above this share of drops a subscription is warned about, once

log = logging.getLogger("runnel")


class RecordReading(Reading, Generic[T]):
    """A subscription that hands out records, and says which ones it has missed."""

    def __init__(self, codec: Codec[T] | None) -> None:
        super().__init__()
        self._codec = codec
        self._missed: Missed | None = None  # counted, and to be told with the next item
        self._warned = False
        self.delivered = 0
        self.dropped_count = 0
        self.expired = 0

    @property
    @abstractmethod
    def pattern(self) -> str:
        """The topic or pattern it reads."""

    @property
    @abstractmethod
    def is_pattern(self) -> bool:
        """Whether it reads in the order of sequences."""

    @property
    @abstractmethod
    def _is_strict(self) -> bool:
        """Whether a gap is an error."""

    @abstractmethod
    def _say(self, gap: Gap) -> None:
        """Tell a gap to whoever asked to hear of it at once."""

    # -- values -------------------------------------------------------------------------------------------------

    def _decoded(
        self, codec: Codec[T], records: Iterable[Record[bytes]], encoding_of: Callable[[str], str | None]
    ) -> Batch[T]:
        """Records with values of their own. What cannot be decoded is told as a gap, and reading goes on."""
        good: list[Record[T]] = []
        leading: Gap | None = None
        missed: Missed | None = None
        for record in records:
            try:
                typed = decoded(codec, encoding_of(record.topic), record)
            except ValidationFailed as error:
                at = record.sequence if self.is_pattern else record.offset
                first, count, why = (missed.first, missed.count, missed.reason) if missed else (at, 0, "")
                missed = Missed(first, at + 1, count + 1, why or f"not a {codec.name}: {error.why}")
                continue
            self._miss(missed, len(good))
            missed, gap = None, self._gap()
            if not good:
                leading, gap = gap, None
            good.append(typed if gap is None else msgspec.structs.replace(typed, gap=gap))
        self._miss(missed, len(good))
        return Batch(records=tuple(good), gap=leading)

    @staticmethod
    def _told(batch: Batch[T]) -> tuple[Record[T], ...]:
        """The records of `batch`, the first with its gap."""
        if batch.gap is None:
            return batch.records
        return (msgspec.structs.replace(batch[0], gap=batch.gap), *batch[1:])

    # -- gaps ---------------------------------------------------------------------------------------------------

    def _gap(self) -> Gap | None:
        """What was missed since the last item, once."""
        missed, self._missed = self._missed, None
        return None if missed is None else self._as_gap(missed)

    def _as_gap(self, missed: Missed) -> Gap:
        return Gap(self.pattern, missed.first, missed.end, missed.count, missed.reason)

    def _miss(self, missed: Missed | None, beside: int) -> None:
        """Count what was missed beside so many records that were not; tell whoever asked to hear at once."""
        if missed is None:
            return
        gap = self._as_gap(missed)
        self._missed = joined(self._missed, missed)
        self.dropped_count += missed.count
        share = self.dropped_count / max(1, self.delivered + beside + self.dropped_count)
        if share > WARN_SHARE and not self._warned:
            self._warned = True
            log.warning(
                "subscriber %r has missed %s records, %.1f %% of what was published for it: %s. %sThis is said once.",
                self.label,
                f"{self.dropped_count:,}",
                100 * share,
                gap.reason,
                "A larger buffer, batches() or a group would help. " if TOO_SLOW in gap.reason else "",
            )
        self._say(gap)
        if self._is_strict:
            self.end(RecordsMissed(self.label, gap))
            raise RecordsMissed(self.label, gap)
