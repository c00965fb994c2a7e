"""`runnel info`: what a folder or a server is, at a glance."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import msgspec

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.folder import open_inspection
from runnel.cli.output import Size, human_age, human_time, is_colourful, many, not_synced, pairs, print_document
from runnel.cli.server_address import server_of
from runnel.cli.target import add_target, connect
from runnel.core.errors import JournalDamaged
from runnel.journal.format import manifest
from runnel.journal.read.inspection import Inspection
from runnel.journal.write import archive_holds
from runnel.journal.write.archive_holds import ArchiveHolder

EXAMPLE = """\
examples:
  runnel info                      the folder in $RUNNEL_DATA, else data/
  runnel info backup/ --json       for programs
  runnel info --server runnel://127.0.0.1:7788
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
        "show a folder (journal, owner, fsync mode, size) or a server",
        EXAMPLE,
        run,
        "Names the journal in a folder, who owns it now, how it is synced, and how much it holds. Works while a\n"
        "broker has the folder open. Of a server: its version, its listeners, what it did since it started.",
    )
    add_target(parser)
    add_json(parser)


def run(chosen: argparse.Namespace) -> int:
    """Print what a folder or a server is."""
    url = server_of(chosen)
    if url is not None:
        with connect(url, to_look=True) as server:
            found = server.info()
        view = shown_server
    else:
        with open_inspection(chosen) as seen:
            found = facts(seen)
        view = shown
    if chosen.json:
        print_document(found)
    else:
        print(view(found))
    return 0


def shown_server(found: dict[str, Any]) -> str:
    """A server, for people."""
    uptime, journal = found.get("uptime"), found.get("journal")
    fsync = found.get("fsync")
    lines: list[tuple[str, object]] = [
        ("server", found["server"]),
        ("version", found.get("version")),
        ("up", None if uptime is None else human_age(uptime)),
        ("journal", journal or "none: it serves from memory"),
        ("fsync", _FSYNC.get(fsync, fsync) if fsync else None),
        ("connections", found.get("connections")),
        ("holds", f"{many(found['topics'], 'topic')}, {many(found['groups'], 'group')}"),
        ("published", f"{many(found['published'], 'record')}, {Size(found['published_bytes'])}"),
        ("delivered", many(found["delivered"], "record")),
        ("dropped", many(found["dropped"], "record")),
    ]
    lines += [("listener", f"{one['name']}: {one['url']}") for one in found.get("listeners", ())]
    lines += _standby_lines(found.get("replication"))
    return pairs((line for line in lines if line[1] is not None), colourful=is_colourful(sys.stdout))


def _standby_lines(found: dict[str, Any] | None) -> list[tuple[str, object]]:
    """The part of a server in a warm standby."""
    if found is None:
        return []
    lines: list[tuple[str, object]] = [("role", f"{found['role']}, {found['mode']}, generation {found['generation']}")]
    if found["role"] == "standby":
        lines.append(("follows", f"{found['primary']}: {found['state']}, {_lag(found)}"))
        if found["to_copy"]:
            lines.append(("copied", f"{Size(found['copied'])} of {Size(found['to_copy'])}"))
        if found["last_error"]:
            lines.append(("last error", found["last_error"]))
    lines += [("standby", f"{one['name']}: {one['state']}, {one['mode']}, {_lag(one)}") for one in found["followers"]]
    if found["holding"]:
        lines.append(("note", "nothing is acknowledged: the synchronous standby is away, or full"))
    return lines


def _lag(one: dict[str, Any]) -> str:
    return f"{Size(one['lag_bytes'])} behind ({many(one['lag_records'], 'record')}, {human_age(one['lag_seconds'])})"


def facts(seen: Inspection) -> dict[str, Any]:
    """The kind of a folder."""
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


def _archives(seen: Inspection) -> tuple[list[ArchiveHolder], list[str]]:
    """The archives that hold, and the message if they are not known."""
    try:
        return archive_holds.load(seen.storage), []
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
        lines.append(("note", not_synced(found["unsynced_records"], found["unsynced_bytes"])))
    for one in found["archives"]:
        since, seen = human_time(one["since"]), human_time(one["seen"])
        has = f"segments up to {one['through']:,}" if one["through"] else "nothing"
        lines.append(("held by", f"archive {one['place']} since {since}: it has {has}, and came by {seen} UTC"))
    lines += [("note", note) for note in found["notes"]]
    return pairs(lines, colourful=is_colourful(sys.stdout))
