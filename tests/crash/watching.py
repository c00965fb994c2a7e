"""A storage under watch: somebody may look before each call, and syncs may be forgotten or late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from runnel.journal.format import index, segment
from runnel.journal.read import journal_reader
from runnel.testing.memory_storage import MemoryStorage


@contextmanager
def in_small() -> Iterator[None]:
    """Chunks, windows and zeroed stretches as small in proportion as the segments are here, so that all have edges."""
    with ExitStack() as stack:
        for module, name, value in (
            (segment, "ZERO_STEP", 1024),
            (segment, "_ZEROS", bytes(1024)),
            (segment, "SMALL_COMMIT", 600),
            (index, "WINDOW", 300),
            (journal_reader, "WINDOW", 300),
            (journal_reader, "CHUNK", 900),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


class Watched(MemoryStorage):
    """A storage in memory that lets somebody look before each call that changes something."""

    watch: Callable[[], None] | None = None
    delay = 1  # how many calls late a late sync is

    def _step(self, operation: str, name: str) -> None:
        if self.watch is not None and not self._lost:
            self.watch()
        super()._step(operation, name)

    def _sync(self, operation: str, name: str, settle: Callable[[], None]) -> None:
        late = len(self._late)
        super()._sync(operation, name, settle)
        if len(self._late) > late:
            self._late[-1] = (self.calls + self.delay, settle)


def watched(found: MemoryStorage, before: Watched) -> Watched:
    """What is found where `before` was, with the same syncs forgotten or late."""
    made = Watched(found.page, sector=found.sector, capacity=found.capacity)
    made.skip_sync, made.delay_sync, made.delay = before.skip_sync, before.delay_sync, before.delay
    made._names, made._durable, made._pending = found._names, found._durable, found._pending
    return made
