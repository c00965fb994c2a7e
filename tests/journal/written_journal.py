"""A journal in a test: a writer that remembers what it wrote, and readers that return all of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import pytest

from runnel.core.batch_format import pack
from runnel.journal.format import index
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import Draft, Part, PartKind
from runnel.journal.format.ledger import TopicState, topic_part
from runnel.journal.options import JournalOptions
from runnel.journal.read import journal_reader
from runnel.journal.read.journal_reader import JournalReader, ReadPlan
from runnel.journal.read.segment_reader import FoundBatch, FoundItem
from runnel.journal.storage import Storage
from runnel.journal.write.journal import Journal
from runnel.testing import MemoryStorage

SMALL = JournalOptions(segment_bytes=4096, min_free=0)


def batch(topic: int, base: int, sequence: int, time: int, values: Sequence[bytes]) -> Part:
    """A batch with its place in a topic and in the journal."""
    body = pack(values)
    crc = int.from_bytes(body[:4], "little")
    return Part(PartKind.BATCH, body, crc, topic, base, base + len(values) - 1, sequence, time)


class Writer:
    """Publishes to a journal as a broker would: gives offsets, sequences and times, and remembers the batches."""

    def __init__(self, storage: Storage | None = None, options: JournalOptions = SMALL, now: int = 1) -> None:
        self.storage = MemoryStorage() if storage is None else storage
        self.options = options
        self.now = now
        self.written: list[FoundBatch] = []
        self.journal = Journal.open(self.storage, options, now=now)

    def topic(self, name: str, **options: object) -> int:
        """A new topic; its id."""
        ledger = self.journal.ledger
        made = TopicState(ledger.next_topic, name, ledger.epoch + 1, options)
        self.write([topic_part(made)])
        return made.id

    def write(self, parts: Sequence[Part]) -> None:
        """One entry, a microsecond later than the last."""
        self.now += 1
        self.journal.write([Draft(parts, self.now)])

    def publish(self, topic: int, *values: bytes) -> None:
        """One batch in an entry of its own."""
        self.publish_together((topic, values))

    def publish_together(self, *batches: tuple[int, Sequence[bytes]]) -> None:
        """Batches in one entry."""
        ledger = self.journal.ledger
        sequence, ends = ledger.sequence, {topic: ledger.topics[topic].end for topic, _ in batches}
        parts = []
        for topic, values in batches:
            parts.append(batch(topic, ends[topic], sequence, self.now + 1, values))
            ends[topic] += len(values)
            sequence += len(values)
        self.write(parts)
        self.written += [FoundBatch(p.topic, p.base, p.last, p.sequence, p.time, p.body) for p in parts]

    def reopen(self, storage: Storage | None = None) -> None:
        """Go on in `storage`, or where we are."""
        self.storage = storage or self.storage
        self.journal = Journal.open(self.storage, self.options, now=self.now)

    def killed(self) -> None:
        """Go on as the next process after a kill."""
        assert isinstance(self.storage, MemoryStorage)
        self.reopen(self.storage.after_kill())

    def of(self, topic: int) -> list[FoundBatch]:
        """The batches of one topic."""
        return [one for one in self.written if one.topic == topic]


def read_topic(read: JournalReader, topic: int, offset: int = 0) -> list[FoundItem]:
    """Everything of a topic from an offset on."""
    return _read(read, {topic}, offset, read.plan(topic, offset), topic)


def read_sequence(read: JournalReader, topics: Collection[int], sequence: int = 0) -> list[FoundItem]:
    """Everything of some topics from a sequence on."""
    return _read(read, topics, sequence, read.plan_sequence(sequence), None)


def read_from(
    read: JournalReader, topics: Collection[int], plan: ReadPlan | None, topic: int | None
) -> list[FoundItem]:
    """Everything from a plan on: of one topic by offset, or of all of them by sequence."""
    return [] if plan is None else _read(read, topics, plan.place, plan, topic)


def _read(
    read: JournalReader, topics: Collection[int], place: int, plan: ReadPlan | None, topic: int | None
) -> list[FoundItem]:
    items: list[FoundItem] = []
    rounds = 0
    while plan is not None:
        parsed = read.parse(plan, read.fetch(plan), topics, by_sequence=topic is None)
        items += parsed.items
        place = max(place, parsed.place)
        after, position = plan, parsed.position
        args = (place, after, position)
        plan = read.plan_sequence(*args) if topic is None else read.plan(topic, *args)
        rounds += 1
        assert rounds < 10_000, "reading does not come to an end"
    return items


@contextmanager
def small_windows(window: int = 256, chunk: int = 1024) -> Iterator[None]:
    """Many windows and chunks in a small segment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "WINDOW", window)
        patch.setattr(journal_reader, "WINDOW", window)
        patch.setattr(journal_reader, "CHUNK", chunk)
        yield


def flip(storage: Storage, name: str, at: int, bit: int = 0) -> None:
    """Change one bit of a file, as a bad disk would."""
    file = storage.open(name, writable=True)
    try:
        (byte,) = file.read(at, 1)
        file.write(at, [bytes([byte ^ 1 << bit])])
        file.sync()
    finally:
        file.close()


def put(storage: Storage, name: str, data: bytes) -> None:
    """A file that holds `data`."""
    file = storage.create(name)
    try:
        file.write(0, [data])
        file.sync()
    finally:
        file.close()
    storage.sync_names()


def contents(storage: Storage) -> dict[str, bytes]:
    """Every file, whole."""
    return {name: read_whole(storage, name) for name in storage.names()}
