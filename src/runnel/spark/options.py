"""Options of the format `runnel`, checked on the driver when the query is made.

Spark passes options as text and changes the case of their names, so names are matched without regard to case; an
unknown one is refused with the nearest that exists. `repr` shows no secrets, since plans and logs print it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import unquote

import msgspec

from runnel.arrow.location import BrokerLocation as BrokerLocation  # options are parsed into one
from runnel.core.errors import InvalidOption, NotSupported
from runnel.core.pattern import check_pattern, is_pattern

SECRET = ("token", "tlskey", "lakestorage")
"""Options hidden in plans, logs and errors, in lower case."""

SPARKS_OWN = ("checkpointlocation", "queryname", "outputmode", "trigger")
"""Options that Spark hands on to sources and sinks, and that are its own."""

_TIMES = 'a time for all topics, "2026-01-02T03:04:05Z", or by topic: {"orders": "2026-01-02T03:04:05Z"}'
_KAFKAS = {
    "subscribe": "topic: names and patterns, with commas between them",
    "subscribepattern": "topic, with the pattern 'orders.*' for one more token, 'orders.>' for all that follows",
    "assign": "topic: a topic has no partitions to choose from",
    "kafka.bootstrap.servers": "url: 'runnel://host:7788' (and tlsCa, tlsCert, tlsKey with 'runnels://')",
    "kafka.group.id": "cursor: the broker shows the query under that name",
    "groupidprefix": "cursor: the broker shows the query under that name",
    "startingtimestamp": f"startingOffsets: {_TIMES}",
    "startingoffsetsbytimestamp": f"startingOffsets: {_TIMES}",
    "endingtimestamp": f"endingOffsets: {_TIMES}",
    "endingoffsetsbytimestamp": f"endingOffsets: {_TIMES}",
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "minoffsetspertrigger": "a longer trigger: trigger(processingTime='1 minute')",
    "maxtriggerdelay": "a longer trigger: trigger(processingTime='1 minute')",
    "includeheaders": "the column headers, which is always there; with headersFormat=array it is Kafka's",
    "kafkaconsumer.polltimeoutms": "timeout, in seconds",
    "fetchoffset.numretries": "wait: seconds to go on trying",
    "fetchoffset.retryintervalms": "wait: seconds to go on trying",
}
"""Options of Spark's own source for Kafka, in lower case, and their names here."""

_TLS = {"tlsCa": "ca", "tlsCert": "cert", "tlsKey": "key", "tlsServerName": "server_hostname", "tlsVerify": "verify"}
_CLIENT = _TLS | {"ca": "ca", "cert": "cert", "token": "token", "tokenFile": "token_file"}
"""Options about a server, and what the client calls them."""


def _whole(name: str, text: str, least: int = 1) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise InvalidOption(name, text, f"expected a whole number, {least} or more")
    return value


def _size(name: str, text: str) -> int:
    """Bytes: a number, or one with k, m or g behind it, as Spark writes them."""
    short = text.strip().lower().removesuffix("b")
    factor = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(short[-1:], 1)
    number = short[:-1] if factor > 1 else short
    if not (number.isascii() and number.isdigit()) or int(number) == 0:
        raise InvalidOption(name, text, "expected a number of bytes above 0, such as 67108864 or 64m")
    return int(number) * factor


def _yes_or_no(name: str, text: str) -> bool:
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise InvalidOption(name, text, "expected true or false")
    return value


def _text(name: str, text: str) -> str:
    if not text.strip():
        raise InvalidOption(name, text, "expected text")
    return text


def _topics(name: str, text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(one.strip() for one in text.split(",") if one.strip()))
    if not found:
        raise InvalidOption(name, text, "name a topic or a pattern, or several with commas between them")
    for one in found:
        check_pattern(one)
    return found


def _one_of(*choices: str) -> Callable[[str, str], str]:
    def check(name: str, text: str) -> str:
        for choice in choices:
            if text.strip().lower() == choice.lower():
                return choice
        raise InvalidOption(name, text, f"expected {' or '.join(choices)}")

    return check


def _folder(name: str, text: str) -> str:
    """A folder. Spark writes those of tables as addresses."""
    text = _text(name, text)
    if not text.startswith("file:"):
        return text
    return unquote(text.removeprefix("file:").replace("///", "/", 1))


def options_of_new_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """The `OPTIONS (…)` and `LOCATION` of a `CREATE TABLE`; None: no table is being created.

    Spark mixes them with the table's properties, and marks options by names that begin with `option.`.
    """
    said = {name.lower(): text for name, text in given.items()}
    if "provider" not in said:
        return None
    found = {name.removeprefix("option."): text for name, text in said.items() if name.startswith("option.")}
    if folder := said.get("path") or said.get("location"):
        found["path"] = folder
    return found


