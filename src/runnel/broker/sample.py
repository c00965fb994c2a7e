"""A sample for a console: topics, subscriptions, groups, dead letters and the journal, about every second.

`snapshot` looks at everything at once: some 15 ms with 10,000 topics. A sample is taken again and again and must not
hold up the event loop for so long, so it yields after every `PER_TURN` topics or subscriptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from runnel.broker.dead_letters import dead_letter_topics
from runnel.broker.positions import stored_sizes
from runnel.broker.statistics import (
    journal_statistics,
    open_readers,
    subscription_statistics,
    topic_statistics,
    unread_names,
    waiting_publishers,
)
from runnel.core.statistics import (
    BackendSample,
    JournalSample,
    SegmentSample,
    SubscriptionSample,
    TopicSample,
)

if TYPE_CHECKING:
    from runnel.broker.durable.journal_reads import JournalReads
    from runnel.broker.durable.store import Store
    from runnel.broker.parts import BrokerParts
    from runnel.journal.read.segment_reader import SegmentReader

MOST_NAMES = 1_000  # names without a reader
COUNTED = 16  # sealed segments that one sample counts the records of, at most: each takes reading an index, once
PER_TURN = 256  # topics or subscriptions after which others on the loop have their turn


async def take_sample(backend: BrokerParts) -> BackendSample:
    """The broker about now."""
    topics, published, published_bytes = await _topics(backend)
    ended = backend.totals.sum()
    subscriptions = await _subscriptions(backend)
    return BackendSample(
        tuple(topics),
        tuple(subscriptions),
        tuple(reader.statistics() for reader in backend.groups),
        tuple(dead_letter_topics(backend)),
        published,
        published_bytes,
        ended.delivered + sum(one.figures.delivered for one in subscriptions),
        ended.dropped + sum(one.figures.dropped for one in subscriptions),
        waiting_publishers(backend),
        None if backend.store is None else await _journal(backend.store),
        backend.relay_reports.current(backend.clock.time()),
        backend.pipeline_reports.current(backend.clock.time()),
        unread_names(backend, MOST_NAMES),
    )


async def _topics(backend: BrokerParts) -> tuple[list[TopicSample], int, int]:
    """All topics; and the records and bytes ever published, also to deleted topics."""
    found = []
    published, published_bytes = backend.totals.published, backend.totals.published_bytes
    for number, log in enumerate(list(backend.catalog.logs.values())):
        if number % PER_TURN == PER_TURN - 1:
            await asyncio.sleep(0)
        if log.name[0] != "$" and not log.deleted:
            figures = topic_statistics(backend, log, stored_sizes(backend, log))
            published += figures.published
            published_bytes += figures.published_bytes
            found.append(TopicSample(figures, log.options, log.stored is not None))
    return found, published, published_bytes


async def _subscriptions(backend: BrokerParts) -> list[SubscriptionSample]:
    found = []
    for number, one in enumerate(open_readers(backend)):
        if number % PER_TURN == PER_TURN - 1:
            await asyncio.sleep(0)
        if one in backend.readers:  # one that ended meanwhile counts among those that have ended
            found.append(SubscriptionSample(backend.sample_id(one), subscription_statistics(one)))
    return found


async def _journal(store: Store) -> JournalSample:
    segments = []
    sources = tuple(store.journal.history.sources)
    await _count(store.reads, sources)
    for source in sources:
        info = source.info
        segments.append(
            SegmentSample(
                info.number,
                info.name,
                source.written,
                info.sealed,
                source.count() if source.is_counted else None,
                info.first_time / 1e6,
                info.last_time / 1e6 if info.sealed else None,
                info.generation,
            )
        )
    return JournalSample(journal_statistics(store), store.journal.options.fsync, tuple(segments))


async def _count(reads: JournalReads, sources: Sequence[SegmentReader]) -> None:
    """Count the records of the newest segments that are not counted yet, in a thread."""
    wanted = [source for source in reversed(sources) if not source.is_counted][:COUNTED]

    def count() -> None:
        for source in wanted:
            with suppress(OSError):  # it was removed meanwhile, or cannot be read now
                source.count()

    if wanted:
        counted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        reads.look(count, lambda _: None if counted.done() else counted.set_result(None))
        await counted
