"""`runnel archive`: copy topics into a table of PostgreSQL; create the table, and show its progress."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.cli.command import Commands, add_family, add_json
from runnel.cli.errors import FINE, FOUND, USAGE, CommandError
from runnel.cli.output import print_document, print_done, print_pairs
from runnel.cli.postgres import add_configured, config_file, needing_psycopg, run_until_stopped, talking, where
from runnel.cli.target import add_target
from runnel.config.units import seconds, size

if TYPE_CHECKING:
    from runnel.postgres.archive_config import ArchiveConfig

EXAMPLE = """\
examples:
  runnel archive run --config runnel.toml --server runnel://127.0.0.1:7788
  runnel archive status --config runnel.toml
  runnel archive init --config runnel.toml           the SQL, for a role that may create tables

The file has a table [archive]:

  [archive]
  dsn = "postgresql://app@db.example.com/app"    # or RUNNEL_ARCHIVE_DSN
  pattern = "orders.>"
  table = "orders"
  partition = "day"                              # hour, day, month or year
  retention = "90d"                              # absent: for ever
"""
INIT = """\
examples:
  runnel archive init --config runnel.toml
  runnel archive init --config runnel.toml --apply

`runnel archive run` creates the tables by itself, if its role may. It also creates partitions and columns.
"""
RUN = """\
examples:
  runnel archive run --config runnel.toml --data data/
  runnel archive run --config runnel.toml --server runnel://127.0.0.1:7788

Runs until SIGTERM or Ctrl-C. Lost connections are made again. A second archive of the same table waits, and takes over
when the first one ends.
"""
STATUS = """\
examples:
  runnel archive status --config runnel.toml
  runnel archive status --config runnel.toml --json

Asks PostgreSQL about the table and the broker about its end; the archive itself need not run. Exit code 1: it does not
run, or records are missing in the table.
"""

UNITS = {"retention": seconds, "batch_seconds": seconds, "batch_bytes": size}


def add_to(commands: Commands) -> None:
    """Make `runnel archive` and its commands known."""
    inner = add_family(
        commands,
        "archive",
        "copy topics into a table of PostgreSQL",
        EXAMPLE,
        "Records become rows, each once: rows and position are committed in one transaction.",
    )
    init = add_configured(inner, "init", "print or run the SQL that creates the tables", INIT, talking(_init))
    init.add_argument("--apply", action="store_true", help="run it")
    add_json(init)
    run = add_configured(inner, "run", "copy until it is stopped", RUN, _run)
    add_target(run, bare=False)
    status = add_configured(inner, "status", "how far the archive is, and its partitions", STATUS, talking(_status))
    add_target(status, bare=False)
    add_json(status)


def archive_config_of(file: Path) -> ArchiveConfig:
    """The table [archive] of a file, if an archive can run here."""
    with needing_psycopg("an archive"):
        from runnel.postgres.archive_config import archive_config
    try:
        given = tomllib.loads(file.read_text(encoding="utf-8")).get("archive")
    except tomllib.TOMLDecodeError as error:
        raise CommandError("usage_error", f"{file} is not TOML: {error}", USAGE) from None
    if not isinstance(given, dict):
        raise CommandError("usage_error", f"{file} has no table [archive]", USAGE)
    for key, convert in UNITS.items():
        if isinstance(given.get(key), str):
            try:
                given[key] = convert(given[key])
            except ValueError as error:
                raise CommandError("usage_error", f"archive.{key} in {file}: {error}", USAGE) from None
    return archive_config(given)


def _config(chosen: argparse.Namespace) -> ArchiveConfig:
    config = archive_config_of(config_file(chosen, "archive"))
    from runnel.postgres.archive_config import archive_dsn

    archive_dsn(config)
    return config


async def _init(chosen: argparse.Namespace) -> int:
    config = _config(chosen)
    from runnel.postgres.archive_config import archive_dsn
    from runnel.postgres.archive_table import setup_sql
    from runnel.postgres.connecting import connect

    statements = setup_sql(config)
    print_done("\n".join(statements), {"statements": statements, "applied": chosen.apply}, as_json=chosen.json)
    if chosen.apply:
        async with await connect(archive_dsn(config), "runnel archive init") as connection:
            for statement in statements:
                await connection.execute(statement)
    return FINE


def _run(chosen: argparse.Namespace) -> int:
    config = _config(chosen)
    from runnel.postgres.archive import Archive

    return run_until_stopped(chosen, "runnel archive", lambda broker: Archive.of(broker, config).run())


async def _status(chosen: argparse.Namespace) -> int:
    config = _config(chosen)
    import runnel
    from runnel.postgres.archive_status import read_archive_status

    async with runnel.open(where(chosen)) as broker:
        found = await read_archive_status(broker, config)
    is_fine = found.state == "running" and not found.gaps
    if chosen.json:
        print_document(found)
        return FINE if is_fine else FOUND
    oldest, newest = (found.partitions[0], found.partitions[-1]) if found.partitions else (None, None)
    facts: list[tuple[str, object]] = [
        ("table", found.table),
        ("pattern", found.pattern),
        ("state", found.state),
        ("rows written", f"{found.rows:,}"),
        ("place", found.place),
        ("lag", None if found.lag is None else f"{found.lag:,} records at most"),
        ("last written", found.updated),
        ("partitions", len(found.partitions)),
        ("oldest, newest", None if oldest is None else f"{oldest}, {newest}"),
    ]
    print_pairs(facts)
    for gap in found.gaps:
        print(f"! {gap}")
    return FINE if is_fine else FOUND
