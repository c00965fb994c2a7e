"""Carries files from one folder to another: links them where that can be, copies them where not.

A file gets its name when all of its bytes are durable; names are durable when `settle` returns.
Below: os_storage. Above: archive, restore.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from runnel.journal.os_storage import OsStorage
from runnel.journal.segment import TEMPORARY

PIECE = 1024 * 1024  # bytes copied at a time


class Carrier:
    """Counts what it carries. With `link=False` everything is copied."""

    def __init__(self, *, link: bool = True, carried: Callable[[int], None] = lambda size: None) -> None:
        self.linked = self.copied = 0  # files
        self.bytes = self.copied_bytes = 0
        self._link, self._carried = link, carried
        self._folders: set[Path] = set()

    def __repr__(self) -> str:
        return f"<Carrier, {self.linked} files linked, {self.copied} copied>"

    def carry(
        self,
        source: Path,
        target: Path,
        size: int | None = None,
        *,
        link: bool = True,
        check: Callable[[Path], None] | None = None,
    ) -> None:
        """The first `size` bytes of a file (all by default) as `target`, in the place of whatever has that name.

        Only a file that never changes again below `size` may be linked. `check` reads what has come, and raises
        if that is not good: then `target` stays as it was.
        """
        size = source.stat().st_size if size is None else size
        temporary = target.with_name(target.name + TEMPORARY)
        temporary.unlink(missing_ok=True)
        if not (self._link and link and self._linked(source, temporary)):
            self._copy(source, temporary, 0, size, create=True)
            self.copied += 1
        else:
            self.linked += 1
            self._carried(size)
        if check is not None:
            try:
                check(temporary)
            except BaseException:
                temporary.unlink()
                raise
        os.replace(temporary, target)
        temporary.unlink(missing_ok=True)  # a rename of one link to a file over another leaves both
        self.bytes += size
        self._folders.add(target.parent)

    def extend(self, source: Path, target: Path, start: int, end: int) -> None:
        """Copy bytes [start, end) behind those that `target` has. Nobody may count on them before this returns."""
        if target.stat().st_nlink > 1:  # never write into a file that somebody else has, too
            temporary = target.with_name(target.name + TEMPORARY)
            temporary.unlink(missing_ok=True)
            self._copy(target, temporary, 0, start, create=True)
            self._copy(source, temporary, start, end, create=False)
            os.replace(temporary, target)
            self._folders.add(target.parent)
            self.bytes += end - start
            return
        self._copy(source, target, start, end, create=False)
        self.bytes += end - start

    def settle(self) -> None:
        """Return when the names of everything that was carried are durable."""
        for folder in sorted(self._folders):
            OsStorage(folder).sync_names()
        self._folders.clear()

    def _linked(self, source: Path, target: Path) -> bool:
        try:
            os.link(source, target)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without links
            return False
        return True

    def _copy(self, source: Path, target: Path, start: int, end: int, *, create: bool) -> None:
        reading = OsStorage(source.parent).open(source.name)
        try:
            folder = OsStorage(target.parent)
            writing = folder.create(target.name) if create else folder.open(target.name, writable=True)
            try:
                at = start
                while at < end and (data := reading.read(at, min(PIECE, end - at))):
                    writing.write(at, [data])
                    at += len(data)
                    self.copied_bytes += len(data)
                    self._carried(len(data))
                writing.sync()
            finally:
                writing.close()
        finally:
            reading.close()
