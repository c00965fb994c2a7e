"""`runnel topic`: list, show, create, configure, trim and delete topics of a folder or a server.

A folder is changed through the process that has it open if that one shares it, else only while no process has it open.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from runnel.cli.command import Commands, add_command, add_family, add_json
from runnel.cli.confirm import check_can_confirm, confirmed
from runnel.cli.errors import FOUND
from runnel.cli.output import (
    Size,
    human_age,
    human_time,
    is_colourful,
    iso,
    known_columns,
    print_document,
    print_done,
    print_pairs,
    print_table,
    table,
)
from runnel.cli.start import parse_start
from runnel.cli.target import add_target, open_to_change, open_to_inspect
from runnel.config import units
from runnel.core.errors import InvalidOption
from runnel.core.options import TopicOptions
from runnel.core.pattern import check_name, check_pattern, matches
from runnel.journal.format.removed_offsets import RemovalReason

EXAMPLE = """\
examples:
  runnel topic list --data data/
  runnel topic list --server runnel://127.0.0.1:7788
  runnel topic show orders
  runnel topic create orders --option retention_age=604800 --option compression=zstd
  runnel topic set orders retention_bytes=1000000000
  runnel topic trim orders --before 2026-05-01T00:00
  runnel topic delete orders
"""
LIST = """\
examples:
  runnel topic list data/
  runnel topic list --match 'sensors.>' --json
  runnel topic list --gone                          which offsets are not there any more, and why
"""
SHOW = """\
examples:
  runnel topic show orders                                       from the folder data/
  runnel topic show orders --server runnel://127.0.0.1:7788
  runnel topic show orders --json
"""
CREATE = """\
examples:
  runnel topic create orders
  runnel topic create orders --option retention_age=604800 --option backoff=1,5,30
  runnel topic create ticks --option durable=false --server runnel://127.0.0.1:7788

Making a topic that is there already with the same options does nothing.
"""
CONFIG = """\
examples:
  runnel topic config orders                              its options
  runnel topic config orders --json
"""
SET = """\
examples:
  runnel topic set orders retention_age=7d                       change one, also while a server runs
  runnel topic set orders retention_bytes=10GiB backoff=1s,1min  several; without a unit, seconds and bytes
  runnel topic set orders retention_age=default                  back to the default

The options apply from now on: records that retention no longer keeps are removed, and cannot be restored.
`dead_letter`, `max_deliver` and `backoff` are for groups made later. `durable` and `encoding` cannot change.
"""
DELETE = """\
examples:
  runnel topic delete orders          asks, on a terminal
  runnel topic delete orders --yes    does not; needed in scripts, and with --json

