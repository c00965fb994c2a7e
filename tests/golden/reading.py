"""What the present code reads from a data folder, as JSON: the same for recording and for comparing.

It is facts alone: records, states, numbers. Tables, log lines and messages are for people, and may be worded anew.

First the commands look at the folder, then a broker opens it, reads everything, and last of all changes it: members of
groups settle what is left, ids and numbers are sent again, stages are committed. The folder is a copy each time.

Nothing here waits for time to pass. The clock stands at `Asked.opened_at`, and the cleaner is allowed one byte a
second, so that it changes nothing while the folder is read.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

import runnel
from runnel.testing import JumpingClock
from tests.golden import command

HOURS = 7200.0  # more than any delay or backoff in the folders
LONG = 64  # a longer value is told by its length and its digest
PATIENCE = 60.0
OPTIONS: dict[str, Any] = {"segment_bytes": 4096, "share": False, "min_free": 0, "clean_bytes_per_second": 1}

LOOKS: tuple[tuple[str, ...], ...] = (
    ("log", "verify", "--json"),
    ("log", "verify"),
    ("log", "info", "--json"),
    ("log", "info"),
    ("topic", "list", "--gone", "--json"),
    ("group", "list", "--json"),
    ("group", "list"),
    ("cursor", "list", "--json"),
    ("log", "marks", "--json"),
    ("log", "staged", "--json"),
    ("log", "export"),
)
# Of statistics: what depends on the disk, on the processor or on when the cleaner last looked.
UNSTEADY = {"syncs", "sync_durations", "free_bytes", "low", "full", "holders", "cleaner", "archives", "disk_bytes"}


class Asked(msgspec.Struct, frozen=True):
    """What to ask of a folder beyond its topics: names that only its writer knows.

    `opened_at`: the time at which a broker opens it. None: only the commands look at it, for no broker wrote it.
    """

    opened_at: float | None
    producers: list[str] = []
    message_ids: list[tuple[str, str]] = []
    names: list[tuple[str, str]] = []
    groups: list[tuple[str, str]] = []
    commits: list[tuple[str, int, int, int]] = []


def read_folder(folder: Path, asked: Asked) -> dict[str, Any]:
    """What is read from `folder`, which is changed by it."""
    facts: dict[str, Any] = {"asked": msgspec.to_builtins(asked), "commands": {}}
    for words in LOOKS:
        _look(folder, words, facts["commands"])
    if asked.opened_at is not None:
        heard = _Heard(folder)
        last = _last_offsets(folder)
        facts["broker"] = asyncio.run(_opened(folder, JumpingClock(asked.opened_at), asked, last, heard))
        facts["log_numbers"] = [[int(number) for number in re.findall(r"\d+", line)] for line in heard.lines]
    again = command.run("log", "verify", "--json", "--data", folder.name, cwd=folder.parent)
    facts["whole_afterwards"] = json.loads(again.out)["whole"] if again.out else again.code
    # As JSON gives it back, so that it compares equal with what was stored.
    found: dict[str, Any] = json.loads(json.dumps(facts))
    return found


# -- commands -----------------------------------------------------------------------------------------------------


def _look(folder: Path, words: tuple[str, ...], facts: dict[str, Any]) -> None:
    outcome = command.run(*words, "--data", folder.name, cwd=folder.parent)
    name = " ".join(words)
    fact: dict[str, Any] = {"code": outcome.code}
    if words[-1] == "--json" and outcome.out:
        fact["out"] = json.loads(outcome.out)
    elif words == ("log", "export"):  # the records are told by the broker: this says that they are the same
        fact |= {"lines": outcome.out.count("\n"), "blake2b": _digest(outcome.out.encode())}
    if words[1] == "staged":
        for one in fact.get("out", {"stages": []})["stages"]:
            one["age"] = "masked: the command reads the clock of the machine"
    facts[name] = fact


def _last_offsets(folder: Path) -> dict[str, int]:
    """The last record of each topic. Its end does not say: after a crash, offsets are skipped."""
    exported = command.run("log", "export", "--data", folder.name, cwd=folder.parent)
    lines = [json.loads(line) for line in exported.out.splitlines()]
    return {line["topic"]: line["offset"] for line in lines if "topic" in line}


# -- a broker -----------------------------------------------------------------------------------------------------


class _Heard(logging.Handler):
    """What is logged, without the path of the folder; of slow disks nothing is told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(logging.INFO)
        self._folder, self.lines = str(folder), list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage().replace(self._folder, "FOLDER")
        if not any(words in line for words in ("a sync took", "opening FOLDER took")):
            self.lines.append(f"{record.levelname}: {line}")


async def _opened(
    folder: Path, clock: JumpingClock, asked: Asked, last: dict[str, int], heard: _Heard
) -> dict[str, Any]:
    logger = logging.getLogger("runnel")
    logger.addHandler(heard)
    found: dict[str, Any] = {}
    try:
        async with asyncio.timeout(PATIENCE), runnel.open(folder, clock=clock, **OPTIONS) as broker:
            found["topics"] = await _topics(broker, last)
            found["statistics"] = _statistics(broker)
            found["in_sequence"] = await _in_sequence(broker, last)
            found["marks"] = {name: plain(value) for name, value in (await broker.marks()).items()}
            found["stages"] = [plain(one) for one in await broker.stages()]
            found["producers"] = {name: broker.producer(name).next for name in asked.producers}
            found["names"] = await _names(broker, asked)
            found["groups"] = await _groups(broker, clock, asked)
            found["changes"] = await _changes(broker, asked)
    except runnel.RunnelError as error:
        found["error"] = error.code
    finally:
        logger.removeHandler(heard)
    return found


