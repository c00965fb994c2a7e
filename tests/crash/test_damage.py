"""Bytes that change on the disk: whatever is hit, it is noticed or does no harm, and no more is lost than is told.

The journals here are small, so that every byte can be hit: one bit of each is turned over, and every file is cut at
every length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from random import Random

import pytest

from runnel.core.batch_format import pack, unpack
from runnel.core.errors import JournalDamaged, RunnelError
from runnel.journal.format import watermark
from runnel.journal.format.entry import Draft, Part, PartKind
from runnel.journal.format.ledger import (
    CursorState,
    GroupState,
    TopicState,
    cursor_part,
    group_part,
    progress_part,
    topic_part,
)
from runnel.journal.format.segment import START
from runnel.journal.options import JournalOptions
from runnel.journal.read.segment_reader import FoundBatch, LostRange
from runnel.journal.write.journal import Journal
from runnel.testing.memory_storage import MemoryStorage
from tests.crash.model import State
from tests.crash.observing import Item, observe, sequence_items, topic_items
from tests.crash.watching import in_small

OPTIONS = JournalOptions(segment_bytes=4096, min_free=0)
FIRST, SECOND = "000000000001.seg", "000000000002.seg"


class Builder:
    """A journal with two topics, a group and a cursor, and every state that it went through."""

    def __init__(self, storage: MemoryStorage | None = None) -> None:
        self.storage = storage or MemoryStorage()
        self.journal = Journal.open(self.storage, OPTIONS, now=1)
        self.states = [State()]
        self.ends = [self.end()]  # where each entry ends in its segment; the first was written by opening
        self.made = 0

    def write(self, *parts: Part) -> None:
        draft = Draft(parts, 10)
        self.states.append(self.states[-1].after(draft))
        self.journal.write([draft])
        self.ends.append(self.end())

    def end(self) -> int:
        active = self.journal._active
        assert active is not None
        return active.end

    def batch(self, topic: int, count: int, sequence: int = 0) -> Part:
        self.made += 1
        body = pack([b"%d.%d" % (self.made, at) for at in range(count)])
        known = self.states[-1].topics[topic]
        sequence += self.journal.ledger.sequence
        crc = int.from_bytes(body[:4], "little")
        return Part(PartKind.BATCH, body, crc, topic, known.end, known.end + count - 1, sequence, 10)

    def fill(self) -> None:
        self.write(topic_part(TopicState(1, "a", 1, {})), topic_part(TopicState(2, "b", 2, {})))
        self.write(self.batch(1, 3))
        self.write(self.batch(2, 1), self.batch(1, 2, sequence=1))
        self.write(group_part(GroupState(1, "g", "a", {}, 0)), cursor_part(CursorState("c", "b", 2, 1)))
        self.write(self.batch(2, 2))
        self.write(progress_part(1, [0, 2], [(3, 1, 2.0, "no")]))
        self.write(self.batch(1, 1))

    def reopen(self) -> None:
        self.journal.close()
        self.journal = Journal.open(self.storage, OPTIONS, now=20)


def sealed() -> Builder:
    """A journal whose first segment is sealed, and whose second one was begun."""
    made = Builder()
    made.fill()
    made.reopen()
    made.write(made.batch(1, 1), made.batch(2, 1, sequence=1))
    made.write(cursor_part(CursorState("c", "b", 2, 3)))
    return made


def closed() -> Builder:
    made = sealed()
    made.journal.close()
    return made


def cut_off(*, marked: bool) -> Builder:
    """A journal whose only segment was never sealed; without a durable mark, nothing says that the last entry was."""
    made = Builder()
    made.fill()
    if not marked:
        made.storage.remove(watermark.NAME)
    return made


def content(storage: MemoryStorage, name: str) -> bytes:
    file = storage.open(name)
    return file.read(0, file.size())


def with_content(storage: MemoryStorage, name: str, data: bytes) -> MemoryStorage:
    """A copy of a folder in which one file holds something else."""
    copy = storage.after_kill()
    file = copy.create(name)
    file.write(0, [data])
    return copy


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << Random(at).randrange(8)]) + data[at + 1 :]


def each_damage(storage: MemoryStorage, name: str, size: int | None = None) -> list[tuple[str, MemoryStorage]]:
    """The folder with one bit of each byte of a file turned over, and with the file cut at each length."""
    data = content(storage, name)
    size = len(data) if size is None else size
    flips = [(f"{name} flipped at {at}", with_content(storage, name, flipped(data, at))) for at in range(size)]
    cuts = [(f"{name} cut at {at}", with_content(storage, name, data[:at])) for at in range(size)]
    return flips + cuts


def told(items: list[Item], *, by_sequence: bool) -> tuple[dict[int, bytes], list[tuple[int, int]]]:
    """The values that were read, by offset or sequence, and the ranges that are said to be lost."""
    values: dict[int, bytes] = {}
    for item in items:
        if isinstance(item, FoundBatch):
            first = item.sequence if by_sequence else item.base
            values.update(enumerate(unpack(item.body).values, first))
    return values, [(item.first, item.end) for item in items if isinstance(item, LostRange)]


def check_told(items: list[Item], expected: dict[int, bytes], what: str, *, by_sequence: bool) -> int:
    """What is served is right, and what is missing is told, no more and no less; how much that is."""
    values, lost = told(items, by_sequence=by_sequence)
    assert values.items() <= expected.items(), f"{what}: served {values}"
    missing = expected.keys() - values.keys()
    said = {place for place in expected if any(first <= place < end for first, end in lost)}
    assert said == missing, f"{what}: {sorted(missing)} are missing, and {lost} are said to be"
    return len(missing)


def check_reading(journal: Journal, expected: State, what: str) -> int:
    """Read everything in every way; how many records are lost."""
    lost = 0
    by_sequence: dict[int, bytes] = {}
    for number, topic in expected.topics.items():
        values = {record.offset: record.value for record in topic.records}
        by_sequence |= {record.sequence: record.value for record in topic.records}
        lost += check_told(list(topic_items(journal.history, number, 0)), values, what, by_sequence=False)
    items = list(sequence_items(journal.history, expected.topics, 0))
    assert check_told(items, by_sequence, what, by_sequence=True) == lost
    return lost


def state_of(journal: Journal) -> tuple[object, ...]:
    """What a ledger says, without the records."""
    ledger = journal.ledger
    groups = [(group.encode(), group.floor) for group in ledger.groups.values()]
    return [*ledger.topics.values()], [*ledger.cursors.values()], groups, ledger.sequence


@pytest.fixture(params=["in full", "in small"])
def chunks(request: pytest.FixtureRequest) -> Iterator[None]:
    """How much is read at a time: a small segment at once, or its entries one by one."""
    with in_small() if request.param == "in small" else nullcontext():
        yield


@pytest.mark.usefixtures("chunks")
def test_damage_in_a_sealed_segment_is_reported_and_never_served() -> None:
    made = sealed()
    expected, data = made.states[-1], content(made.storage, FIRST)
    file = made.storage.open(FIRST, writable=True)
    lost = 0
    for at in range(len(data)):
        file.write(at, [flipped(data, at)[at : at + 1]])
        lost += check_reading(made.journal, expected, f"flipped at {at}")
        file.truncate(at)
        lost += check_reading(made.journal, expected, f"cut at {at}")
        file.write(at, [data[at:]])
    assert lost > 1000  # it was not for nothing


def test_a_journal_with_a_damaged_sealed_segment_opens_and_tells() -> None:
    made = sealed()
    expected, state = made.states[-1], state_of(made.journal)
    for what, storage in each_damage(made.storage, FIRST)[::9]:
        journal = Journal.open(storage, OPTIONS, now=30)
        assert state_of(journal)[:3] == state[:3], what
        check_reading(journal, expected, what)


@pytest.mark.usefixtures("chunks")
def test_damage_in_the_segment_being_written_is_reported_by_its_readers() -> None:
    made = cut_off(marked=True)
    expected, data = made.states[-1], content(made.storage, FIRST)
    file = made.storage.open(FIRST, writable=True)
    for at in range(START, made.ends[-1]):
        file.write(at, [flipped(data, at)[at : at + 1]])
        check_reading(made.journal, expected, f"flipped at {at}")
        file.write(at, [data[at : at + 1]])


def test_damage_below_the_durable_mark_keeps_a_cut_off_journal_from_opening() -> None:
    made = cut_off(marked=True)
    for what, storage in each_damage(made.storage, FIRST, made.ends[-1]):
        with pytest.raises(JournalDamaged):
            pytest.fail(f"{what}: {Journal.open(storage, OPTIONS, now=30).report}")


def test_damage_behind_the_end_of_a_cut_off_journal_does_no_harm() -> None:
    made = cut_off(marked=True)
    data = content(made.storage, FIRST)
    for at in (*range(made.ends[-1], made.ends[-1] + 200), len(data) - 1):
        journal = Journal.open(with_content(made.storage, FIRST, flipped(data, at)), OPTIONS, now=30)
        assert made.states[-1].differs(observe(journal), exact=True) is None
        assert journal.report.cut_bytes == at + 1 - made.ends[-1]


def test_without_a_mark_only_the_last_entry_can_be_taken_for_a_torn_tail() -> None:
    made = cut_off(marked=False)
    data, (before, end) = content(made.storage, FIRST), made.ends[-2:]
    for at in range(end):
        storage = with_content(made.storage, FIRST, flipped(data, at))
        if at < before:
            with pytest.raises(JournalDamaged):
                Journal.open(storage, OPTIONS, now=30)
        else:
            journal = Journal.open(storage, OPTIONS, now=30)
            assert made.states[-2].differs(observe(journal), exact=True) is None
            assert journal.report.cut_bytes == len(flipped(data, at).rstrip(b"\0")) - before


def test_a_tail_may_be_cut_at_every_byte() -> None:
    made = cut_off(marked=False)
    data = content(made.storage, FIRST)
    for kept in range(START, made.ends[-1] + 1):
        journal = Journal.open(with_content(made.storage, FIRST, data[:kept]), OPTIONS, now=30)
        whole = [START, *(end for end in made.ends if end <= kept)]
        assert made.states[max(0, len(whole) - 2)].differs(observe(journal), exact=True) is None, f"cut at {kept}"
        assert journal.report.entries == len(whole) - 1
        assert journal.report.cut_bytes == len(data[whole[-1] : kept].rstrip(b"\0")), f"cut at {kept}"


def test_a_damaged_or_missing_index_is_made_again() -> None:
    made = sealed()
    name = "000000000001.idx"
    missing = made.storage.after_kill()
    missing.remove(name)
    for what, storage in [*each_damage(made.storage, name), ("missing", missing)]:
        journal = Journal.open(storage, OPTIONS, now=30)
        assert check_reading(journal, made.states[-1], what) == 0
        assert journal.history.sources[0].damage


@pytest.mark.parametrize(
    ("make", "name"),
    [(sealed, "000000000002.ckpt"), (closed, "000000000003.ckpt"), (sealed, "MANIFEST"), (closed, "MANIFEST")],
)
def test_a_damaged_checkpoint_or_manifest_is_noticed(make: Callable[[], Builder], name: str) -> None:
    made = make()
    opened = 0
    for what, storage in each_damage(made.storage, name):
        try:
            journal = Journal.open(storage, OPTIONS, now=30)
        except RunnelError:
            continue
        opened += 1
        assert journal.report.notes, what
        check_goes_on(made, storage, journal, what)
    assert bool(opened) == (name != "MANIFEST")  # without a checkpoint, the segments tell the same


def check_goes_on(made: Builder, storage: MemoryStorage, journal: Journal, what: str) -> None:
    """A journal that had to do without a checkpoint lacks nothing, then and later."""
    assert made.states[-1].differs(observe(journal), exact=True) is None, what
    assert journal.ledger.sequence >= made.journal.ledger.sequence, what
    again = Journal.open(storage.after_kill(), OPTIONS, now=30)
    assert not again.report.notes, what
    assert made.states[-1].differs(observe(again), exact=True) is None, what


def test_a_damaged_durable_mark_does_no_harm() -> None:
    made = cut_off(marked=True)
    for what, storage in each_damage(made.storage, watermark.NAME):
        journal = Journal.open(storage, OPTIONS, now=30)
        assert made.states[-1].differs(observe(journal), exact=True) is None, what


@pytest.mark.parametrize("name", [FIRST, SECOND, "MANIFEST"])
def test_a_missing_file_is_noticed(name: str) -> None:
    made = sealed()
    made.storage.remove(name)
    with pytest.raises(JournalDamaged, match="missing"):
        Journal.open(made.storage, OPTIONS, now=30)
