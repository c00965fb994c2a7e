"""The configuration of an archive: the `[archive]` table of a TOML file, checked before anything connects."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from runnel.core.errors import InvalidOption
from runnel.core.pattern import check_pattern

DSN_VARIABLE = "RUNNEL_ARCHIVE_DSN"
MAX_TABLE_NAME = 48  # bytes: the name of a partition is longer, and PostgreSQL cuts names at 63

_NAME = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_$]*\.)?[A-Za-z_][A-Za-z0-9_$]*")


class ArchiveConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An archive: a topic or a pattern, and the table that its records are copied into.

    - `dsn`: how to reach PostgreSQL: "postgresql://user@host/database". RUNNEL_ARCHIVE_DSN takes precedence.
    - `pattern`: the topic, or the pattern of topics.
    - `table`: the table, with or without its schema: "public.events". It is created.
    - `batch_records`: records of one transaction, at most.
    - `batch_bytes`: bytes of one transaction, about, at most.
    - `batch_seconds`: how long a record waits for others to be written with it.
    - `partition`: the time that one partition covers, in UTC.
    - `retention`: how long rows are kept; whole partitions are dropped. Absent: for ever.
    - `hold`: whether the broker keeps records from its own retention until they are in the table.
    """

    dsn: str | None = None
    pattern: str
    table: str
    batch_records: int = 20_000
    batch_bytes: int = 8 << 20
    batch_seconds: float = 0.5
    partition: Literal["hour", "day", "month", "year"] = "day"
    retention: float | None = None
    hold: bool = True

    @property
    def schema(self) -> str:
        """The table's schema."""
        return self.table.rpartition(".")[0] or "public"

    @property
    def relation(self) -> str:
        """The table's name without its schema."""
        return self.table.rpartition(".")[2]

    @property
    def name(self) -> str:
        """`schema.table`. It identifies the archive in its database."""
        return f"{self.schema}.{self.relation}"


def archive_config(given: ArchiveConfig | Mapping[str, Any]) -> ArchiveConfig:
    """The configuration, checked. Durations are seconds and sizes are bytes; the command reads units."""
    if isinstance(given, ArchiveConfig):
        config = given
    else:
        try:
            config = msgspec.convert(dict(given), ArchiveConfig)
        except msgspec.ValidationError as error:
            path = str(error).partition(" - at `$")[2].rstrip("`").lstrip(".")
            raise InvalidOption(f"archive.{path}" if path else "archive", "what was given", str(error)) from None
    check_pattern(config.pattern)
    check_table_name(config.table)
    for option in ("batch_records", "batch_bytes"):
        if getattr(config, option) <= 0:
            raise InvalidOption(option, getattr(config, option), "expected more than 0")
    if config.batch_seconds < 0:
        raise InvalidOption("batch_seconds", config.batch_seconds, "expected 0 or more")
    if config.retention is not None and config.retention <= 0:
        raise InvalidOption("retention", config.retention, "expected more than 0; or leave it out")
    return config


def check_table_name(table: str) -> str:
    """`table`, if it is a plain name of a table, with or without its schema."""
    if not _NAME.fullmatch(table):
        raise InvalidOption("table", table, 'expected a name such as "events" or "app.events"')
    if len(table.rpartition(".")[2]) > MAX_TABLE_NAME:
        raise InvalidOption("table", table, f"the names of its partitions are longer: use at most {MAX_TABLE_NAME}")
    return table


def archive_dsn(config: ArchiveConfig, given: str | None = None) -> str:
    """How to reach PostgreSQL: as given, as the environment says, or as the configuration does."""
    found = given or os.environ.get(DSN_VARIABLE) or config.dsn
    if not found:
        raise InvalidOption(
            "dsn", None, f"name the database, such as postgresql://user@host/database, or set {DSN_VARIABLE}"
        )
    return found