async def _topics(broker: runnel.Broker, last: dict[str, int]) -> dict[str, Any]:
    """Every topic: its bounds, and its records."""
    found = {}
    for bounds in await broker.bounds():
        records: list[dict[str, Any]] = []
        if bounds.topic in last:
            async with broker.subscribe(bounds.topic, start="earliest") as subscription:
                while not records or records[-1]["offset"] < last[bounds.topic]:
                    records.append(of_record(await anext(subscription)))
        found[bounds.topic] = plain(bounds) | {"records": records}
    return found


async def _in_sequence(broker: runnel.Broker, last: dict[str, int]) -> list[list[Any]]:
    """What a reader of all topics gets, in order: sequence, topic and offset of each record, and gaps."""
    found: list[list[Any]] = []
    left = dict(last)
    async with broker.subscribe(">", start="earliest") as records:
        while left:
            record = await anext(records)
            found.append([record.sequence, record.topic, record.offset, *([plain(record.gap)] if record.gap else [])])
            if left.get(record.topic) == record.offset:
                del left[record.topic]
    return found


async def _names(broker: runnel.Broker, asked: Asked) -> dict[str, Any]:
    """The first record that a named subscription gets when it goes on."""
    found = {}
    for name, pattern in asked.names:
        async with broker.subscribe(pattern, name=name) as records:
            found[name] = of_record(await anext(records))
    return found


async def _groups(broker: runnel.Broker, clock: JumpingClock, asked: Asked) -> dict[str, Any]:
    """What is left for each group once all delays are over: it is taken, and acked, one by one."""
    found: dict[str, Any] = {}
    await clock.advance(HOURS)
    for name, pattern in asked.groups:
        left = next(one.lag for one in broker.statistics().groups if (one.name, one.pattern) == (name, pattern))
        taken = []
        async with broker.subscribe(pattern, group=name) as deliveries:
            for _ in range(left):
                delivery = await anext(deliveries)
                taken.append(of_record(delivery.record) | {"attempt": delivery.attempt})
                await delivery.ack()
        after = next(one for one in broker.statistics().groups if (one.name, one.pattern) == (name, pattern))
        # In which order the records of different keys come depends on how quickly they are read from disk.
        taken.sort(key=lambda one: one["sequence"])
        found[name] = {"left": left, "taken": taken, "after": plain(after)}
    return found


async def _changes(broker: runnel.Broker, asked: Asked) -> dict[str, Any]:
    """What the folder answers to what was stored before, and to something new."""
    found: dict[str, Any] = {"message_ids": {}, "producers": {}, "commits": {}}
    for topic, message_id in asked.message_ids:
        position = await broker.publish(topic, "sent again", message_id=message_id)
        found["message_ids"][f"{topic} {message_id}"] = position.offset
    for name in asked.producers:
        if (following := broker.producer(name).next) > 0:
            position = await broker.producer(name).publish("lines", "sent again", sequence=following - 1)
            found["producers"][name] = [following - 1, position.offset]
    for key in asked.commits:
        async with broker.transaction() as tx:
            (publication,) = tx.commit(key)
        found["commits"][" ".join(map(str, key))] = [publication.span.first.offset, publication.span.last.offset]
    found["new"] = (await broker.publish("new.topic", "new")).offset
    return found


def _statistics(broker: runnel.Broker) -> dict[str, Any]:
    statistics = broker.statistics()
    journal = plain(statistics.journal) if statistics.journal else None
    return {
        "topics": {name: _known(plain(one)) for name, one in statistics.topics.items()},
        "groups": [plain(one) for one in statistics.groups],
        "cursors": [plain(one) for one in statistics.cursors],
        "published": statistics.published,
        "published_bytes": statistics.published_bytes,
        "journal": {name: value for name, value in (journal or {}).items() if name not in UNSTEADY},
    }


def _known(topic: dict[str, Any]) -> dict[str, Any]:
    """Without what only topics of later versions have."""
    assert topic.pop("archive", None) is None
    topic.pop("records", None)
    return topic


# -- as JSON ------------------------------------------------------------------------------------------------------


def of_record(record: runnel.Record[bytes]) -> dict[str, Any]:
    """A record, its place and all that it carries."""
    found = {"offset": record.offset, "sequence": record.sequence, "time": record.time.isoformat()}
    found |= {"value": plain(record.value)}
    if record.key is not None:
        found["key"] = plain(record.key)
    if record.headers:
        found["headers"] = dict(record.headers)
    if record.gap is not None:
        found["gap"] = plain(record.gap)
    return found


def plain(value: Any) -> Any:
    """A value as JSON has it. Bytes are text, or base64 where they are none, or a digest where they are many."""
    if isinstance(value, bytes):
        if len(value) > LONG:
            return {"bytes": len(value), "blake2b": _digest(value)}
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return {name: plain(one) for name, one in fields.items() if one is not msgspec.UNSET}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
