"""What a command works on: a folder, or a server. One implementation of each command serves both.

`--server URL` names a server; `--data DIR`, or a bare DIR, a folder. Without either: RUNNEL_SERVER, RUNNEL_DATA, then
`server` and `data` in the file, then the folder `data`.
Below: folder_target, server_target, config. Above: the commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runnel.cli.address import checked, configured
from runnel.cli.folder import add_data, folder_of, owning
from runnel.cli.folder_target import FolderTarget, OwnedFolder
from runnel.cli.problem import Refused, unknown_group
from runnel.cli.server_target import ServerTarget, connected
from runnel.core.pattern import check_pattern
from runnel.journal.inspection import Inspection, owner_of


def add_target(parser: argparse.ArgumentParser, *, bare: bool = True) -> None:
    """`--server URL`, `--data DIR`, and where `bare` DIR alone."""
    parser.add_argument("--server", metavar="URL", help="a server instead of a folder (default: $RUNNEL_SERVER)")
    add_data(parser, bare=bare, refuse_server=False)


def server_of(chosen: argparse.Namespace) -> str | None:
    """The server that a command means, or None: it means a folder."""
    said = chosen.data or getattr(chosen, "folder", None)
    if chosen.server:
        if said:
            raise Refused("usage_error", f"a server and a folder were named: {chosen.server!r} and {said!r}", 2)
        return checked(chosen.server)
    if said:
        return None
    settings = configured()
    if settings.where("server") != "RUNNEL_SERVER" and settings.where("data") == "RUNNEL_DATA":
        return None
    return None if settings.general.server is None else checked(settings.general.server)


@contextmanager
def looking_at(chosen: argparse.Namespace) -> Iterator[FolderTarget | ServerTarget]:
    """The target, to look at."""
    url = server_of(chosen)
    if url is not None:
        with connected(url) as server:
            yield server
        return
    with Inspection(folder_of(chosen)) as seen:
        yield FolderTarget(seen)


@contextmanager
def changing(chosen: argparse.Namespace, *, create: bool = False) -> Iterator[OwnedFolder | ServerTarget]:
    """The target, to change it. A folder that a server or a program shares is changed through that one."""
    url = server_of(chosen) or _sharing(folder_of(chosen))
    if url is not None:
        with connected(url) as server:
            yield server
        return
    folder = folder_of(chosen)
    with owning(folder, create=create) as journal:
        yield OwnedFolder(folder, journal)


def _sharing(folder: Path) -> str | None:
    """The folder, as a place to open, if somebody has it who lets others in."""
    owner = owner_of(folder)
    return str(folder) if owner is not None and owner.shares else None


def find_group(target: OwnedFolder | ServerTarget, name: str, pattern: str | None) -> str:
    """What the group reads: as it was said, or the one thing that a group of that name reads."""
    if pattern is not None:
        check_pattern(pattern)
    found = [one["pattern"] for one in target.groups() if one["group"] == name and pattern in (None, one["pattern"])]
    if len(found) == 1:
        return str(found[0])
    if found:
        several = ", ".join(map(repr, found))
        raise Refused("usage_error", f"there are groups {name!r} on {several}: say which with --topic", 2)
    raise unknown_group(name, pattern, target.name)
