"""Where a broker lives: `runnel.open` turns a place into a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runnel.broker.broker import Broker
from runnel.broker.folder_place import FolderPlace
from runnel.core.clock import Clock
from runnel.core.errors import InvalidOption, NotSupported
from runnel.journal.options import JournalOptions


def open(
    where: str | Path | None = None, *, auto_create: bool = True, clock: Clock | None = None, **options: Any
) -> Broker:
    """A broker, to be used with `async with`.

    `where` is None: in memory, in this process. A folder, such as "data/": durable, in this process; it is
    made if need be, and belongs to one broker at a time. Options of a folder: see `JournalOptions`, above all
    `fsync="commit"`, the default: what was acknowledged is on disk.

    With `auto_create=False` topics must be declared before they are used. `clock` replaces the system's, for tests.
    """
    if where is None:
        for name, value in options.items():
            raise InvalidOption(name, value, "a broker in memory takes auto_create and clock")
        return Broker(auto_create=auto_create, clock=clock)
    if isinstance(where, str) and "://" in where:
        raise NotSupported(f"open({where!r})", "this version opens folders and memory; use runnel.open('data/')")
    if not isinstance(where, str | Path) or not str(where):
        raise InvalidOption("where", where, "expected None, or the path of a folder")
    for name, value in options.items():
        if name not in JournalOptions.__struct_fields__:
            known = ", ".join(JournalOptions.__struct_fields__)
            raise InvalidOption(name, value, f"a broker with a folder takes auto_create, clock, {known}")
    return Broker(auto_create=auto_create, clock=clock, folder=FolderPlace(Path(where), JournalOptions(**options)))
