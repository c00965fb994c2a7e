"""`runnel topic`: the durable topics of a folder. What changes it needs a folder that nobody has open."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import msgspec

from runnel.cli import trim
from runnel.cli.ask import agreed, check_answerable
from runnel.cli.command import Commands, add_command, add_family
from runnel.cli.document import print_document
from runnel.cli.folder import add_data, add_json, folder_of, looking, owning, write
from runnel.cli.problem import FOUND, unknown_topic
from runnel.cli.table import Size, human_age, human_time, pairs, table
from runnel.core.errors import InvalidOption, TopicConflict
from runnel.core.options import TopicOptions
from runnel.core.pattern import check_name, check_pattern, matches
from runnel.journal.entry import Kind, state
from runnel.journal.gone import Reason
from runnel.journal.inspection import Held
from runnel.journal.journal import Journal
from runnel.journal.ledger import TopicState
from runnel.journal.parts import topic_part

EXAMPLE = """\
examples:
  runnel topic list --data data/
  runnel topic create orders --option retention_age=604800 --option compression=zstd
  runnel topic config orders --set retention_bytes=1000000000
  runnel topic trim orders --before 2026-05-01T00:00
  runnel topic delete orders
"""
LIST = """\
examples:
  runnel topic list data/
  runnel topic list --match 'sensors.>' --json
  runnel topic list --gone                          which offsets are not there any more, and why
"""
CREATE = """\
examples:
  runnel topic create orders
  runnel topic create orders --option retention_age=604800 --option backoff=1,5,30

Making a topic that is there already with the same options does nothing.
"""
CONFIG = """\
examples:
  runnel topic config orders                              its options
  runnel topic config orders --set retention_age=86400    change one
  runnel topic config orders --unset retention_age        back to the default
"""
DELETE = """\
examples:
  runnel topic delete orders          asks, on a terminal
  runnel topic delete orders --yes    does not; needed in scripts, and with --json

