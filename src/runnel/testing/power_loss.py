"""Which unsynced changes survive a power loss: any version of each page, each length and each name.

An outcome is a function that chooses. `MemoryStorage.after_power_loss` asks it once for each thing that was changed
and not synced; a seeded `Random` or hypothesis chooses at random, the functions here choose the worst cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

PowerLossOutcome = Callable[[str, Sequence[int]], int]
"""Given an item and the calls that made its versions, the index of the version that is found.

Items are each "page", "length" and "name" with changes that were not synced; before a page, whether it is
"torn", and if so each "sector" of it instead. Index 0 is the durable version (and "no"), the last one is the newest.
"""

T = TypeVar("T")


def keep_nothing(kind: str, calls: Sequence[int]) -> int:
    """Nothing survives that was not synced."""
    return 0


def keep_everything(kind: str, calls: Sequence[int]) -> int:
    """All survives."""
    return len(calls) - 1


def keep_names(kind: str, calls: Sequence[int]) -> int:
    """The folder has its last state, its files their synced one."""
    return len(calls) - 1 if kind == "name" else 0


def keep_names_and_lengths(kind: str, calls: Sequence[int]) -> int:
    """Files have their last names and lengths, and zeros where bytes were not synced."""
    return len(calls) - 1 if kind in ("name", "length") else 0


def keep_data(kind: str, calls: Sequence[int]) -> int:
    """Files have their last state, the folder its synced one."""
    return 0 if kind == "name" else len(calls) - 1


def keep_after(call: int) -> PowerLossOutcome:
    """Changes after this call survive, and those before it only where they share a sector with a later one."""
    return lambda kind, calls: len(calls) - 1 if calls[-1] > call else 0


def keep_until(call: int) -> PowerLossOutcome:
    """Changes up to this call survive: a disk that writes everything in order."""
    return lambda kind, calls: max((at for at in range(1, len(calls)) if calls[at] <= call), default=0)


class Inode:
    """The contents of files: bytes as read, bytes as on disk, and the changes between."""

    __slots__ = ("content", "durable", "pending")

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.durable: bytes | bytearray = content
        self.pending: list[tuple[int, int, bytes | None]] = []  # (call, offset, data) or (call, new length, None)

    def change(self, call: int, at: int, data: bytes | None) -> None:
        """Write `data` at `at`; or, without data, make the file `at` bytes long."""
        _change(self.content, at, data)
        self.pending.append((call, at, data))

    def settle(self) -> None:
        """All changes are durable now."""
        if self.pending:
            durable = self.durable if isinstance(self.durable, bytearray) else bytearray(self.durable)
            for _, at, data in self.pending:
                _change(durable, at, data)
            self.durable, self.pending = durable, []

    def found(self, fate: PowerLossOutcome, page: int, sector: int) -> bytes:
        """The bytes that are found after the power went."""
        if not self.pending:
            return bytes(self.durable)
        lengths = [(0, len(self.durable))]
        pages: dict[int, list[tuple[int, bytes]]] = {}  # of each page that was changed, the versions and their calls
        for call, at, data in self.pending:
            length = lengths[-1][1]
            if data is None:
                changed = at
                data = bytes(max(0, length - at))  # cut-off bytes read as zeros where the file is longer again
            else:
                changed = max(length, at + len(data))
            if changed != length:
                lengths.append((call, changed))
            end = at + len(data)
            for start in range(at - at % page, end, page):
                versions = pages.get(start)
                if versions is None:
                    versions = pages[start] = [(0, bytes(self.durable[start : start + page]).ljust(page, b"\0"))]
                old = versions[-1][1]
                low, high = max(at, start), min(end, start + page)
                new = old[: low - start] + data[low - at : high - at] + old[high - start :]
                if new != old:
                    versions.append((call, new))
        length = _one_of(lengths, "length", fate)
        found = bytearray(self.durable[:length].ljust(length, b"\0"))
        for start, versions in pages.items():
            if start < length and len(versions) > 1:
                found[start : start + page] = _found_page(versions, fate, sector)
        return bytes(found[:length])


NameChange = tuple[int, Inode, str | None]
"""In this call the file got that name, in place of the one it had; or None: it was removed."""


def found_names(
    durable: dict[str, Inode], live: Iterable[Inode], pending: Iterable[NameChange], fate: PowerLossOutcome
) -> dict[str, Inode]:
    """The names that are found after the power went: each change of a name was kept, or was not.

    A rename is one change, so it is found done or not done. A file that was not removed or replaced keeps a name: where
    its own renaming is lost, whatever took its old name since is lost as well.
    """
    names, alive = dict(durable), set(live)
    for call, inode, name in pending:
        if not fate("name", (0, call)):
            continue
        holder = names.get(name) if name is not None else None
        if holder is not None and holder in alive:
            continue
        for old, other in names.items():
            if other is inode:
                del names[old]
                break
        if name is not None:
            names[name] = inode
    return names


def _change(content: bytearray, at: int, data: bytes | None) -> None:
    if at > len(content):
        content.extend(bytes(at - len(content)))
    if data is None:
        del content[at:]
    else:
        content[at : at + len(data)] = data


def _one_of(versions: Sequence[tuple[int, T]], kind: str, fate: PowerLossOutcome) -> T:
    return versions[fate(kind, [call for call, _ in versions]) if len(versions) > 1 else 0][1]


def _found_page(versions: Sequence[tuple[int, bytes]], fate: PowerLossOutcome, sector: int) -> bytes:
    size = len(versions[0][1])
    if size <= sector or not fate("torn", (0, versions[-1][0])):
        return _one_of(versions, "page", fate)
    sectors = []
    for start in range(0, size, sector):
        parts: list[tuple[int, bytes]] = []
        for call, version in versions:
            part = version[start : start + sector]
            if not parts or part != parts[-1][1]:
                parts.append((call, part))
        sectors.append(_one_of(parts, "sector", fate))
    return b"".join(sectors)
