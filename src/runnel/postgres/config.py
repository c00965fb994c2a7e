"""The configuration of a relay: the `[relay]` table of a TOML file, checked before anything connects.

Every mistake is reported with the name of the key and its valid values.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from runnel.core.errors import InvalidOption
from runnel.core.pattern import check_name
from runnel.core.payload import HEADER_NAME
from runnel.core.publishing import MAX_RECORD_BYTES

Operation = Literal["insert", "update", "delete", "truncate"]

OPERATIONS: tuple[Operation, ...] = ("insert", "update", "delete", "truncate")
MAX_VALUE = 1 << 20  # bytes of a value, unless the configuration names another bound

_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_HOLE = re.compile(r"\{([^{}]*)\}")


class TableConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table, and how its rows become records: `[[relay.table]]`.

    - `table`: its name, with or without its schema: "public.chat_messages". The root, if it is partitioned.
    - `topic`: a template over its columns: "chat.{channel_id}". A column fills exactly one token.
    - `key`: the column that gives the record its key.
    - `value`: "row" is JSON of the row, as `row_to_json` gives it; "column:frame" is that one column, raw.
    - `headers`: columns that become headers: `{author = "user_id"}`.
    - `publish`: which operations become records: insert, update, delete, truncate.
    - `compact`: the topics keep the newest record of each key, and DELETE publishes a tombstone.
    - `where`: the publication's row filter: "deleted_at IS NULL".
    - `columns`: the publication's column list; empty: all columns.
    - `max_value`: bytes of a value beyond which `pointer` is published instead, or an error event.
    - `pointer`: the column that is published where the value is too large, such as the address of the object.
    - `snapshot`: whether rows that are there before the relay starts are published, too, with `pg-op: read`.
    - `keep`: seconds after which a row is removed from the table; absent: the relay removes nothing.
    - `keep_column`: the column with the time of a row, for `keep`; not needed where whole partitions are dropped.
    - `publish_expired`: whether rows that `keep` removes are published, if `publish` includes delete.
    """

    table: str
    topic: str
    key: str | None = None
    value: str = "row"
    headers: dict[str, str] = {}
    publish: tuple[Operation, ...] = ("insert",)
    compact: bool = False
    where: str | None = None
    columns: tuple[str, ...] = ()
    max_value: int = MAX_VALUE
    pointer: str | None = None
    snapshot: bool = False
    keep: float | None = None
    keep_column: str | None = None
    publish_expired: bool = False

    @property
    def schema(self) -> str:
        """The table's schema."""
        return self.table.rpartition(".")[0] or "public"

    @property
    def name(self) -> str:
        """`schema.table`."""
        return f"{self.schema}.{self.table.rpartition('.')[2]}"

    @property
    def value_column(self) -> str | None:
        """The column that is the value; None: the whole row."""
        return self.value.removeprefix("column:") if self.value.startswith("column:") else None

    @property
    def template_columns(self) -> tuple[str, ...]:
        """The columns that the topic is made of."""
        return tuple(_HOLE.findall(self.topic))

    @property
    def template_pieces(self) -> tuple[str, ...]:
        """The text before, between and after the columns of the topic: one piece more than there are columns."""
        return tuple(_HOLE.split(self.topic)[::2])

    @property
    def routing_columns(self) -> tuple[str, ...]:
        """The columns that decide topic and key. They must be in the replica identity for UPDATE and DELETE."""
        return tuple(dict.fromkeys([*self.template_columns, *([self.key] if self.key is not None else [])]))

    @property
    def used_columns(self) -> tuple[str, ...]:
        """All columns that the configuration names, and that must be published."""
        others = (*self.headers.values(), self.value_column, self.pointer)
        return tuple(dict.fromkeys([*self.routing_columns, *(one for one in others if one is not None)]))


class MessageConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages of `pg_logical_emit_message(true, prefix, content)`: `[[relay.message]]`.

    - `prefix`: the prefix they are written with.
    - `topic`: the topic that gets their content.
    """

    prefix: str
    topic: str


class ChannelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A LISTEN/NOTIFY channel: `[[relay.channel]]`. A payload has at most 7,999 bytes, and none is replayed.

    - `channel`: its name.
    - `topic`: the topic that gets the payloads.
    """

    channel: str
    topic: str


class RelayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A relay: one replication slot, and the tables, messages and channels that it publishes.

    - `dsn`: how to reach PostgreSQL: "postgresql://user@host/database". RUNNEL_RELAY_DSN takes precedence.
    - `slot`: the logical replication slot. It belongs to this relay.
    - `name`: relays with the same name publish each row once, each from a slot of its own; absent: the slot's name.
    - `publication`: the publication with the tables; `runnel relay init` creates it.
    - `table`, `message`, `channel`: what is published, and to which topics.
    - `events`: the topic of the relay's own events: gaps, TRUNCATE, schema changes; absent: relay.NAME.
    - `dead_letter`: the topic of rows that cannot be routed, with the reason; absent: relay.NAME.dead.
    - `batch_records`, `batch_bytes`: how much is published in one transaction of the broker, if that much waits.
    - `large_transactions`: of more than 100,000 rows or 16 MiB: "whole" shows them at once, "parts" part by part; both
      in the order of their changes.
    - `status_interval`: seconds between reports to PostgreSQL of what is stored.
    - `warn_retained`: bytes of write-ahead log that the slot may hold back before the relay warns.
    - `max_retained`: bytes of log beyond which the relay drops its position, with a gap event; absent: never.
    - `on_lost_slot`: "stop" with an error that says what to do, or "snapshot": create it anew and read the tables.
    - `holder_timeout`: seconds without a sign of life after which a relay that holds the slot is terminated.
    - `snapshot_rows`: rows that a snapshot reads at once.
    """

    dsn: str | None = None
    slot: str = "runnel"
    name: str | None = None
    publication: str = "runnel"
    table: tuple[TableConfig, ...] = ()
    message: tuple[MessageConfig, ...] = ()
    channel: tuple[ChannelConfig, ...] = ()
    events: str | None = None
    dead_letter: str | None = None
    batch_records: int = 10_000
    batch_bytes: int = 4 << 20
    large_transactions: Literal["whole", "parts"] = "whole"
    status_interval: float = 1.0
    warn_retained: int = 1 << 30
    max_retained: int | None = None
    on_lost_slot: Literal["stop", "snapshot"] = "stop"
    holder_timeout: float = 30.0
    snapshot_rows: int = 5_000

    @property
    def relay_name(self) -> str:
        """The name that its markers, its lock and its topics have."""
        return self.name or self.slot

    @property
    def events_topic(self) -> str:
        """The topic of the relay's own events."""
        return self.events or f"relay.{self.relay_name}"

    @property
    def dead_letter_topic(self) -> str:
        """The topic of rows that cannot be published as configured."""
        return self.dead_letter or f"relay.{self.relay_name}.dead"

    def table_named(self, name: str) -> TableConfig:
        """The configuration of a table, by its name with or without the schema."""
        wanted = name if "." in name else f"public.{name}"
        for table in self.table:
            if table.name == wanted:
                return table
        raise InvalidOption("table", name, f"expected one of {', '.join(one.name for one in self.table) or 'none'}")


def relay_config(given: RelayConfig | Mapping[str, Any]) -> RelayConfig:
    """The configuration, checked. `given` is what TOML says under `[relay]`, or a `RelayConfig`."""
    config = given if isinstance(given, RelayConfig) else _converted(given)
    if not _SLOT.fullmatch(config.slot):
        raise InvalidOption("slot", config.slot, "a slot's name has 1 to 63 of a-z, 0-9 and _")
    if not _SLOT.fullmatch(config.relay_name):
        raise InvalidOption("name", config.name, "a relay's name has 1 to 63 of a-z, 0-9 and _")
    if not (config.table or config.message or config.channel):
        why = "name at least one [[relay.table]], [[relay.message]] or [[relay.channel]]"
        raise InvalidOption("relay", "no source", why)
    check_name(config.events_topic)
    check_name(config.dead_letter_topic)
    for option in (
        "batch_records",
        "batch_bytes",
        "status_interval",
        "warn_retained",
        "max_retained",
        "holder_timeout",
        "snapshot_rows",
    ):
        if (number := getattr(config, option)) is not None and number <= 0:
            raise InvalidOption(option, number, "expected more than 0")
    _check_unique("table", [table.name for table in config.table])
    _check_unique("prefix", [message.prefix for message in config.message])
    _check_unique("channel", [channel.channel for channel in config.channel])
    for table in config.table:
        _check_table(table)
    for message in config.message:
        if message.prefix == "runnel" or message.prefix.startswith("runnel."):
            raise InvalidOption(
                "prefix", message.prefix, "prefixes that begin with runnel are for emit() and snapshots"
            )
        check_name(message.topic)
    for channel in config.channel:
        check_name(channel.topic)
    return config


def read_config(file: Path) -> RelayConfig:
    """The `[relay]` table of a TOML file, checked."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidOption("config", str(file), f"it is not TOML: {error}") from None
    if not isinstance(found := document.get("relay"), dict):
        raise InvalidOption("config", str(file), "it has no table [relay]")
    return relay_config(found)


def _converted(given: Mapping[str, Any]) -> RelayConfig:
    try:
        return msgspec.convert(dict(given), RelayConfig)
    except msgspec.ValidationError as error:
        path = str(error).partition(" - at `$")[2].rstrip("`").lstrip(".")
        raise InvalidOption(f"relay.{path}" if path else "relay", "what was given", str(error)) from None


def _check_unique(option: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidOption(option, name, "it is configured twice")


def _check_table(table: TableConfig) -> None:
    def wrong(option: str, value: object, why: str) -> InvalidOption:
        return InvalidOption(f"{option} of {table.name}", value, why)

    if table.topic.count("{") != table.topic.count("}") or "" in table.template_columns:
        raise wrong("topic", table.topic, 'expected a template such as "chat.{channel_id}"')
    for token in table.topic.split("."):
        if ("{" in token or "}" in token) and not _HOLE.fullmatch(token):
            raise wrong("topic", table.topic, "a column fills a whole token; put a dot between it and the rest")
    check_name(_HOLE.sub("x", table.topic))
    if table.value != "row" and not table.value_column:
        raise wrong("value", table.value, 'expected "row", or "column:" and the name of a column')
    if not table.publish:
        raise wrong("publish", table.publish, "name at least one operation, such as insert")
    if not 0 < table.max_value <= MAX_RECORD_BYTES:
        raise wrong("max_value", table.max_value, f"expected 1 to {MAX_RECORD_BYTES}, the most that a record may have")
    for name in table.headers:
        if not HEADER_NAME.fullmatch(name) or name.lower().startswith("pg-") or name.lower() == "traceparent":
            raise wrong("headers", name, "expected letters, digits and -_. (names that begin with pg- are the relay's)")
    if table.compact and table.key is None:
        raise wrong(
            "compact", table.compact, "a compacted topic keeps the newest record of each key; name a key column"
        )
    if table.keep is not None and table.keep <= 0:
        raise wrong("keep", table.keep, "expected seconds, more than 0; or leave it out")
    if table.publish_expired and "delete" not in table.publish:
        raise wrong("publish_expired", table.publish_expired, "add delete to publish")
