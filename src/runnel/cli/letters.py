"""`runnel letters`: dead letters of a folder or a server: list them, replay them, discard them."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from typing import Any

import runnel
from runnel.cli.command import Commands, add_command, add_family, add_json, check_count
from runnel.cli.confirm import check_can_confirm, confirmed
from runnel.cli.errors import FINE, FOUND, USAGE, CommandError
from runnel.cli.opened import opened
from runnel.cli.options import read_whole
from runnel.cli.output import Elapsed, many, of_record, print_document, print_done, print_table, readable
from runnel.cli.server_address import add_server, location_of
from runnel.core.dead_letter import PREFIX, original_headers
from runnel.core.errors import InvalidOption
from runnel.core.pattern import check_name
from runnel.core.record import Record

EXAMPLE = """\
examples:
  runnel letters list                              the dead-letter topics, and how many letters each holds
  runnel letters list dead-letters.billing         its letters: where each comes from, and why it failed
  runnel letters replay dead-letters.billing 7 9   publish two of them to their topics again
  runnel letters discard dead-letters.billing --all

A dead letter is a record that a group gave up after max_deliver attempts, or that a handler rejected.
"""
LIST = """\
examples:
  runnel letters list
  runnel letters list dead-letters.billing --count 10
  runnel letters list dead-letters.billing --json | jq -r '.[].reason'
"""
REPLAY = """\
examples:
  runnel letters replay dead-letters.billing 7        the letter at offset 7
  runnel letters replay dead-letters.billing --all    asks, on a terminal; --yes does not

A replayed letter is published to the topic that it came from, once, also if the command runs again.
"""
DISCARD = """\
examples:
  runnel letters discard dead-letters.billing 7 9
  runnel letters discard dead-letters.billing --all --yes

A discarded letter is not replayed or listed any more; retention removes its record.
"""

PAGE, PAGE_BYTES = 1_000, 4 << 20
FACTS = {
    "offset": "OFFSET",
    "topic": "FROM",
    "position": "AT",
    "attempts": "ATTEMPTS",
    "reason": "REASON",
    "value": "VALUE",
}
WIDTH = 60  # characters of a value in the table


def add_to(commands: Commands) -> None:
    """Make `runnel letters` and its commands known."""
    inner = add_family(
        commands,
        "letters",
        "list, replay and discard dead letters",
        EXAMPLE,
        "Dead letters: records that groups gave up, with the reason.",
    )
    listing = add_command(inner, "list", "the dead-letter topics, or the letters of one", LIST, run_list)
    listing.add_argument("topic", nargs="?", metavar="TOPIC", help="a dead-letter topic; without it all are listed")
    listing.add_argument("--count", type=int, default=100, metavar="N", help="so many letters at most (default: 100)")
    add_server(listing)
    add_json(listing)
    for verb, summary, example in (
        ("replay", "publish letters to the topics that they came from", REPLAY),
        ("discard", "mark letters as done", DISCARD),
    ):
        settle = add_command(inner, verb, summary, example, run_settle)
        settle.set_defaults(verb=verb)
        settle.add_argument("topic", metavar="TOPIC", help="the dead-letter topic")
        settle.add_argument("offsets", nargs="*", metavar="OFFSET", help="the letters at these offsets")
        settle.add_argument("--all", action="store_true", help="all letters of the topic")
        settle.add_argument("--yes", action="store_true", help="do not ask")
        add_server(settle)
        add_json(settle)


def run_list(chosen: argparse.Namespace) -> int:
    """Print the dead-letter topics, or the letters of one."""
    check_count(chosen.count)
    where = location_of(chosen)
    if chosen.topic is None:
        topics = asyncio.run(_topics(where))
        if chosen.json:
            print_document(topics)
        elif not topics:
            print("there are no dead-letter topics")
        else:
            print_table(
                ("TOPIC", "LETTERS", "GROUPS"),
                ((one["topic"], one["letters"], ", ".join(one["groups"]) or None) for one in topics),
            )
        return FINE
    letters = asyncio.run(_letters(where, check_name(chosen.topic), chosen.count))
    if chosen.json:
        print_document(letters)
    elif not letters:
        print(f"{chosen.topic!r} holds no letters")
    else:
        print_table(list(FACTS.values()), ([_cell(one, key) for key in FACTS] for one in letters))
    return FINE


def run_settle(chosen: argparse.Namespace) -> int:
    """Replay or discard letters."""
    check_name(chosen.topic)
    if bool(chosen.offsets) == chosen.all:
        raise CommandError("usage_error", f"say which letters to {chosen.verb}: their offsets, or --all", USAGE)
    offsets = None if chosen.all else [_offset(one) for one in chosen.offsets]
    if chosen.all:
        check_can_confirm(chosen)
        if not confirmed(chosen, f"{chosen.verb.capitalize()} all letters of {chosen.topic!r}?"):
            return FOUND
    with Elapsed("replaying" if chosen.verb == "replay" else "discarding"):
        count = asyncio.run(_settle(location_of(chosen), chosen.topic, offsets, put_back=chosen.verb == "replay"))
    said = f"{many(count, 'letter')} of {chosen.topic!r} {'replayed' if chosen.verb == 'replay' else 'discarded'}"
    print_done(said, {"topic": chosen.topic, "count": count}, as_json=chosen.json)
    return FINE


async def _topics(where: str) -> list[dict[str, Any]]:
    async with opened(where) as broker:
        found = await broker.backend.dead_letter_topics()
    return [{"topic": one.name, "letters": one.open, "groups": one.groups} for one in found]


async def _letters(where: str, topic: str, count: int) -> list[dict[str, Any]]:
    async with opened(where) as broker:
        return [_facts(letter) async for letter in _read(broker, topic, count)]


async def _read(broker: runnel.Broker, topic: str, count: int) -> AsyncIterator[Record[bytes]]:
    start = 0
    while count > 0:
        page = await broker.backend.dead_letters(topic, start, min(count, PAGE), PAGE_BYTES)
        for letter in page.letters:
            yield letter
        count -= len(page.letters)
        if page.next >= page.end:
            return
        start = page.next


async def _settle(where: str, topic: str, offsets: list[int] | None, *, put_back: bool) -> int:
    async with opened(where) as broker:
        if put_back:
            return await broker.replay(topic, offsets=offsets)
        return await broker.discard(topic, offsets)


def _offset(given: str) -> int:
    try:
        return read_whole(given)
    except ValueError:
        raise InvalidOption("offset", given, "expected the offset of a letter; `runnel letters list` has it") from None


def _facts(letter: Record[bytes]) -> dict[str, Any]:
    """A letter as JSON: the record that failed, and what became of it."""
    failed = {name.removeprefix(PREFIX): value for name, value in letter.headers.items() if name.startswith(PREFIX)}
    return of_record(letter) | {"headers": original_headers(letter)} | failed | {"letters": letter.topic}


def _cell(facts: dict[str, Any], key: str) -> object:
    if key == "attempts" and key in facts:
        return int(facts[key])
    if key == "position" and key in facts:
        return int(facts[key].rpartition(":")[2])  # its offset: the epoch is in --json
    if key == "value":
        value = facts.get("value")
        shown = f"base64:{facts['value_base64']}" if value is None else readable(value.encode())
        return shown if len(shown) <= WIDTH else f"{shown[: WIDTH - 1]}…"
    return facts.get(key)
