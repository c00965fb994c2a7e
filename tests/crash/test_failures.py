"""A disk that fails: full, broken, half written, not synced; at every call of a workload.

A write that fails says how far it came. A failed journal takes nothing more, is still read, and after reopening has
all that was acknowledged. A full disk is no failure: when there is room again, writing goes on.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from runnel.core.batch_format import pack
from runnel.core.errors import DiskFull, JournalFailed, RunnelError
from runnel.journal.format.entry import Draft, Part, PartKind, WriteFailed
from runnel.journal.format.ledger import CursorState, TopicState, cursor_part, topic_part
from runnel.journal.options import JournalOptions
from runnel.journal.write.journal import Journal
from runnel.testing import power_loss
from runnel.testing.faulty_storage import FaultyStorage
from runnel.testing.memory_storage import MemoryStorage
from runnel.testing.power_loss import PowerLossOutcome
from tests.crash.model import Stored
from tests.crash.observing import read_topic
from tests.crash.watching import Watched
from tests.crash.workload import World

STEPS = 30
EVERY = 4  # of the calls one is made to fail: over all faults and seeds, that is enough for every day


class Disk:
    """The disk of a world, with one call that fails, and a view of what was asked of it."""

    def __init__(self, fail_at: int | None, error: int, short: float, fate: PowerLossOutcome) -> None:
        self.fail_at, self.error, self.short, self.fate = fail_at, error, short, fate
        self.calls = 0
        self.faulty: FaultyStorage | None = None

    def __call__(self, storage: Watched) -> FaultyStorage:
        self.calls = self.seen()
        at = None if self.fail_at is None else self.fail_at - self.calls
        self.faulty = FaultyStorage(
            storage,
            fail_at=at if at is not None and at > 0 else None,
            error=self.error,
            short=self.short,
            fate=self.fate,
        )
        return self.faulty

    def seen(self) -> int:
        """How many calls there were."""
        return self.calls + (self.faulty.calls if self.faulty is not None else 0)


def live(world: World, seed: int) -> Exception | None:
    """Live until something fails for good; what that was."""
    world.random = Random(seed)
    try:
        world.open()
        for _ in range(STEPS):
            failed = write_failure(world.step)
            if failed is not None:
                assert 0 <= failed.done <= failed.begun
                assert isinstance(failed.cause, DiskFull) == (world.journal.failed is None)
                if world.journal.failed is not None:
                    return failed
                assert failed.done == failed.begun  # nothing was half done: later writes go on behind it
    except (RunnelError, OSError) as error:
        return error
    return None


def write_failure(work: Callable[[], object]) -> WriteFailed | None:
    """How `work` failed to write; None if it did not."""
    try:
        work()
    except WriteFailed as failed:
        return failed
    return None


def check_failed(world: World, disk: Disk) -> None:
    """A failed journal takes nothing, asks nothing of the disk, and is still read."""
    journal, faulty = world.journal, disk.faulty
    assert faulty is not None
    before = faulty.calls
    with pytest.raises(WriteFailed) as refused:
        journal.write([Draft([cursor_part(CursorState("n", "a", 1, 0))], world.now)])
    assert (refused.value.done, refused.value.begun) == (0, 0)
    assert isinstance(refused.value.cause, JournalFailed)
    journal.sync()
    assert faulty.calls == before
    promised = world.promises.states[world.promises.returned]
    for number, topic in promised.topics.items():
        read = list(read_topic(journal.history, number, topic.first))
        kept: tuple[Stored, ...] = tuple(record for record in read if record.offset >= topic.first)
        if topic.is_compacted:  # the cleaner may have taken what a later record of the same key stands for
            kept = tuple(record for record in kept if record.offset < topic.end)
            assert topic.lacks(topic._replace(records=kept)) is None
        else:
            assert kept[: len(topic.records)] == topic.records


def check_never_synced_twice(faulty: FaultyStorage) -> None:
    """What could not be synced once is never synced again: a file made anew is another one."""
    if faulty.fail_at is None or faulty.fail_at > len(faulty.trace):
        return
    operation, name = faulty.trace[faulty.fail_at - 1]
    if operation == "sync":
        for later in faulty.trace[faulty.fail_at :]:
            assert later != ("sync", name)
            if later == ("create", name):
                return


FAULTS: dict[str, tuple[int, float, PowerLossOutcome]] = {
    "broken": (errno.EIO, 0, power_loss.keep_nothing),
    "broken, half written": (errno.EIO, 0.5, power_loss.keep_everything),
    "full": (errno.ENOSPC, 0, power_loss.keep_nothing),
    "full, half written": (errno.ENOSPC, 0.7, power_loss.keep_nothing),
}


@pytest.mark.parametrize("seed", [5, 8])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_call_that_fails_loses_nothing_that_was_acknowledged(fault: str, seed: int) -> None:
    error, short, fate = FAULTS[fault]
    whole = Disk(None, error, short, fate)
    world = World(seed)
    world.disk = whole
    assert live(world, seed) is None
    for fail_at in range(1 + (list(FAULTS).index(fault) + seed) % EVERY, whole.seen(), EVERY):
        disk = Disk(fail_at, error, short, fate)
        world = World(seed)
        world.disk = disk
        failed = live(world, seed)
        assert disk.faulty is not None
        check_never_synced_twice(disk.faulty)
        if failed is not None and hasattr(world, "journal") and world.journal.failed is not None:
            check_failed(world, disk)
        check_reopening(world, seed)


def check_reopening(world: World, seed: int) -> None:
    """Whatever the disk kept, all that was acknowledged is there."""
    storage = world.storage
    exact = world.exact and world.fsync == "commit"
    ends: list[tuple[MemoryStorage, bool]] = [
        (storage.after_kill(), world.intact),
        (storage.after_power_loss(power_loss.keep_nothing), False),
        (storage.after_power_loss(Random(seed)), False),
    ]
    for found, killed in ends:
        journal = Journal.open(found, world.options(), now=world.now)
        world.promises.check(journal, killed=killed, exact=exact)


# -- a full disk ------------------------------------------------------------------------------------------------


def small_disk(capacity: int) -> tuple[MemoryStorage, Journal]:
    storage = MemoryStorage(capacity=capacity)
    journal = Journal.open(storage, JournalOptions(segment_bytes=4096, min_free=0), now=1)
    journal.write([Draft([topic_part(TopicState(1, "a", 1, {}))], 1)])
    return storage, journal


def publish(journal: Journal, size: int = 100) -> None:
    topic, body = journal.ledger.topics[1], pack([bytes(size)])
    crc = int.from_bytes(body[:4], "little")
    journal.write([Draft([Part(PartKind.BATCH, body, crc, 1, topic.end, topic.end, journal.ledger.sequence, 1)], 1)])


def fill(journal: Journal) -> int:
    """Publish until the disk is full; how many there were."""
    for count in range(1000):
        failed = write_failure(lambda: publish(journal))
        if failed is not None:
            assert isinstance(failed.cause, DiskFull)
            assert (failed.done, failed.begun) == (0, 0)
            return count
    raise AssertionError("the disk is never full")


def count_records(journal: Journal) -> int:
    return len(list(read_topic(journal.history, 1, 0)))


def move_cursor(journal: Journal, place: int) -> None:
    journal.write([Draft([cursor_part(CursorState("c", "a", 1, place))], 1)])


def test_a_full_disk_refuses_records_and_still_takes_state() -> None:
    _, journal = small_disk(10_000)
    published = fill(journal)
    assert journal.failed is None
    assert not journal.has_room(300)
    assert count_records(journal) == published
    move_cursor(journal, 1)
    move_cursor(journal, 2)
    with pytest.raises(WriteFailed, match="free"):
        publish(journal)
    assert journal.failed is None


def test_writing_goes_on_when_there_is_room_again() -> None:
    storage, journal = small_disk(10_000)
    published = fill(journal)
    move_cursor(journal, 1)
    storage.capacity = 40_000
    assert journal.has_room(300)
    published += fill(journal)
    assert published > 50
    storage.capacity = None
    for found in (storage.after_kill(), storage.after_power_loss(power_loss.keep_nothing)):
        again = Journal.open(found, journal.options, now=2)
        assert count_records(again) == published
        assert again.ledger.cursors["c"].place == 1


def test_a_full_disk_keeps_a_journal_from_opening_and_harms_nothing() -> None:
    storage, journal = small_disk(10_000)
    published = fill(journal)
    found = storage.after_kill()
    found.capacity = 10_000 - found.free()
    with pytest.raises(DiskFull):
        Journal.open(found, journal.options, now=2)
    found.capacity = None
    assert count_records(Journal.open(found, journal.options, now=2)) == published


def refusing(kind: str, error: int) -> Callable[[MemoryStorage], FaultyStorage]:
    return lambda storage: FaultyStorage(storage, kinds={kind}, error=error)


@pytest.mark.parametrize("kind", ["allocate", "create"])
def test_no_space_for_a_new_segment_does_not_fail_the_journal(kind: str) -> None:
    storage = MemoryStorage()
    faulty = refusing(kind, errno.ENOSPC)(storage)
    journal = Journal.open(faulty, JournalOptions(segment_bytes=4096, min_free=0), now=1)
    journal.write([Draft([topic_part(TopicState(1, "a", 1, {}))], 1)])
    faulty.fail_at, faulty.lasting = faulty.calls + 1, True
    published = fill(journal)
    move_cursor(journal, 1)
    faulty.fail_at = None
    for _ in range(40):
        publish(journal)
    assert journal.failed is None
    assert not [name for name in storage.names() if name.endswith(".tmp")]
    assert count_records(Journal.open(storage.after_kill(), journal.options, now=2)) == published + 40


def test_a_sync_that_fails_for_want_of_space_fails_the_journal_even_while_rolling() -> None:
    faulty = refusing("sync", errno.ENOSPC)(MemoryStorage())
    journal = Journal.open(faulty, JournalOptions(fsync="os", segment_bytes=4096, min_free=0), now=1)
    journal.write([Draft([topic_part(TopicState(1, "a", 1, {}))], 1)])
    faulty.fail_at = faulty.calls + 1
    failed = next(filter(None, (write_failure(lambda: publish(journal)) for _ in range(100))))
    assert isinstance(failed.cause, OSError)
    assert journal.failed is not None


def test_many_entries_in_one_write_never_overrun_a_segment() -> None:
    storage = MemoryStorage()
    journal = Journal.open(storage, JournalOptions(segment_bytes=4096, min_free=0), now=1)
    journal.write([Draft([cursor_part(CursorState(f"c{at}", "a", 1, at))], 1) for at in range(200)])
    sizes = [storage.open(name).size() for name in storage.names() if name.endswith(".seg")]
    assert max(sizes) <= 4096
    assert (
        len(Journal.open(storage.after_power_loss(power_loss.keep_nothing), journal.options, now=2).ledger.cursors)
        == 200
    )
