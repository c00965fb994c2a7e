"""What the sources of a journal may have open or in memory at a time: that which was used last.

A process has few file handles, and everything open takes one; a mapped file does too. When there are none left,
the journal cannot write either. So sources take turns: whoever had its turn longest ago lets go, and opens
again when it is asked. Below: storage. Above: source, segments, inspection.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import ref

if TYPE_CHECKING:
    from runnel.journal.source import Source

FILES = 32  # segments that are open for reading
HELD = 32  # segments whose names have gone, open for those who came upon them before
INDEX_BYTES = 32 * 1024 * 1024  # of the indexes of sealed segments, in memory
MAPPED = 1024 * 1024  # an index that is longer is mapped, and counts as if it were as long as this: so 32 at most
NO_HANDLES = (errno.EMFILE, errno.ENFILE)

T = TypeVar("T")


class Shelf(Generic[T]):
    """Those that have something at hand, the one used last at the end. From any thread.

    When they weigh more than `limit` together, the first ones are told to let go. It keeps none of them alive.
    """

    def __init__(self, limit: int, let_go: Callable[[T], None]) -> None:
        self.limit, self._let_go = limit, let_go
        self._weights: OrderedDict[ref[T], int] = OrderedDict()
        self._total = 0
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<Shelf, {len(self._weights)} that weigh {self._total} of {self.limit}>"

    def __contains__(self, one: T) -> bool:
        return ref(one) in self._weights

    def put(self, one: T, weight: int = 1) -> None:
        """It has something at hand from now on, that weighs so much; others may have to let go."""
        with self._lock:
            self._take(ref(one))
            self._weights[ref(one)] = weight
            self._total += weight
            if self._total > self.limit:
                for key in [key for key in self._weights if key() is None]:
                    self._take(key)
            while self._total > self.limit and len(self._weights) > 1:  # one may be too heavy all by itself
                self._take_first()

    def used(self, one: T) -> None:
        """It was used just now, if it is still here."""
        with self._lock:
            if (key := ref(one)) in self._weights:
                self._weights.move_to_end(key)

    def take_out(self, one: T) -> None:
        """It is not to be told to let go any more. If somebody was just telling it, that is over when this returns."""
        with self._lock:
            self._take(ref(one))

    def clear(self) -> None:
        """All are to let go."""
        with self._lock:
            while self._weights:
                self._take_first()

    def _take(self, key: ref[T]) -> None:
        self._total -= self._weights.pop(key, 0)

    def _take_first(self) -> None:
        key = next(iter(self._weights))
        self._take(key)
        if (one := key()) is not None:
            self._let_go(one)


class Handles:
    """What the sources of one journal have at hand: their files, their indexes, and what is held for late readers."""

    def __init__(self, files: int = FILES, index_bytes: int = INDEX_BYTES, held: int = HELD) -> None:
        self.files: Shelf[Source] = Shelf(files, lambda source: source.drop_file())
        self.indexes: Shelf[Source] = Shelf(index_bytes, lambda source: source.drop_index())
        self.held: Shelf[Source] = Shelf(held, lambda source: source.hold_no_more())

    def __repr__(self) -> str:
        return f"<Handles, files: {self.files}, indexes: {self.indexes}, held: {self.held}>"

    def enough_for(self, opening: Callable[[], T]) -> T:
        """What `opening` returns. If there is no handle left for it, all that can be opened again is closed first."""
        try:
            return opening()
        except OSError as error:
            if error.errno not in NO_HANDLES:
                raise
        self.files.clear()
        self.indexes.clear()
        return opening()
