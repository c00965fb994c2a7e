"""Cleaning a journal in a test, and looking at what it holds: record by record, whatever batches they lie in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from runnel.core.batch_format import UnpackedBatch, pack, unpack
from runnel.core.record import Meta
from runnel.journal.clean.cleaning_job import CleaningJob
from runnel.journal.format.entry import STAGE_TOPIC, Part, PartKind, state_part
from runnel.journal.format.ledger import (
    Ledger,
    StageState,
    stage_commit_part,
    stage_dropped_part,
    stage_part,
    staged_part,
    trim_part,
)
from runnel.journal.format.offset_sets import OffsetBitmap
from runnel.journal.format.removed_offsets import RemovalReason
from runnel.journal.options import JournalOptions
from runnel.journal.read.journal_reader import JournalReader
from runnel.journal.read.segment_reader import (
    BlocksCommit,
    FoundBatch,
    FoundItem,
    LostRange,
    SegmentReader,
    StageCommit,
    runs_of_item,
)
from runnel.journal.read.staged_blocks import read_committed_blocks
from runnel.journal.storage import Storage
from runnel.journal.write.journal import Journal
from tests.carried import columns_of
from tests.journal.written_journal import Writer, read_sequence, read_topic


class Seen(NamedTuple):
    """One record, with all that must stay as it is."""

    topic: int
    offset: int
    sequence: int
    time: int
    value: bytes
    meta: Meta
    client_time: int | None
    about: tuple[int, int]  # content type and schema


_PLAIN = Meta()


def records(items: Iterable[FoundItem], history: JournalReader) -> list[Seen | LostRange]:
    """The records of batches, in order; staged ones from where they lie."""
    seen: list[Seen | LostRange] = []
    for item in items:
        if isinstance(item, LostRange):
            seen.append(item)
        elif isinstance(item, StageCommit):
            offset, sequence = item.base, item.sequence
            staged = {
                one.base: one for one in read_topic(history, STAGE_TOPIC | item.stage) if isinstance(one, FoundBatch)
            }
            for ordinal, count in enumerate(item.counts):
                if ordinal in staged:  # or it was cleaned away, before the commit that nobody wants any more
                    body = staged[ordinal].body
                    seen += _of_batch(FoundBatch(item.topic, offset, offset + count - 1, sequence, item.time, body))
                offset, sequence = offset + count, sequence + count
        elif isinstance(item, BlocksCommit):
            many = len(item.shares) > 1
            place = item.sequence if many else item.base
            for found in read_committed_blocks(history, item, place, by_sequence=many):
                if not isinstance(found, int):
                    seen += [found] if isinstance(found, LostRange) else _of_batch(found)
        else:
            seen += _of_batch(item)
    return seen


def _of_batch(item: FoundBatch) -> list[Seen]:
    batch = unpack(item.body)
    places: list[tuple[int, int, int]] = []
    if item.runs is None:
        deltas = batch.deltas or range(len(batch))
        places = [(item.base + delta, item.sequence + delta, item.time) for delta in deltas]
    else:
        for run in runs_of_item(item):
            places += [(run.offset + at, run.sequence + at, run.time) for at in range(run.count)]
    return [_seen(item.topic, place, batch, item.at + at) for at, place in enumerate(places)]


def _seen(topic: int, place: tuple[int, int, int], batch: UnpackedBatch, at: int) -> Seen:
    client_time = None if batch.times is None else batch.times[at]
    about = (batch.header.content_type, batch.header.schema)
    return Seen(topic, *place, batch.values[at], batch.metas.get(at, _PLAIN), client_time, about)


def by_topic(history: JournalReader, topic: int, offset: int = 0) -> list[Seen | LostRange]:
    """All records of a topic from an offset on."""
    found = records(read_topic(history, topic, offset), history)
    return [one for one in found if isinstance(one, LostRange) or one.offset >= offset]


def by_sequence(history: JournalReader, topics: Collection[int], sequence: int = 0) -> list[Seen | LostRange]:
    """All records of some topics from a sequence on."""
    found = records(read_sequence(history, topics, sequence), history)
    return [one for one in found if isinstance(one, LostRange) or one.sequence >= sequence]


def finished(job: CleaningJob) -> CleaningJob:
    """A job, worked off."""
    while not job.done:
        job.step()
    return job


def sealed(journal: Journal) -> list[SegmentReader]:
    """The segments that may be cleaned."""
    return [source for source in journal.history.sources if source.info.sealed]


def clean(
    journal: Journal,
    sources: Sequence[SegmentReader] | None = None,
    taken: Mapping[int, OffsetBitmap] | None = None,
    placing: Collection[int] = (),
) -> CleaningJob:
    """Write sealed segments again, by default all of them, and put the new ones in their place."""
    living = journal.living()
    living.taken = taken or {}
    job = finished(journal.clean(sealed(journal) if sources is None else sources, living, placing))
    assert journal.replace(job)
    return job


def committed_in(journal: Journal, sources: Sequence[SegmentReader] | None = None) -> list[int]:
    """The stages whose commits lie in some segments, by default in all that are sealed."""
    living = journal.living()
    within = sealed(journal) if sources is None else sources
    return sorted(
        stage.id
        for source in within
        for topic, found in source.index.topics()
        for stage in living.stages_in(topic, found)
    )


class World:
    """A journal that much happens to, and what it should hold: record by record."""

    def __init__(self, seed: int, storage: Storage | None = None, segment_bytes: int = 4096) -> None:
        self.random = Random(seed)
        self.writer = Writer(storage, JournalOptions(segment_bytes=segment_bytes, min_free=0))
        self.model: list[Seen] = []  # all that was ever published
        self.topics = [self.writer.topic(f"t{number}") for number in range(4)]
        self._stages: dict[int, list[Sequence[bytes]]] = {}

    @property
    def journal(self) -> Journal:
        """The journal, open."""
        return self.writer.journal

    def work(self, steps: int) -> None:
        """Publish, stage, trim and delete."""
        for _ in range(steps):
            action = self.random.choice([self.publish] * 12 + [self.stage] * 3 + [self.commit, self.trim, self.renew])
            action()

    def clean_some(self) -> CleaningJob | None:
        """Clean some neighbouring segments."""
        sources = sealed(self.journal)
        if not sources:
            return None
        first = self.random.randrange(len(sources))
        sources = sources[first : first + self.random.randrange(1, 5)]
        stages = [stage for stage in committed_in(self.journal, sources) if self.random.random() < 0.5]
        return clean(self.journal, sources, placing=stages)

    def publish(self) -> None:
        """A batch of any kind."""
        random, ledger = self.random, self.journal.ledger
        topic = random.choice(self.topics)
        count = random.choice((1, 1, 2, 5, 30))
        values = [random.randbytes(random.randrange(40)) for _ in range(count)]
        metas = [self._meta() if random.random() < 0.5 else None for _ in values] if random.random() < 0.4 else None
        times = [random.choice((None, 5)) for _ in values] if random.random() < 0.2 else None
        deltas = None
        if random.random() < 0.1:
            deltas = sorted(random.sample(range(1, 60), count - 1))
            deltas.insert(0, 0)
        kind, schema = random.choice((0, 0, 0, 1)), random.choice((0, 0, 0, 7))
        compression = random.choice((None, None, None, "zstd"))
        body = pack(
            values,
            columns_of(metas),
            times=times,
            deltas=deltas,
            content_type=kind,
            schema=schema,
            compression=compression,
        )
        base, sequence, time = ledger.topics[topic].end, ledger.sequence, self.writer.now + 1
        last = base + (deltas[-1] if deltas else count - 1)
        self.writer.write(
            [Part(PartKind.BATCH, body, int.from_bytes(body[:4], "little"), topic, base, last, sequence, time)]
        )
        self.model += _of_batch(FoundBatch(topic, base, last, sequence, time, body))

    def _meta(self) -> Meta:
        random = self.random
        return Meta(
            random.choice((None, b"k", b"key")),
            {"a": "b"} if random.random() < 0.3 else {},
            None,
            9.0,
            random.choice((0, 3)),
        )

    def stage(self) -> None:
        """One batch of a stage that is open, or of a new one."""
        ledger, now = self.journal.ledger, self.writer.now + 1
        values = [self.random.randbytes(30) for _ in range(self.random.randrange(1, 9))]
        if ledger.stages and self.random.random() < 0.6:
            stage = self.random.choice(list(ledger.stages.values()))
            self.writer.write([staged_part(stage.id, len(stage.counts), pack(values), now)])
            self._stages[stage.id].append(values)
        else:
            made = StageState(ledger.next_stage, "w", ledger.next_stage, 0, 0, self.random.choice(self.topics), now)
            self.writer.write([stage_part(made), staged_part(made.id, 0, pack(values), now)])
            self._stages[made.id] = [values]

    def commit(self) -> None:
        """Commit a stage, or drop it."""
        ledger = self.journal.ledger
        if ledger.stages:
            stage = self.random.choice(list(ledger.stages.values()))
            if self.random.random() < 0.3:
                self.writer.write([stage_dropped_part(stage.id)])
                return
            base, sequence, time = ledger.topics[stage.topic].end, ledger.sequence, self.writer.now + 1
            topic = stage.topic
            self.writer.write([stage_commit_part(stage, base, sequence, time)])
            for values in self._stages[stage.id]:
                self.model += _of_batch(FoundBatch(topic, base, base + len(values) - 1, sequence, time, pack(values)))
                base, sequence = base + len(values), sequence + len(values)

    def trim(self) -> None:
        """Let go of the beginning of a topic."""
        topic = self.journal.ledger.topics[self.random.choice(self.topics)]
        first = self.random.randint(topic.first, topic.end)
        self.writer.write([trim_part(topic.id, first, 0, RemovalReason.ASKED)])

    def renew(self) -> None:
        """Delete a topic, and begin another."""
        at = self.random.randrange(len(self.topics))
        self.writer.write([state_part(PartKind.TOPIC_DELETED, topic=self.topics[at])])
        self.topics[at] = self.writer.topic(f"t{at}")

    def wanted(self, ledger: Ledger) -> list[Seen]:
        """What must be there."""
        firsts = {topic.id: topic.first for topic in ledger.topics.values()}
        return [one for one in self.model if one.offset >= firsts.get(one.topic, 1 << 63)]

    def check(self, journal: Journal | None = None, model: list[Seen] | None = None) -> None:
        """Read it in every way, and find what must be there."""
        journal = journal or self.journal
        ledger, history = journal.ledger, journal.history
        expected = self.wanted(ledger) if model is None else model
        for topic in ledger.topics.values():
            assert by_topic(history, topic.id, topic.first) == [one for one in expected if one.topic == topic.id]
        firsts = {topic.id: topic.first for topic in ledger.topics.values()}
        seen = by_sequence(history, ledger.topics)
        assert [one for one in seen if isinstance(one, LostRange) or one.offset >= firsts[one.topic]] == expected
        if expected:
            middle = self.random.choice(expected)
            rest = by_topic(history, middle.topic, middle.offset)
            assert rest == [one for one in expected if one.topic == middle.topic and one.offset >= middle.offset]
            some = by_sequence(history, ledger.topics, middle.sequence)
            assert [one for one in some if isinstance(one, LostRange) or one.offset >= firsts[one.topic]] == [
                one for one in expected if one.sequence >= middle.sequence
            ]
