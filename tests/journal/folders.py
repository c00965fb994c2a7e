"""Folders to look at: a journal driven by hand, in this process or in another one that owns it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from runnel.core.batch_format import pack
from runnel.core.record import Meta
from runnel.journal.folder_lock import FolderLock
from runnel.journal.format.atomic_file import read_whole
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
from runnel.journal.options import JournalOptions
from runnel.journal.storage import OsStorage, Storage
from runnel.journal.write.journal import Journal
from runnel.testing.memory_storage import MemoryStorage
from tests.carried import columns_of

SECOND = 1_000_000
BEGAN = 1_700_000_000 * SECOND  # microseconds: the first record's time; each later one is a second younger


class Writer:
    """A journal driven by hand. Leaving the block closes it."""

    def __init__(self, storage: Storage, **options: object) -> None:
        given = {"segment_bytes": 8192, "min_free": 0} | options
        self.journal = Journal.open(storage, JournalOptions(**given), now=BEGAN)  # type: ignore[arg-type]
        self.time = max(BEGAN, self.journal.ledger.time)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.journal.close()

    def topic(self, name: str, options: dict[str, object] | None = None) -> TopicState:
        """The topic, made when need be."""
        ledger = self.journal.ledger
        found = next((one for one in ledger.topics.values() if one.name == name), None)
        if found is None:
            made = TopicState(ledger.next_topic, name, max(ledger.epoch + 1, 7), options or {})
            self.write(topic_part(made))
            found = ledger.topics[made.id]
        return found

    def write(self, *parts: Part) -> None:
        """One entry."""
        self.journal.write([Draft(parts, self.time)])

    def publish(
        self, topic: str, values: Sequence[bytes], metas: Sequence[Meta | None] | None = None, **how: object
    ) -> None:
        """One batch, one entry, a second after the one before."""
        body = pack(values, columns_of(metas), **how)  # type: ignore[arg-type]
        self.write(self.batch(topic, body, len(values)))
        self.time += SECOND

    def batch(self, topic: str, body: bytes, count: int) -> Part:
        """A batch as the next part of a topic."""
        to, ledger = self.topic(topic), self.journal.ledger
        crc = int.from_bytes(body[:4], "little")
        return Part(PartKind.BATCH, body, crc, to.id, to.end, to.end + count - 1, ledger.sequence, self.time)

    def group(self, name: str, pattern: str, floor: int = 0) -> GroupState:
        """A new group."""
        made = GroupState(self.journal.ledger.next_group, name, pattern, {}, floor)
        self.write(group_part(made))
        return self.journal.ledger.groups[made.id]

    def settle(self, group: GroupState, *ranges: int) -> None:
        """Places of a group are done with."""
        self.write(progress_part(group.id, list(ranges), []))

    def cursor(self, name: str, topic: str, place: int) -> None:
        """A named subscription stands at `place`."""
        self.write(cursor_part(CursorState(name, topic, self.topic(topic).epoch, place)))


class Owner(Writer):
    """A writer that owns its folder. `crash` lets go of it as a kill would."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.lock = FolderLock(folder)
        self.lock.take()
        try:
            super().__init__(OsStorage(folder), **options)
        except BaseException:
            self.lock.release()
            raise
        self.journal.may_remove = lambda: not self.lock.has_readers()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.journal.close()
        self.lock.release()

    def crash(self) -> None:
        """Leave the folder as a killed process does."""
        self.journal._active = None
        self.lock.release()


def fill(folder: Path, batches: int = 60, topics: Sequence[str] = ("orders", "jobs"), **options: object) -> None:
    """A closed journal of several segments: `batches` batches of three records, to the topics in turn."""
    storage = in_memory(batches, topics, **options)
    folder.mkdir(exist_ok=True)
    for name in storage.names():
        (folder / name).write_bytes(read_whole(storage, name))


def in_memory(batches: int, topics: Sequence[str] = ("orders", "jobs"), **options: object) -> MemoryStorage:
    """The same in memory, which needs no disk to sync."""
    storage = MemoryStorage()
    with Writer(storage, **options) as writer:
        publish_numbered(writer, 0, batches, topics)
    return storage


def publish_numbered(owner: Writer, first: int, end: int, topics: Sequence[str] = ("orders", "jobs")) -> None:
    """Batches of three records each, whose values say which batch and which record they are."""
    for number in range(first, end):
        topic = topics[number % len(topics)]
        owner.publish(topic, [b"%s %d.%d " % (topic.encode(), number, at) + b"x" * 100 for at in range(3)])


# What another process runs: it says what it did on one pipe and waits for the next word on the other.
_OWNER = """
import sys
from pathlib import Path
from tests.journal.folders import Owner, publish_numbered

owner = Owner(Path(sys.argv[1]))
done = 0
print("open", flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "publish":
        publish_numbered(owner, done, done + int(rest[0]))
        done += int(rest[0])
    elif word == "roll":
        owner.journal._roll(0, owner.time)
    elif word == "close":
        owner.__exit__(None, None, None)
    print(word, flush=True)
"""


class OtherOwner:
    """An owner in another process, that does what it is told."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self.pid = child.pid

    def tell(self, *words: object) -> None:
        """Have something done; returns when it is."""
        assert self._child.stdin is not None
        self._child.stdin.write(" ".join(map(str, words)) + "\n")
        self._child.stdin.flush()
        self.hear(str(words[0]))

    def hear(self, word: str) -> None:
        """Wait for a word."""
        assert self._child.stdout is not None
        assert self._child.stdout.readline().strip() == word

    def kill(self) -> None:
        """As `kill -9` does."""
        self._child.kill()
        self._child.wait()


@contextmanager
def other_owner(folder: Path) -> Iterator[OtherOwner]:
    """A process that owns the folder, until the block ends."""
    command = [sys.executable, "-c", _OWNER, str(folder)]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            owner = OtherOwner(child)
            owner.hear("open")
            yield owner
        finally:
            child.kill()


def snapshot_of(folder: Path) -> dict[str, bytes]:
    """Every file in the folder and its bytes."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def segments_of(folder: Path) -> list[Path]:
    """The segments, oldest first."""
    return sorted(folder.glob("*.seg"))


def flip(file: Path, position: int, mask: int = 0xFF) -> None:
    """Damage one byte."""
    data = bytearray(file.read_bytes())
    data[position] ^= mask
    file.unlink()  # never through a hard link
    file.write_bytes(data)