Space comes back in whole segments: those that hold nothing of other topics are removed at once.
"""

_OPTIONS = f"one of {', '.join(TopicOptions.__struct_fields__)}"
_BOOLEANS, _TEXTS = ("durable", "compact"), ("compression", "encoding", "dead_letter", "retention_until")
_UNITS: dict[str, Callable[[str], Any]] = {
    "retention_age": units.seconds,
    "retention_bytes": units.size,
    "backoff": lambda text: [units.seconds(pause) for pause in text.split(",")],
}
_SPELLED = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "null": None}


def add_to(commands: Commands) -> None:
    """Make `runnel topic` and its commands known."""
    inner = add_family(
        commands,
        "topic",
        "list, show, create, configure, trim and delete topics",
        EXAMPLE,
        "The topics of a folder, or of a server. Of a folder, `list`, `show` and `config` work while a broker has it\n"
        "open. `create`, `set`, `delete` and `trim` go through the owner of an open folder, if that one shares it, as\n"
        "a server does.",
    )

    listing = add_command(inner, "list", "the topics and their sizes", LIST, run_list)
    add_target(listing)
    listing.add_argument("--match", default=">", metavar="PATTERN", help="only topics that a pattern covers")
    listing.add_argument("--gone", action="store_true", help="show which offsets are gone, and why")
    add_json(listing)

    show = add_command(inner, "show", "one topic: what it holds, and who reads it", SHOW, run_show)
    show.add_argument("name", metavar="NAME", help="the name of the topic")
    add_target(show, bare=False)
    add_json(show)

    create = add_command(inner, "create", "make a topic", CREATE, run_create)
    create.add_argument("name", metavar="NAME", help="the name of the new topic: words with dots, such as shop.orders")
    add_target(create, bare=False)
    create.add_argument("--option", dest="options", action="append", default=[], metavar="OPTION=VALUE", help=_OPTIONS)
    add_json(create)

    config = add_command(inner, "config", "show the options of a topic", CONFIG, run_config)
    config.add_argument("name", metavar="NAME", help="the name of the topic")
    add_target(config, bare=False)
    add_json(config)

    change = add_command(inner, "set", "change options of a topic", SET, run_set)
    change.add_argument("name", metavar="NAME", help="the name of the topic")
    change.add_argument("options", nargs="+", metavar="OPTION=VALUE", help=f"{_OPTIONS}; VALUE may be `default`")
    add_target(change, bare=False)
    add_json(change)

    delete = add_command(inner, "delete", "delete a topic, its records and the groups on it", DELETE, run_delete)
    delete.add_argument("name", metavar="NAME", help="the name of the topic")
    add_target(delete, bare=False)
    delete.add_argument("--yes", action="store_true", help="do not ask")
    add_json(delete)
    add_trim(inner)


# -- commands ---------------------------------------------------------------------------------------------------


def run_list(chosen: argparse.Namespace) -> int:
    """Print the topics."""
    pattern = check_pattern(chosen.match)
    with open_to_inspect(chosen) as target:
        found = [one for one in target.topics() if matches(pattern, one["topic"])]
    if chosen.json:
        print_document(found)
        return 0
    if chosen.gone:
        print(_gone(found) if any(one.get("gone") for one in found) else "nothing is gone")
        return 0
    if not found and chosen.match == ">":
        print("there are no topics")
        return 0
    columns = known_columns(_COLUMNS, found)
    print_table([head for head, _ in columns.values()], ([_cell(one, key) for key in columns] for one in found))
    return 0


def run_show(chosen: argparse.Namespace) -> int:
    """Print one topic."""
    with open_to_inspect(chosen) as target:
        found = target.topic(check_name(chosen.name)) | {"options": target.options(chosen.name)}
    if chosen.json:
        print_document(found)
        return 0
    rows = [(head.lower(), _cell(found, key)) for key, (head, _) in known_columns(_COLUMNS, [found]).items()]
    rows += [("epoch", str(found["epoch"]))]
    if (archive := found.get("archive")) is not None:
        rows += [
            ("confirmed", f"offsets below {archive['confirmed']:,} are in the archive"),
            ("moved", f"offsets below {archive['moved']:,} are in the archive only"),
            ("gone", f"offsets below {archive['gone']:,} cannot be read any more"),
            ("unconfirmed", f"about {Size(archive['unconfirmed_bytes'])} wait for the archive"),
        ]
    rows += [
        (what, ", ".join(found[key]) or None) for key, what in (("groups", "groups"), ("cursors", "subscriptions"))
    ]
    print_pairs(rows)
    return 0


def run_create(chosen: argparse.Namespace) -> int:
    """Make a topic."""
    name = check_name(chosen.name)
    options = check_options(parse_options(chosen.options))
    with open_to_change(chosen, create=True) as target:
        found = target.create(name, options)
    said = f"topic {name!r} {'made' if found['made'] else 'was there already'}, epoch {found['epoch']}"
    print_done(said, found, as_json=chosen.json)
    return 0


def run_config(chosen: argparse.Namespace) -> int:
    """Print the options of a topic."""
    with open_to_inspect(chosen) as target:
        found = target.topic(check_name(chosen.name))
        options = target.options(chosen.name)
    return _print_options(chosen, {"topic": chosen.name, "epoch": found["epoch"], "options": options})


def run_set(chosen: argparse.Namespace) -> int:
    """Change the options of a topic."""
    given = parse_options(chosen.options)
    for name, value in given.items():
        check_options({name: value})
    with open_to_change(chosen) as target:
        found = target.configure(check_name(chosen.name), with_backoff_list(given))
    return _print_options(chosen, found)


def _print_options(chosen: argparse.Namespace, found: dict[str, Any]) -> int:
    if chosen.json:
        print_document(found)
    elif found["options"]:
        print_pairs((name, shown(value)) for name, value in found["options"].items())
    else:
        print("every option has its default")
    return 0


def run_delete(chosen: argparse.Namespace) -> int:
    """Delete a topic."""
    check_can_confirm(chosen)
    with open_to_change(chosen) as target:
        topic = target.topic(chosen.name)
        if not confirmed(chosen, f"Delete {topic['topic']!r} with offsets [{topic['first']:,}, {topic['end']:,})?"):
            return FOUND
        found = target.delete(chosen.name)
    with_it = f", and with it the groups {', '.join(found['groups'])}" if found["groups"] else ""
    freed = f"; {Size(found['freed_bytes'])} of disk came back" if "freed_bytes" in found else ""
    said = f"topic {found['topic']!r} deleted{with_it}{freed}"
    if left := found.get("left_bytes"):
        said += f"\n{Size(left)} more lie in segments with records of other topics, and come back with them"
    print_done(said, found, as_json=chosen.json)
    return 0


# -- options ----------------------------------------------------------------------------------------------------


def parse_options(given: list[str]) -> dict[str, Any]:
    """NAME=VALUE, repeatable. Values are JSON, or lists of numbers with commas, or text."""
    found: dict[str, Any] = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not equals:
            raise InvalidOption("option", one, "expected NAME=VALUE")
        if text == "default":
            found[name] = None
            continue
        value = _boolean(name, text) if name in _BOOLEANS else _value(text)
        if name in _UNITS and isinstance(value, str):
            value = _with_unit(name, text)
        found[name] = text if name in _TEXTS and not isinstance(value, str | None) else value
    return found


def _with_unit(name: str, text: str) -> Any:
    """A duration, a size or pauses with units, such as `7d`, `10GiB` and `1s,1min`."""
    try:
        return _UNITS[name](text)
    except ValueError as error:
        raise InvalidOption(name, text, str(error)) from None


def _boolean(name: str, text: str) -> bool | None:
    """Yes or no, as JSON, Python and people spell it."""
    try:
        return _SPELLED[text.lower()]
    except KeyError:
        raise InvalidOption(name, text, "expected true or false") from None


def _value(text: str) -> Any:
    for attempt in (text, f"[{text}]" if "," in text else text):
        try:
            return msgspec.json.decode(attempt)
        except msgspec.DecodeError:
            continue
    return text


def check_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options, when a topic can have them."""
    return TopicOptions.of(with_backoff_list(options)).given()


