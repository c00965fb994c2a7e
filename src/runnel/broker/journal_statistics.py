"""What the journal of a broker did and holds, as a frozen snapshot.

Below: store, disk_watch, cleaning, scrubbing. Above: statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runnel.broker.cleaning import CleanerStatistics

if TYPE_CHECKING:
    from runnel.broker.store import Store


class HolderStatistics(msgspec.Struct, frozen=True):
    """A named subscription that holds: `bytes` lie at its position and behind it, and are kept for it."""

    name: str
    pattern: str
    bytes: int


class ArchiveStatistics(msgspec.Struct, frozen=True):
    """An archive that holds: segments behind `through` stay until it comes by. Times are in seconds since 1970."""

    place: str
    through: int
    since: float
    seen: float


class JournalStatistics(msgspec.Struct, frozen=True):
    """The journal of a durable broker at one moment.

    `free_bytes` is as of the last look, a few seconds ago at most (None: there was none yet). The disk is `low`
    below twice `min_free`, and `full` when no new segment may begin. `damage` is what scrubbing found.
    """

    segments: int
    disk_bytes: int
    pending_bytes: int
    syncs: int
    free_bytes: int | None
    min_free: int
    low: bool
    full: bool
    failed: str | None
    holders: tuple[HolderStatistics, ...]
    scrubbed_bytes: int
    scrubbed_segments: int
    damage: tuple[str, ...]
    cleaner: CleanerStatistics | None = None
    stages: int = 0  # that are open, and what they hold
    staged_bytes: int = 0
    archives: tuple[ArchiveStatistics, ...] = ()  # that hold, as of the last look


def of_store(store: Store) -> JournalStatistics:
    """The journal as it is now."""
    journal, watch, scrubber = store.journal, store.watch, store.scrubber
    sources = tuple(journal.history.sources)
    cleaner = store.cleaner
    return JournalStatistics(
        len(sources),
        sum(source.written for source in sources),
        store.commits.pending.bytes,
        journal.syncs,
        watch.free,
        journal.options.min_free,
        watch.is_low,
        watch.free is not None and watch.free < journal.needed(0),
        None if journal.failed is None else str(journal.failed),
        tuple(
            HolderStatistics(hold.name, hold.pattern, watch.held.get(hold.name, 0))
            for hold in store.holding.holds.values()
        ),
        scrubber.scrub.bytes,
        scrubber.scrub.segments,
        scrubber.damage(),
        None if cleaner is None else cleaner.statistics(),
        len(store.staging),
        store.staging.bytes,
        tuple(ArchiveStatistics(one.place, one.through, one.since / 1e6, one.seen / 1e6) for one in watch.archives),
    )
