"""`runnel topic trim`: take away the beginning of a topic."""

from __future__ import annotations

import argparse
import time

from runnel.cli.ask import agreed, check_answerable
from runnel.cli.command import Commands, add_command
from runnel.cli.document import print_document
from runnel.cli.folder import add_data, add_json, folder_of, owning, write
from runnel.cli.problem import FOUND, unknown_topic
from runnel.cli.start import Start, parse_start
from runnel.core.errors import OffsetOutOfRange
from runnel.core.journal_errors import TopicHeld
from runnel.journal import holding
from runnel.journal.gone import Reason
from runnel.journal.journal import Journal
from runnel.journal.ledger import TopicState
from runnel.journal.parts import trim_part

TRIM = """\
examples:
  runnel topic trim orders --before 1200                  keep offset 1200 and what follows
  runnel topic trim orders --before 2026-05-01T00:00      keep what is not older than that (UTC)
  runnel topic trim orders --before latest --yes          keep nothing; does not ask

What a subscription holds is not taken, unless with --force. Nobody may have the folder open.
"""


def add_to(inner: Commands) -> None:
    """Make `runnel topic trim` known."""
    trim = add_command(inner, "trim", "take away the records of a topic before a place", TRIM, run)
    trim.add_argument("name", metavar="NAME", help="the name of the topic")
    trim.add_argument("--before", required=True, metavar="WHERE", help="an offset, a time, or latest: all of it")
    add_data(trim, bare=False)
    trim.add_argument("--force", action="store_true", help="also what a subscription holds")
    trim.add_argument("--yes", action="store_true", help="do not ask")
    add_json(trim)


def run(chosen: argparse.Namespace) -> int:
    """Take away the beginning of a topic."""
    folder = folder_of(chosen)
    start = parse_start("before", chosen.before)
    check_answerable(chosen)
    with owning(folder) as journal:
        topic = next((one for one in journal.ledger.topics.values() if one.name == chosen.name), None)
        if topic is None:
            raise unknown_topic(chosen.name, folder)
        first, before = topic.first, max(topic.first, _offset(start, topic, journal))
        held = holding.held_by(journal.ledger, journal.history).get(topic.id, before)
        if held < before and not chosen.force:
            raise TopicHeld(topic.name, before, dict.fromkeys(holding.holders(journal.ledger, topic.name), held))
        if before > first:
            if not chosen.yes and not agreed(f"Take offsets [{first:,}, {before:,}) of {topic.name!r} away?"):
                print("nothing was done")
                return FOUND
            now = time.time_ns() // 1000
            write(journal, trim_part(topic.id, before, 0, Reason.ASKED, now))
            journal.retain(now)
    if chosen.json:
        print_document({"topic": topic.name, "epoch": topic.epoch, "before": first, "first": before, "end": topic.end})
    elif before == first:
        print(f"topic {topic.name!r} begins at offset {first:,} already; nothing was done")
    else:
        print(f"topic {topic.name!r} begins at offset {before:,} now; it began at {first:,}")
    return 0


def _offset(start: Start, topic: TopicState, journal: Journal) -> int:
    if start.offset is not None:
        if start.offset > topic.end:
            raise OffsetOutOfRange(topic.name, start.offset, topic.first, topic.end)
        return start.offset
    if start.time is not None:
        found = journal.history.offset_at(topic.id, start.time)
        return topic.end if found is None else found
    return topic.end if start.word == "latest" else topic.first