def with_backoff_list(options: dict[str, Any]) -> dict[str, Any]:
    """The same, with a single pause as a list of pauses."""
    if options.get("backoff") is not None and not isinstance(options["backoff"], list | tuple):
        return options | {"backoff": [options["backoff"]]}
    return options


def shown(value: object) -> str:
    """The value of an option, as it would be said."""
    if isinstance(value, list | tuple):
        return ",".join(map(shown, value))
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a server returns 86400.0 for the given 86400
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


_COLUMNS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "topic": ("TOPIC", str),
    "first": ("FIRST", int),
    "end": ("END", int),
    "records": ("RECORDS", int),
    "bytes": ("SIZE", Size),
    "published": ("PUBLISHED", int),
    "subscribers": ("SUBSCRIBERS", int),
    "last_time": ("LAST RECORD", lambda at: f"{human_age(time.time() - at / 1e6)} ago" if at else None),
    "options": ("OPTIONS", lambda said: " ".join(f"{name}={shown(value)}" for name, value in said.items()) or None),
}


def _cell(facts: dict[str, Any], key: str) -> object:
    return _COLUMNS[key][1](facts[key])


def _gone(found: list[dict[str, Any]]) -> str:
    return table(
        ("TOPIC", "OFFSETS", "WHY", "LAST"),
        (
            (
                one["topic"],
                f"[{gone['first']:,}, {gone['end']:,})",
                RemovalReason[gone["reason"].upper()].words,
                human_time(gone["time"]) if gone["time"] else None,
            )
            for one in found
            for gone in one["gone"]
        ),
        colourful=is_colourful(sys.stdout),
    )


# -- runnel topic trim -----------------------------------------------------------------------------------


TRIM = """\
examples:
  runnel topic trim orders --before 1200                  keep offset 1200 and what follows
  runnel topic trim orders --before 2026-05-01T00:00      keep what is not older than that (UTC)
  runnel topic trim orders --before latest --yes          keep nothing; does not ask

What a subscription holds is not taken, unless with --force.
"""


def add_trim(inner: Commands) -> None:
    """Make `runnel topic trim` known."""
    trim = add_command(inner, "trim", "remove the records of a topic before a position", TRIM, run_trim)
    trim.add_argument("name", metavar="NAME", help="the name of the topic")
    trim.add_argument("--before", required=True, metavar="WHERE", help="an offset, a time, or latest: all of it")
    add_target(trim, bare=False)
    trim.add_argument("--force", action="store_true", help="also what a subscription holds")
    trim.add_argument("--yes", action="store_true", help="do not ask")
    add_json(trim)


def run_trim(chosen: argparse.Namespace) -> int:
    """Remove the beginning of a topic."""
    start = parse_start("before", chosen.before)
    check_can_confirm(chosen)
    with open_to_change(chosen) as target:
        found = target.trim_place(chosen.name, start, force=chosen.force)
        first, before = found["before"], found["first"]
        if isinstance(before, datetime) or before > first:
            if not confirmed(chosen, _trim_question(chosen.name, first, before)):
                return FOUND
            found["first"] = target.trim(chosen.name, before, force=chosen.force)
    if found["first"] == first:
        said = f"begins at offset {first:,} already; nothing was done"
    else:
        said = f"begins at offset {found['first']:,} now; it began at {first:,}"
    print_done(f"topic {chosen.name!r} {said}", found, as_json=chosen.json)
    return 0


def _trim_question(name: str, first: int, before: int | datetime) -> str:
    if isinstance(before, datetime):
        return f"Take what is older than {iso(before)} of {name!r} away?"
    return f"Take offsets [{first:,}, {before:,}) of {name!r} away?"
