"""The segments of an open journal: named by its manifest, read through its history, given back or replaced.

What the manifest no longer names is removed when nobody looks at it any more. Nothing here writes
entries: that is the journal's part. All of it on one thread, that which commits.
Below: manifest, history, retention, cleaner, archived. Above: journal.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

import msgspec

from runnel.core.errors import RunnelError
from runnel.core.journal_errors import JournalFailed
from runnel.journal import archived, manifest, retention
from runnel.journal.archived import Holder
from runnel.journal.cleaner import Job
from runnel.journal.handles import Handles
from runnel.journal.history import History
from runnel.journal.index import IndexBuilder
from runnel.journal.ledger import Ledger
from runnel.journal.living import Living
from runnel.journal.manifest import Manifest, NotNamed
from runnel.journal.options import JournalOptions
from runnel.journal.segment import SegmentInfo
from runnel.journal.source import Source
from runnel.journal.storage import Storage

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Segments(ABC):
    """What a journal has on disk, and what is on its way out."""

    def __init__(self, storage: Storage, options: JournalOptions, found: Manifest, ledger: Ledger) -> None:
        self.storage, self.options, self.manifest, self.ledger = storage, options, found, ledger
        self.handles = Handles()
        self.history = History([self.source(info) for info in found.segments if info.sealed])
        self.failed: JournalFailed | None = None
        self.may_remove: Callable[[], bool] = lambda: True
        self.freed: Callable[[], None] = lambda: None  # called when something may be wanted no more
        self._job: Job | None = None  # the cleaning that is under way
        self._removable: list[str] = []

    def source(self, info: SegmentInfo, builder: IndexBuilder | None = None) -> Source:
        """A segment to be read, with the others."""
        return Source(self.storage, info, builder, self.handles)

    @abstractmethod
    def sync(self) -> None:
        """Make durable what is written."""

    # -- archives that hold -------------------------------------------------------------------------------------

    def archives(self) -> list[Holder]:
        """The archives that hold, as the file says now. Raises if it cannot be read. From any thread."""
        return archived.load(self.storage)

    def may_go(self, sources: Iterable[Source]) -> list[Source]:
        """Those of the segments that no archive waits for. From any thread."""
        safe = self.safe_through()
        return [source for source in sources if source.info.number <= safe]

    def safe_through(self) -> int:
        """The number up to which segments are safe in every archive that holds; 0 when that cannot be told."""
        try:
            return archived.safe(self.archives())
        except (RunnelError, OSError):
            return 0

    # -- giving back --------------------------------------------------------------------------------------------

    def retain(self, now: int) -> None:
        """Drop the segments in which nothing is wanted any more."""
        self.freed()
        ledger = self.ledger
        stages = {*ledger.stages, *ledger.committed}
        unwanted = retention.unwanted(self.history.sources, ledger.topics, stages)
        if not unwanted or self.failed is not None or not (unwanted := self.may_go(unwanted)):
            return
        self.sync()  # what made them unwanted must not be forgotten when they are gone
        try:
            self._put_in_place_of(unwanted, [source for source in self.history.sources if source not in unwanted])
        except OSError as error:
            if error.errno not in NO_SPACE:
                self._fail(error)
                raise

    # -- cleaning -----------------------------------------------------------------------------------------------

    def living(self) -> Living:
        """What is wanted now of what is on disk."""
        return Living.of(self.ledger, self.manifest.segments)

    def clean(self, sources: Sequence[Source], living: Living, placing: Collection[int] = ()) -> Job:
        """A job that writes neighbouring sealed segments again, with what lives in them. `replace` ends it.

        The stages in `placing`, which were committed in these segments, are read from where they lie and written into
        them. LookupError: one of the segments is not there any more.
        """
        if not set(sources) <= set(self.history.sources):
            raise LookupError("a segment that was to be cleaned has gone")
        if any(source.info.id not in living.segments for source in sources):
            raise ValueError("it is not known what lives in a segment that was sealed later")
        there = History(list(self.history.sources))  # as they are now: whoever reads them has them
        size, now = self.options.segment_bytes, self.ledger.time
        self._job = Job(self.storage, sources, living, size, now, there, frozenset(placing))
        return self._job

    def replace(self, job: Job) -> bool:
        """Put what a finished job wrote in the place of what it read. False: that went meanwhile, or is held.

        An error before the swap leaves everything as it was; if it cannot be told which manifest counts, the
        journal has failed. Whoever reads the old segments goes on reading: their files are open.
        """
        if self.failed is not None:
            raise self.failed
        assert job.done, "only a finished job can be put in place"
        sources = self.history.sources
        start = sources.index(job.sources[0]) if job.sources[0] in sources else len(sources)
        end = start + len(job.sources)
        names = {name for info in job.made for name in (info.name, info.index_name)}
        if sources[start:end] != list(job.sources) or not names <= set(self.storage.names()):
            return False
        if len(self.may_go(job.sources)) < len(job.sources):
            return False  # an archive began to hold meanwhile
        self.sync()  # what made records unwanted must not be forgotten when they are gone
        new = [self.source(info) for info in job.made]
        self.storage.sync_names()  # whatever the manifest names must be there before it is
        files, job.files = job.files, set()  # whatever becomes of the manifest's name: they are not the job's any more
        try:
            # Whoever finds the new segments finds with them that these stages are not needed any more.
            self._put_in_place_of(list(job.sources), [*sources[:start], *new, *sources[end:]], job.placed)
            self.ledger.forget_placed(job.placed)
        except NotNamed as error:
            self._fail(error)
            raise
        except OSError:
            job.files = files
            raise
        self._job = None
        return True

    def let_go(self, job: Job) -> None:
        """A job ended in some other way: its files are as good as any that a crash leaves behind."""
        if self._job is job:
            self._job = None

    def _put_in_place_of(self, old: list[Source], kept: list[Source], placed: Iterable[int] = ()) -> None:
        """Swap the manifest for one of the `kept` segments, and let the `old` ones go, out of their list too."""
        known = [*self.manifest.placed, *placed]  # until a checkpoint holds it
        smaller = msgspec.structs.replace(self.manifest, segments=[source.info for source in kept], placed=known)
        manifest.write(self.storage, smaller)
        self.history.sources, self.manifest = kept, smaller
        self._removable += [name for source in old for name in (source.info.name, source.info.index_name)]
        while old:
            old.pop().hold_on()  # one that nobody else knows is closed again at once
        with suppress(OSError):  # they are tried again, and cleared up by the next opening at the latest
            self._remove_retired()

    # -- removing -----------------------------------------------------------------------------------------------

    def _clear_up(self) -> None:
        """Remove what a crash left behind: temporary files, and those that the manifest does not name."""
        if (unnamed := self.manifest.unnamed(self.storage.names())) and self.may_remove():
            # A killed process may have swapped the manifest and not synced its name. If that came undone, the
            # manifest before would count again, and all that it names had better be there.
            self.storage.sync_names()
            for name in unnamed:
                self._remove(name)

    def _remove_unfinished(self) -> None:
        """Remove what a roll that failed has left behind; a cleaning that is under way keeps its files."""
        busy = set(self._removable).union(self._job.files if self._job is not None else ())
        for name in self.manifest.unnamed(self.storage.names()):
            if name not in busy:
                self._remove(name)

    def _remove_retired(self) -> None:
        """Remove files that no manifest names any more, unless another process is looking."""
        if self._removable and self.may_remove():
            named = self.manifest.files()
            for name in self._removable:
                if name not in named:
                    self._remove(name)
            self._removable = []

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.storage.remove(name)

    def _fail(self, error: Exception) -> None:
        self.failed = JournalFailed(str(error))
