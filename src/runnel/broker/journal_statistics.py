"""What the journal of a broker did and holds, as a frozen snapshot.

Below: store, disk_watch, cleaning, scrubbing. Above: statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runnel.core.statistics import ArchiveStatistics, HolderStatistics, JournalStatistics

if TYPE_CHECKING:
    from runnel.broker.store import Store


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
        journal.sync_durations.snapshot(),
    )