_LOCATION: dict[str, Callable[[str, str], Any]] = {
    "url": _text,
    "path": _folder,
    "timeout": lambda name, text: _seconds(name, text),
    "wait": lambda name, text: _seconds(name, text),
    "tlsCa": _text,
    "tlsCert": _text,
    "tlsKey": _text,
    "tlsServerName": _text,
    "tlsVerify": _yes_or_no,
    "ca": _text,
    "cert": _text,
    "token": _text,
    "tokenFile": _text,
}

_SOURCE: dict[str, Callable[[str, str], Any]] = {
    **_LOCATION,
    "lake": _folder,
    "lakeStorage": lambda name, text: _storage_options(name, text),
    "topic": _topics,
    "startingOffsets": _text,
    "endingOffsets": _text,
    "maxRecordsPerTrigger": _whole,
    "maxBytesPerTrigger": _size,
    "minPartitions": _whole,
    "maxRecordsPerPartition": _whole,
    "failOnDataLoss": _yes_or_no,
    "cursor": _text,
    "holdRetention": _yes_or_no,
    "headersFormat": _one_of("map", "array"),
    "valueFormat": _one_of("bytes", "typed"),
    "mode": _one_of("PERMISSIVE", "FAILFAST"),
    "columnNameOfCorruptRecord": _text,
    "decimalType": _text,
}

_SINK: dict[str, Callable[[str, str], Any]] = {
    **_LOCATION,
    "topic": _text,
    "mark": _text,
    "markValue": lambda name, text: _whole(name, text, 0),
}


def _storage_options(name: str, text: str) -> dict[str, str]:
    """Storage options as JSON: Spark changes the case of option names, but not of values."""
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, str])
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise InvalidOption(name, "(not shown)", 'expected JSON, such as {"AWS_REGION": "eu-west-1"}') from None


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise InvalidOption(name, text, "expected a number of seconds above 0")
    return value


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a reader.

    - `topics`: names and patterns. `starting`, `ending`: as they were written; see `offsets`.
    - `max_records`, `max_bytes`: how much one trigger takes. Bytes are reckoned from the topic's average.
    - `min_partitions`: into how many tasks a read is split at least, if there are as many records.
    - `partition_records`: how many records one task reads at most.
    - `fail_on_data_loss`: whether records that are gone before they were read end the query.
    - `cursor`, `hold`: the name under which a streaming query shows on the broker, and whether it holds retention.
    - `header_list`: whether headers are an array of names and bytes, and not a map.
    - `typed`, `mode`, `corrupt`, `decimal`: how values of typed topics become columns.
    """

    location: BrokerLocation
    topics: tuple[str, ...]
    starting: str | None = None
    ending: str | None = None
    max_records: int | None = None
    max_bytes: int | None = None
    min_partitions: int = 1
    partition_records: int | None = None
    fail_on_data_loss: bool = True
    cursor: str | None = None
    hold: bool = False
    header_list: bool = False
    typed: bool = False
    mode: str = "PERMISSIVE"
    corrupt: str | None = None
    decimal: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """The options of a read, or `InvalidOption`."""
        said = _read(given, _SOURCE, "source")
        location, topics = _location(said), said.get("topic")
        if topics is None:
            raise InvalidOption("topic", None, "name the topic to read, or a pattern; several with commas between them")
        if said.get("holdRetention") and "cursor" not in said:
            raise InvalidOption("holdRetention", "true", "what holds retention has a name: give the option cursor, too")
        _check_typed(said)
        return cls(
            location=location,
            topics=topics,
            starting=said.get("startingOffsets"),
            ending=said.get("endingOffsets"),
            max_records=said.get("maxRecordsPerTrigger"),
            max_bytes=said.get("maxBytesPerTrigger"),
            min_partitions=said.get("minPartitions", 1),
            partition_records=said.get("maxRecordsPerPartition"),
            fail_on_data_loss=said.get("failOnDataLoss", True),
            cursor=said.get("cursor"),
            hold=said.get("holdRetention", False),
            header_list=said.get("headersFormat") == "array",
            typed=said.get("valueFormat") == "typed",
            mode=said.get("mode", "PERMISSIVE"),
            corrupt=said.get("columnNameOfCorruptRecord"),
            decimal=said.get("decimalType"),
        )


def _check_typed(said: Mapping[str, Any]) -> None:
    """Raise for what only typed values have, where they are not."""
    if said.get("valueFormat") != "typed":
        for name in ("mode", "columnNameOfCorruptRecord", "decimalType"):
            if name in said:
                raise InvalidOption(name, said[name], "it is about typed values: give valueFormat='typed', too")
    elif said.get("mode") == "FAILFAST" and "columnNameOfCorruptRecord" in said:
        bad = said["columnNameOfCorruptRecord"]
        raise InvalidOption(
            "columnNameOfCorruptRecord", bad, "with FAILFAST such a record is an error, and has no column"
        )


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a writer.

    - `topic`: where all rows go; None: where their column `topic` says.
    - `mark`, `mark_value`: of a batch write, what makes it safe to repeat; see `Transaction.mark`.
    - `table`: whether rows have all columns of a table, also those that the broker fills in.
    """

    location: BrokerLocation
    topic: str | None = None
    mark: str | None = None
    mark_value: int | None = None
    table: bool = False

    @classmethod
    def of_table(cls, given: Mapping[str, str]) -> SinkOptions:
        """The options of a write to a table that was created with `given`: those about reading say nothing here."""
        source = _read(given, _SOURCE | _SINK, "table")
        if source.get("valueFormat") == "typed":
            why = "its values are columns; write the values to the topic itself: format('runnel')"
            raise NotSupported("inserting into a table with valueFormat='typed'", why)
        known = {name.lower() for name in _SINK}
        said = {name: text for name, text in given.items() if name.lower() in known}
        if len(topics := _topics("topic", given["topic"])) > 1 or is_pattern(topics[0]):
            del said["topic"]  # each row says which one it goes to
        return msgspec.structs.replace(cls.parse(said), table=True)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """The options of a write, or `InvalidOption`."""
        said = _read(given, _SINK, "sink")
        if ("mark" in said) != ("markValue" in said):
            there, missing = ("mark", "markValue") if "mark" in said else ("markValue", "mark")
            raise InvalidOption(there, said[there], f"give {missing}, too: one is the name, the other its value")
        return cls(
            location=_location(said), topic=said.get("topic"), mark=said.get("mark"), mark_value=said.get("markValue")
        )