Space comes back in whole segments: those that hold nothing of other topics are removed at once.
"""

_BOOLEANS, _TEXTS = ("durable", "compact"), ("compression", "encoding", "dead_letter")
_SPELLED = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "null": None}


def add_to(commands: Commands) -> None:
    """Make `runnel topic` and its commands known."""
    inner = add_family(
        commands,
        "topic",
        "list, create, configure, trim and delete topics",
        EXAMPLE,
        "The durable topics of a folder. `list` works while a broker has it open, and so does `config` that\n"
        "only shows; `create`, `delete`, `trim` and `config` with --set or --unset change the folder, so nobody\n"
        "else may have it open.",
    )

    listing = add_command(inner, "list", "the topics, and what they hold", LIST, run_list)
    add_data(listing)
    listing.add_argument("--match", default=">", metavar="PATTERN", help="only topics that a pattern covers")
    listing.add_argument("--gone", action="store_true", help="show which offsets are gone, and why")
    add_json(listing)

    create = add_command(inner, "create", "make a topic", CREATE, run_create)
    create.add_argument("name", metavar="NAME", help="the name of the new topic: words with dots, such as shop.orders")
    add_data(create, bare=False)
    _add_options(create)
    add_json(create)

    config = add_command(inner, "config", "show or change the options of a topic", CONFIG, run_config)
    config.add_argument("name", metavar="NAME", help="the name of the topic")
    add_data(config, bare=False)
    _add_options(config)
    config.add_argument("--unset", action="append", default=[], metavar="OPTION", help="go back to the default")
    add_json(config)

    delete = add_command(inner, "delete", "delete a topic, its records and the groups on it", DELETE, run_delete)
    delete.add_argument("name", metavar="NAME", help="the name of the topic")
    add_data(delete, bare=False)
    delete.add_argument("--yes", action="store_true", help="do not ask")
    add_json(delete)
    trim.add_to(inner)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--option",
        "--set",
        dest="options",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help=f"one of {', '.join(TopicOptions.__struct_fields__)}",
    )


# -- commands ---------------------------------------------------------------------------------------------------


def run_list(chosen: argparse.Namespace) -> int:
    """Print the topics."""
    pattern = check_pattern(chosen.match)
    with looking(chosen) as seen:
        held = seen.held()
        found = [_facts(topic, held[topic.name]) for topic in seen.topics if matches(pattern, topic.name)]
        now = time.time()
    if chosen.json:
        print_document(found)
        return 0
    if chosen.gone:
        print(_gone(found) if any(one["gone"] for one in found) else "nothing is gone")
        return 0
    print(
        table(
            ("TOPIC", "FIRST", "END", "RECORDS", "SIZE", "LAST RECORD", "OPTIONS"),
            (
                (
                    one["topic"],
                    one["first"],
                    one["end"],
                    one["records"],
                    Size(one["bytes"]),
                    f"{human_age(now - one['last_time'] / 1e6)} ago" if one["last_time"] else None,
                    " ".join(f"{name}={shown(value)}" for name, value in one["options"].items()) or None,
                )
                for one in found
            ),
        )
    )
    return 0


def run_create(chosen: argparse.Namespace) -> int:
    """Make a topic."""
    name = check_name(chosen.name)
    options = checked(parsed(chosen.options))
    with owning(folder_of(chosen), create=True) as journal:
        topic = _find(journal, name)
        made = topic is None
        if topic is None:
            ledger = journal.ledger
            # Above every epoch there ever was, as the broker gives them: milliseconds and a counter.
            epoch = max(ledger.epoch + 1, time.time_ns() // 1_000_000 << 11)
            topic = TopicState(ledger.next_topic, name, epoch, options)
            write(journal, topic_part(topic))
        else:
            for option in sorted({*options, *topic.options}):
                has, asked = topic.options.get(option), options.get(option)
                if _plain(has) != _plain(asked):
                    raise TopicConflict(name, option, has, asked)
    if chosen.json:
        print_document({"topic": name, "epoch": topic.epoch, "options": topic.options, "made": made})
    else:
        print(f"topic {name!r} {'made' if made else 'was there already'}, epoch {topic.epoch}")
    return 0


def run_config(chosen: argparse.Namespace) -> int:
    """Show the options of a topic, or change them."""
    folder = folder_of(chosen)
    if not chosen.options and not chosen.unset:
        with looking(chosen) as seen:
            topic = seen.topic(chosen.name)
        if topic is None:
            raise unknown_topic(chosen.name, folder)
    else:
        given = parsed(chosen.options)
        for name in chosen.unset:
            checked({name: None})
            given[name] = None
        with owning(folder) as journal:
            topic = _find(journal, chosen.name)
            if topic is None:
                raise unknown_topic(chosen.name, folder)
            merged = {name: value for name, value in (topic.options | given).items() if value is not None}
            topic = msgspec.structs.replace(topic, options=checked(merged))
            write(journal, topic_part(topic))
    if chosen.json:
        print_document({"topic": topic.name, "epoch": topic.epoch, "options": topic.options})
    elif topic.options:
        print(pairs((name, shown(value)) for name, value in topic.options.items()))
    else:
        print("every option has its default")
    return 0


def run_delete(chosen: argparse.Namespace) -> int:
    """Delete a topic."""
    folder = folder_of(chosen)
    check_answerable(chosen)
    with owning(folder) as journal:
        topic = _find(journal, chosen.name)
        if topic is None:
            raise unknown_topic(chosen.name, folder)
        if not chosen.yes and not agreed(f"Delete {topic.name!r} with offsets [{topic.first:,}, {topic.end:,})?"):
            print("nothing was done")
            return FOUND
        groups = [group.name for group in journal.ledger.groups.values() if group.pattern == topic.name]
        files = _sizes(folder, journal)
        write(journal, state(Kind.TOPIC_DELETED, topic=topic.id))
        journal.retain(time.time_ns() // 1000)
        left = sum(found.bytes for _, found in journal.history.ranges(topic.id))
    freed = sum(size for file, size in files.items() if not file.exists())
    if chosen.json:
        print_document(
            {
                "topic": topic.name,
                "epoch": topic.epoch,
                "first": topic.first,
                "end": topic.end,
                "groups": groups,
                "freed_bytes": freed,
                "left_bytes": left,
            }
        )
    else:
        with_it = f", and with it the groups {', '.join(groups)}" if groups else ""
        print(f"topic {topic.name!r} deleted{with_it}; {Size(freed)} of disk came back")
        if left:
            print(f"{Size(left)} more lie in segments with records of other topics, and come back with them")
    return 0


# -- options ----------------------------------------------------------------------------------------------------


def parsed(given: list[str]) -> dict[str, Any]:
    """NAME=VALUE, as often as it was said. Values are JSON, or lists of numbers with commas, or text."""
    found: dict[str, Any] = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not equals:
            raise InvalidOption("option", one, "expected NAME=VALUE")
        value = _boolean(name, text) if name in _BOOLEANS else _value(text)
        found[name] = text if name in _TEXTS and not isinstance(value, str | None) else value
    return found


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


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options, when a topic on disk can have them."""
    if options.get("backoff") is not None and not isinstance(options["backoff"], list | tuple):
        options = options | {"backoff": [options["backoff"]]}
    found = TopicOptions.of(options).given()
    if found.get("durable") is False:
        raise InvalidOption("durable", False, "a topic that is not durable lives in a running broker only")
    return found


def shown(value: object) -> str:
    """The value of an option, as it would be said."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _find(journal: Journal, name: str) -> TopicState | None:
    return next((topic for topic in journal.ledger.topics.values() if topic.name == name), None)


def _sizes(folder: Path, journal: Journal) -> dict[Path, int]:
    """The files that may go, and their bytes."""
    names = [name for info in journal.manifest.segments if info.sealed for name in (info.name, info.index_name)]
    files = [folder / name for name in names]
    return {file: file.stat().st_size for file in files if file.exists()}


def _facts(topic: TopicState, held: Held) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "epoch": topic.epoch,
        "first": topic.first,
        "end": topic.end,
        "records": held.records,
        "bytes": held.bytes,
        "last_time": topic.last_time,
        "options": topic.options,
        "schema": topic.schema,
        "gone": [
            {"first": one.first, "end": one.end, "reason": Reason(one.reason).name.lower(), "time": one.time}
            for one in topic.gone
        ],
    }


def _gone(found: list[dict[str, Any]]) -> str:
    return table(
        ("TOPIC", "OFFSETS", "WHY", "LAST"),
        (
            (
                one["topic"],
                f"[{gone['first']:,}, {gone['end']:,})",
                Reason[gone["reason"].upper()].words,
                human_time(gone["time"]) if gone["time"] else None,
            )
            for one in found
            for gone in one["gone"]
        ),
    )
