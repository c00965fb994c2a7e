"""A folder read again and again by another process: what is new since the last look is all that a look costs.

A `Follower` is an inspection that never shows more than the durable mark, whether somebody owns the folder or not, and
that can be brought up to date. Between two looks it may rest: then it holds no lease, and files may go. What it has
open of them stays readable, and the next look finds out.
Below: inspection, segment, mark. Above: spark.folder_reading.
"""

from __future__ import annotations

from pathlib import Path

from runnel.core.journal_errors import JournalDamaged
from runnel.journal import manifest, mark
from runnel.journal.folder import ReadersLease
from runnel.journal.inspection import Inspection
from runnel.journal.segment import entries
from runnel.journal.source import Source, add_to


class Follower(Inspection):
    """A folder up to its durable mark: `with Follower("data/") as seen`, and `seen.look()` to see what is new."""

    only_durable = True

    def __repr__(self) -> str:
        state = "closed" if not hasattr(self, "history") else "open" if self._lease else "resting"
        return f"<Follower of {str(self.folder)!r}, {state}>"

    @classmethod
    def at(cls, folder: str | Path) -> Follower:
        """One that has looked."""
        follower = cls(folder)
        follower.__enter__()
        return follower

    @property
    def is_held(self) -> bool:
        """Whether it holds the lease."""
        return self._lease is not None

    def rest(self) -> None:
        """Hold no lease until the next look."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def look(self) -> None:
        """See what is durable now, and hold the lease on it."""
        if not hasattr(self, "history"):
            self.__enter__()
            return
        if self._lease is None:
            self._lease = ReadersLease(self.folder)
        tail = self._tail()
        if manifest.load(self.storage) != self.manifest or (tail is not None and not self._read_on(tail)):
            self.close()
            self.__enter__()

    def _tail(self) -> Source | None:
        """The segment that was being written at the last look."""
        sources = self.history.sources
        return sources[-1] if sources and not sources[-1].info.sealed else None

    def _read_on(self, tail: Source) -> bool:
        """Take in the entries up to the mark; False where they cannot be told: all has to be looked at again."""
        found = mark.read(self.storage)
        if found is None or found.id != tail.info.id or found.position < tail.written:
            return found is None
        while tail.written < found.position:
            data = tail.file.read(tail.written, found.position - tail.written)
            before = tail.written
            for entry in entries(data, 0, tail.info, tail.written):
                if entry.end > found.position:
                    break
                self.ledger.apply(entry.parts, entry.time)
                add_to(tail.index, entry)  # type: ignore[arg-type]  # of the last segment it is a builder
                tail.written = entry.end
            if tail.written == before:
                raise JournalDamaged(tail.info.name, before, f"the journal was synced up to {found.position}")
        self._by_name = {topic.name: topic for topic in self.ledger.topics.values()}
        return True
