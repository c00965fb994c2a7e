"""`runnel info`: what a folder is, at a glance."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from runnel.cli.command import Commands, add_command
from runnel.cli.document import print_document
from runnel.cli.folder import add_data, add_json, looking
from runnel.cli.table import Size, hidden, human_time, many, pairs
from runnel.core.journal_errors import JournalDamaged
from runnel.journal import archived, manifest
from runnel.journal.archived import Holder
from runnel.journal.inspection import Inspection

EXAMPLE = """\
examples:
  runnel info                      the folder in $RUNNEL_DATA, else data/
  runnel info backup/ --json       for programs
"""

_FSYNC = {
    "commit": "commit (what was acknowledged is on disk)",
    "interval": "interval (a power loss may take the last moments)",
    "os": "os (a power loss may take up to a segment)",
}

_HELD = (("topic", "topic"), ("group", "group"), ("cursor", "named subscription"))


def add_to(commands: Commands) -> None:
    """Make `runnel info` known."""
    parser = add_command(
        commands,
        "info",
        "what a folder is: its journal, its owner, its fsync mode, its size",
        EXAMPLE,
        run,
        "Names the journal in a folder, who owns it now, how it is synced, and how much it holds.\n"
        "Works while a broker has the folder open.",
    )
    add_data(parser)
    add_json(parser)


def run(chosen: argparse.Namespace) -> int:
    """Print what a folder is."""
    with looking(chosen) as seen:
        found = facts(seen)
    if chosen.json:
        print_document(found)
    else:
        print(shown(found))
    return 0


def facts(seen: Inspection) -> dict[str, Any]:
    """What a folder is."""
    owner = seen.owner
    holders, notes = _archives(seen)
    return {
        "folder": str(seen.folder),
        "journal": seen.manifest.journal,
        "format": manifest.VERSION,
        "fsync": seen.manifest.fsync,
        "owner": None if owner is None else {"pid": owner.pid},
        "clean": seen.clean,
        "bytes": sum(seen.sizes().values()),
        "segments": len(seen.manifest.segments),
        "topics": len(seen.ledger.topics),
        "groups": len(seen.ledger.groups),
        "cursors": len(seen.ledger.cursors),
        "sequence": seen.ledger.sequence,
        "time": seen.ledger.time,
        "torn_bytes": seen.torn_bytes,
        "unsynced_records": seen.unsynced.records,
        "unsynced_bytes": seen.unsynced.bytes,
        "archives": [msgspec.structs.asdict(one) for one in holders],
        "notes": seen.notes + notes,
    }


def _archives(seen: Inspection) -> tuple[list[Holder], list[str]]:
    """The archives that hold, and what is to be said if that cannot be told."""
    try:
        return archived.load(seen.storage), []
    except JournalDamaged as error:
        return [], [f"nothing is cleaned or dropped, an archive may be waiting: {error}"]


def shown(found: dict[str, Any]) -> str:
    """The same for people."""
    owner = found["owner"]
    if owner is not None:
        state = "open in " + ("a process" if owner["pid"] is None else f"process {owner['pid']}")
    else:
        state = "closed" if found["clean"] else "not closed properly; the next opening recovers it"
    lines: list[tuple[str, object]] = [
        ("folder", found["folder"]),
        ("journal", f"{found['journal']}, format {found['format']}"),
        ("state", state),
        ("fsync", _FSYNC.get(found["fsync"], found["fsync"])),
        ("size", f"{Size(found['bytes'])} in {many(found['segments'], 'segment')}"),
        ("holds", ", ".join(many(found[f"{what}s"], name) for what, name in _HELD)),
        ("last change", f"{human_time(found['time']) or 'never'} UTC"),
    ]
    if found["torn_bytes"]:
        lines.append(("torn tail", f"{Size(found['torn_bytes'])}, cut at the next opening"))
    if found["unsynced_bytes"]:
        lines.append(("note", hidden(found["unsynced_records"], found["unsynced_bytes"])))
    for one in found["archives"]:
        since, seen = human_time(one["since"]), human_time(one["seen"])
        has = f"segments up to {one['through']:,}" if one["through"] else "nothing"
        lines.append(("held by", f"archive {one['place']} since {since}: it has {has}, and came by {seen} UTC"))
    lines += [("note", note) for note in found["notes"]]
    return pairs(lines)
