"""Where the records of a topic begin and end: `TopicBounds` for readers of ranges, `TopicFloors` for archives."""

from __future__ import annotations

import msgspec

from runnel.core.schema import Schema

TRIMMED = "trimmed"
"""The reason for which a user, and no limit, removed records."""


class TopicBounds(msgspec.Struct, frozen=True):
    """A topic's records are [first, end), less the holes, in this `epoch`.

    - `bytes`: what they weigh, about: the average of all that was ever published, times how many there may be.
    - `durable`: whether they are on disk. Those in memory go when newer ones come.
    - `at`: of a question with a time, the first offset that is not older; with a sequence, the first that does not lie
      before it; `end`, if there is none.
    - `schema`: of a typed topic.
    - `records`: about how many there are, where offsets have many more holes than records.
    - `removed`: ranges [first, end) of which records left the journal, each with the reason. Only of bounds of the
      journal alone (without sources of history), where they are known.
    """

    topic: str
    epoch: int
    first: int
    end: int
    bytes: int = 0
    durable: bool = True
    at: int | None = None
    schema: Schema | None = None
    removed: tuple[tuple[int, int, str], ...] | msgspec.UnsetType = msgspec.UNSET
    records: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def density(self) -> float:
        """How many records there are for each offset, about: 1, where few offsets are holes."""
        if self.records is msgspec.UNSET or self.end <= self.first:
            return 1.0
        return max(1, self.records) / (self.end - self.first)

    @property
    def record_bytes(self) -> float:
        """Average bytes per offset: about the size of one record, if few offsets are holes."""
        return max(self.density, self.bytes / (self.end - self.first)) if self.end > self.first else 1.0


class TopicFloors(msgspec.Struct, frozen=True):
    """How far the records of a topic have left the journal, in this `epoch`: offsets, each the first that has not.

    - `gone`: below it nothing can be read any more, from wherever: a user trimmed it. An archive may erase records
      below it, and all records of earlier epochs.
    - `moved`: where the journal begins. Records of [gone, moved) are read from the topic's source of history, if it has
      one; retention took them from the journal.
    - `confirmed`: below it the source has all records, as the archive said and the broker checked.
    - `end`: the offset that the next record gets.
    - `unconfirmed_bytes`: about what the journal must keep until it is confirmed; 0 without `retention_until`.
    """

    topic: str
    epoch: int
    gone: int
    moved: int
    confirmed: int
    end: int
    unconfirmed_bytes: int = 0


def estimated_bytes(total: int, given: int, kept: int) -> int:
    """About what `kept` offsets weigh, where `given` of them had `total` bytes."""
    return total * kept // given if given > 0 else 0