def _read(given: Mapping[str, str], known: Mapping[str, Callable[[str, str], Any]], what: str) -> dict[str, Any]:
    """A given option, by its proper name, converted to its type."""
    proper = {name.lower(): name for name in known}
    said: dict[str, Any] = {}
    for written, text in given.items():
        name = proper.get(written.lower())
        if name is not None:
            said[name] = known[name](name, text)
        elif written.lower() not in SPARKS_OWN:
            shown = "(not shown)" if written.lower() in SECRET else text
            close = get_close_matches(written.lower(), proper, 1)
            if (ours := _KAFKAS.get(written.lower())) or written.lower().startswith("kafka."):
                meant = f"it is one of Kafka's; here it is {ours or _KAFKAS['kafka.bootstrap.servers']}"
            else:
                meant = f"did you mean {proper[close[0]]!r}?" if close else f"there are {', '.join(sorted(known))}"
            raise InvalidOption(written, shown, f"the {what} has no such option; {meant}")
    return said


def broker_location(given: Mapping[str, str]) -> BrokerLocation:
    """Where the topics are, by the options that say only that."""
    return _location(_read(given, _LOCATION, "broker"))


def _location(said: Mapping[str, Any]) -> BrokerLocation:
    if ("url" in said) == ("path" in said):
        wrong = "give one of them, not both" if "url" in said else "give one of them"
        why = f"{wrong}: url='runnel://host:7788' for a server, path='data/' for a folder"
        if not said:
            why += "; a table has to be created without columns (CREATE TABLE t USING runnel OPTIONS (…)): of one with"
            why += " columns Spark hands no options on, but those of the query: SELECT … FROM t WITH (path = …)"
        raise InvalidOption("url", said.get("url"), why)
    for short, long in (("ca", "tlsCa"), ("cert", "tlsCert")):
        if short in said and long in said:
            raise InvalidOption(short, said[short], f"it is the same as {long}: give one of them")
    client = {short: said[name] for name, short in _CLIENT.items() if name in said}
    client |= {name: said[name] for name in ("timeout", "wait") if name in said}
    if client and "path" in said:
        first = next(name for name in (*_CLIENT, "timeout", "wait") if name in said)
        raise InvalidOption(first, "(not shown)", "it is about a server, and the option path names a folder")
    if "lakeStorage" in said and "lake" not in said:
        raise InvalidOption("lakeStorage", "(not shown)", "it is about a lake: give the option lake, too")
    return BrokerLocation(said.get("url"), said.get("path"), client, said.get("lake"), said.get("lakeStorage", {}))
