"""Snapshots of tables while their changes are streamed: chunks by primary key, between two watermarks in the log.

A chunk is read after the low watermark was written and before the high one. Its rows are published at the high
watermark, without those that changed in between: the newest version of a row comes last. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from runnel.postgres.config import RelayConfig
from runnel.postgres.routing import RowRouter
from runnel.wire.pgoutput import ColumnValue

SNAPSHOT_PREFIX = "runnel.snapshot"  # of messages that ask for the snapshot of a table
WATERMARK_PREFIX = "runnel.watermark"
EXPIRY_PREFIX = "runnel.expiry"  # in transactions that remove rows past their time

_DONE = 9_999_999_999  # the number of chunks of a snapshot that is complete


class SnapshotProgress(NamedTuple):
    """The progress of a table's snapshot: the value of its marker."""

    requested: int  # LSN of the request: a later request begins anew
    chunk: int  # chunks that are published
    last_key: tuple[str, ...] | None  # the primary key of the last row of them

    @property
    def is_done(self) -> bool:
        """Whether the whole table is published."""
        return self.chunk == _DONE

    def done(self) -> SnapshotProgress:
        """The same, with the whole table published."""
        return SnapshotProgress(self.requested, _DONE, None)

    def pack(self) -> str:
        """As text that sorts as progress does."""
        return f"{self.requested:016x}:{self.chunk:010d}:{msgspec.json.encode(self.last_key).decode()}"

    @classmethod
    def unpack(cls, text: str) -> SnapshotProgress:
        """From `pack`."""
        requested, chunk, key = text.split(":", 2)
        last = msgspec.json.decode(key, type=tuple[str, ...] | None)
        return cls(int(requested, 16), int(chunk), last)


class SnapshotRequest(msgspec.Struct, frozen=True):
    """The content of a message that asks for a snapshot."""

    slot: str  # the name of the relay, which is that of its slot unless it has another
    table: str


def requested_table(content: bytes, config: RelayConfig) -> str | None:
    """The table that a message asks for; None: it is for another relay."""
    try:
        request = msgspec.json.decode(content, type=SnapshotRequest)
    except msgspec.DecodeError:
        return None
    known = {table.name for table in config.table}
    return request.table if request.slot == config.relay_name and request.table in known else None


class PgSnapshot(NamedTuple):
    """Which transactions a query saw: `pg_current_snapshot()`."""

    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> PgSnapshot:
        """From PostgreSQL's text form, xmin:xmax:xip_list."""
        _, xmax, running = text.split(":")
        return cls(int(xmax), frozenset(int(one) for one in running.split(",") if one))

    def saw(self, xid: int) -> bool:
        """Whether it saw a committed transaction. `xid` has 32 bits, of the last two billion transactions."""
        whole = xid + (self.xmax & ~0xFFFFFFFF)
        if whole - self.xmax > 1 << 31:
            whole -= 1 << 32
        return whole < self.xmax and whole not in self.running


class ChunkWindow:
    """One chunk: rows read of the table, and changes between its watermarks.

    `finished` is called at the high watermark: with True if the chunk is published, with False if it has to be read
    again.
    """

    def __init__(self, token: str, router: RowRouter, key: Sequence[str], finished: Callable[[bool], None]) -> None:
        self.router, self._token, self._key, self._finished = router, token, tuple(key), finished
        self._is_open = False
        self._before: frozenset[int] = frozenset()  # transactions that were streamed before the low watermark
        self._changed: set[tuple[ColumnValue, ...]] = set()
        self._rows: Sequence[Sequence[ColumnValue]] = ()
        self._snapshot: PgSnapshot | None = None
        self.progress = SnapshotProgress(0, 0, None)

    def read(self, rows: Sequence[Sequence[ColumnValue]], snapshot: PgSnapshot, progress: SnapshotProgress) -> None:
        """Take the rows of the chunk, before the high watermark is written. `progress` is reached with them."""
        self._rows, self._snapshot, self.progress = rows, snapshot, progress

    def watermark(self, edge: Literal["low", "high"]) -> str:
        """The content of a watermark."""
        return f"{self._token}:{edge}"

    def edge_of(self, content: bytes) -> Literal["low", "high"] | None:
        """Which of its watermarks this is; None: another window's."""
        if content == self.watermark("low").encode():
            return "low"
        return "high" if content == self.watermark("high").encode() else None

    def opened(self, streamed: Iterable[int]) -> None:
        """The low watermark came, after the transactions `streamed`."""
        self._is_open, self._before = True, frozenset(streamed)

    def saw(self, router: RowRouter, row: Sequence[ColumnValue]) -> None:
        """A row of a table changed."""
        if self._is_open and router.name == self.router.name:
            self._changed.add(router.texts_of(row, self._key))

    def emptied(self, router: RowRouter | None) -> None:
        """A table was truncated."""
        if router is not None and router.name == self.router.name:
            self._is_open = False  # rows may have been read before that

    def closed(self) -> list[Sequence[ColumnValue]] | None:
        """The high watermark came: the rows to publish; None: the chunk has to be read again.

        The commit of a transaction is in the log a moment before queries see it. A row that such a transaction changed
        before the low watermark would be published with its old content after the new one.
        """
        snapshot = self._snapshot
        is_good = self._is_open and snapshot is not None and all(map(snapshot.saw, self._before))
        self._finished(is_good)
        if not is_good:
            return None
        return [row for row in self._rows if self.router.texts_of(row, self._key) not in self._changed]
