"""`runnel relay`: publish the changes of PostgreSQL tables; set it up, look at it, try it without publishing."""

from __future__ import annotations

import argparse
import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.cli.command import Commands, add_family, add_json, check_count
from runnel.cli.errors import FINE, FOUND, USAGE, CommandError
from runnel.cli.output import StatusLine, human_size, print_document, print_done, print_line, print_pairs, readable
from runnel.cli.postgres import add_configured, config_file, needing_psycopg, run_until_stopped, talking, where
from runnel.cli.target import add_target
from runnel.core.errors import RunnelError

if TYPE_CHECKING:
    from runnel.api.broker import Broker
    from runnel.postgres.config import RelayConfig
    from runnel.postgres.setup import Problem

log = logging.getLogger("runnel.postgres")

RETRY_SECONDS = 2.0  # after which a server tries its relay again

EXAMPLE = """\
examples:
  runnel relay init --config runnel.toml             the SQL that PostgreSQL still needs
  runnel relay init --config runnel.toml --apply     and run it
  runnel relay run --config runnel.toml --server runnel://127.0.0.1:7788
  runnel relay status --config runnel.toml
  runnel relay tail --config runnel.toml             what would be published, from now on
  runnel serve --config runnel.toml                  a server that runs the relay in its own process

The file has a table [relay]:

  [relay]
  dsn = "postgresql://app@db.example.com/app"    # or RUNNEL_RELAY_DSN
  slot = "runnel"
  publication = "realtime_events"
  [[relay.table]]
  table = "chat_messages"
  topic = "chat.{channel_id}"
  key = "id"
"""
INIT = """\
examples:
  runnel relay init --config runnel.toml
  runnel relay init --config runnel.toml --apply
  RUNNEL_RELAY_DSN=postgresql://admin@db/app runnel relay init --config runnel.toml --apply

Prints what keeps the relay from starting and the SQL that changes it. Exit code 0: nothing does; 1: something does.
The publication is created before the slot, so that no row between the two is missed.
"""
RUN = """\
examples:
  runnel relay run --config runnel.toml --data data/
  runnel relay run --config runnel.toml --server runnel://127.0.0.1:7788

Runs until SIGTERM or Ctrl-C. Lost connections are made again. A second relay with the same slot waits, and takes over
when the first one ends.
"""
STATUS = """\
examples:
  runnel relay status --config runnel.toml
  runnel relay status --config runnel.toml --json

Asks PostgreSQL about the slot and the broker about what is published; the relay itself need not run.
"""
TAIL = """\
examples:
  runnel relay tail --config runnel.toml             Ctrl-C stops
  runnel relay tail --config runnel.toml --count 10 --json

Publishes nothing and moves nothing: it reads from a temporary slot of its own, from now on.
"""
SNAPSHOT = """\
examples:
  runnel relay snapshot --config runnel.toml --table chat_messages

The relay that runs reads the table in chunks, beside its changes; `runnel relay status` shows how far it is.
"""

RETAIN = """\
examples:
  runnel relay retain --config runnel.toml
  runnel relay retain --config runnel.toml --table video_frames

Removes rows of the tables that have `keep`, once, as the running relay does on a schedule: partitions that ended that
long ago are dropped, other rows are deleted in batches of 5,000. Subscribers get no record of it, unless
publish_expired says so. For cron, or where the relay's role may not delete: RUNNEL_RELAY_DSN names another one.
"""
PAUSE = """\
examples:
  runnel relay pause --config runnel.toml --server runnel://127.0.0.1:7788
  runnel relay resume --config runnel.toml --server runnel://127.0.0.1:7788

The relay disconnects within a second and publishes nothing, also after a restart, until it is resumed. PostgreSQL keeps
its log meanwhile: watch it with `runnel relay status`. The word is kept in the broker that the relay publishes to.
"""
SKIP = """\
examples:
  runnel relay skip --config runnel.toml --lsn 0/16B3748 --server runnel://127.0.0.1:7788

For a relay that is stuck: its last error names the transaction that cannot be published, by the LSN of its commit
(the header pg-lsn). The relay passes over that transaction when it connects again, and publishes a gap event in
its place. Its rows are lost to subscribers.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel relay` and its commands known."""
    inner = add_family(
        commands,
        "relay",
        "publish the changes of PostgreSQL tables",
        EXAMPLE,
        "An INSERT is a publish: rows of tables in a publication become records, each once and in commit order.",
    )
    init = add_configured(inner, "init", "print or run the SQL that PostgreSQL still needs", INIT, talking(_init))
    init.add_argument("--apply", action="store_true", help="run it")
    add_json(init)
    run = add_configured(inner, "run", "publish until it is stopped", RUN, _run)
    add_target(run, bare=False)
    status = add_configured(inner, "status", "the slot, and how far the relay is", STATUS, talking(_status))
    add_target(status, bare=False)
    add_json(status)
    tail = add_configured(inner, "tail", "print what would be published", TAIL, talking(_tail))
    tail.add_argument("--count", type=int, metavar="N", help="stop after so many records")
    add_json(tail, "JSON lines")
    snapshot = add_configured(
        inner, "snapshot", "make the running relay read a table again", SNAPSHOT, talking(_snapshot)
    )
    snapshot.add_argument("--table", required=True, metavar="NAME", help="a table of the configuration")
    add_json(snapshot)
    for name, summary in (
        ("pause", "make the relay publish nothing until it is resumed"),
        ("resume", "resume a paused relay"),
    ):
        command = add_configured(inner, name, summary, PAUSE, talking(_set_paused))
        command.set_defaults(paused=name == "pause")
        add_target(command, bare=False)
        add_json(command)
    skip = add_configured(inner, "skip", "skip a transaction that cannot be published", SKIP, talking(_skip))
    skip.add_argument("--lsn", required=True, help="where its commit is in PostgreSQL's log")
    add_target(skip, bare=False)
    add_json(skip)
    retain = add_configured(inner, "retain", "remove rows past their time, once", RETAIN, talking(_retain))
    retain.add_argument("--table", metavar="NAME", help="only this table of the configuration")
    add_json(retain, "a JSON line for each table")


def relay_config_of(file: Path) -> RelayConfig:
    """The table [relay] of a file, if a relay can run here."""
    with needing_psycopg("a relay"):
        from runnel.postgres.config import read_config
    return read_config(file)


def runnable_relay_config_of(file: Path) -> RelayConfig:
    """The same, if it says which database to connect to, or the environment does."""
    config = relay_config_of(file)
    from runnel.postgres.relay import dsn_of

    dsn_of(config)
    return config


def _config(chosen: argparse.Namespace) -> RelayConfig:
    return runnable_relay_config_of(config_file(chosen, "relay"))


# -- commands ----------------------------------------------------------------------------------------------------------


async def _apply(connection: Any, statement: str) -> None:
    from psycopg.errors import InsufficientPrivilege

    try:
        await connection.execute(statement)
    except InsufficientPrivilege as error:
        how = "RUNNEL_RELAY_DSN=postgresql://OWNER@… runnel relay init --apply"
        why = f"{error}; run this SQL as a role that may, such as the owner of the tables: {how}"
        raise CommandError("postgres_error", why) from None


async def _init(chosen: argparse.Namespace) -> int:
    config = _config(chosen)
    from runnel.postgres.connecting import connect
    from runnel.postgres.relay import dsn_of
    from runnel.postgres.setup import examine, problems, warnings

    async with await connect(dsn_of(config), "runnel relay init") as connection:
        facts = await examine(connection, config)
        found = problems(config, facts)
        for problem in found:
            if not chosen.json:
                _print_problem(problem)
            for statement in problem.sql if chosen.apply else ():
                await _apply(connection, statement)
        facts = await examine(connection, config)
    left = problems(config, facts)
    if chosen.json:
        shown = {"problems": found, "left": left, "warnings": warnings(facts)}
        found_and_left = {name: [one._asdict() for one in some] for name, some in shown.items()}
        print_document(found_and_left | {"applied": chosen.apply})
        return FOUND if left else FINE
    for warning in warnings(facts):
        print("\n".join(f"-- {line}" for line in (warning.what, *warning.sql)))
    if not left:
        print("-- everything is set up")
    return FOUND if left else FINE


def _print_problem(problem: Problem) -> None:
    """The missing setup of PostgreSQL, as SQL."""
    print("\n".join([f"-- {problem.what}", *problem.sql]))
    if problem.needs_restart:
        print("-- then restart PostgreSQL")


def _run(chosen: argparse.Namespace) -> int:
    config = _config(chosen)
    from runnel.postgres.relay import Relay

    return run_until_stopped(chosen, "runnel relay", lambda broker: Relay(broker, config=config).run())


async def _status(chosen: argparse.Namespace) -> int:
    config = _config(chosen)
    import runnel
    from runnel.postgres.status import read_status

    async with runnel.open(where(chosen)) as broker:
        found = await read_status(broker, config)
    if chosen.json:
        print_document(found)
        return FOUND if found.problems else FINE
    facts: list[tuple[str, object]] = [
        ("slot", found.slot),
        ("state", "paused" if found.is_paused else found.slot_state),
        ("wal_status", found.wal_status),
        ("published", found.published),
        ("confirmed", found.confirmed),
        ("lag", human_size(found.lag_bytes) if found.lag_bytes is not None else None),
        ("log kept for it", human_size(found.retained_bytes) if found.retained_bytes is not None else None),
        ("until it is lost", human_size(found.safe_wal_bytes) if found.safe_wal_bytes is not None else None),
        ("generation", found.generation),
    ]
    facts += [(f"snapshot of {table}", said) for table, said in found.snapshots.items()]
    print_pairs(facts)
    for problem in found.problems:
        print(f"! {problem}")
    return FOUND if found.problems else FINE


async def _tail(chosen: argparse.Namespace) -> int:
    check_count(chosen.count)
    config, left = _config(chosen), chosen.count
    from runnel.postgres.tail import tail

    async for topic, key, value, headers in tail(config):
        if left == 0:
            break
        if chosen.json:
            shown = {"topic": topic, "key": _text(key), "value": _text(value), "headers": headers}
            print_line(shown)
        else:
            print(topic, headers.get("pg-op", ""), _text(key) or "-", "-" if value is None else readable(value))
        left = None if left is None else left - 1
        if left == 0:
            break
    return FINE


def _text(value: bytes | None) -> str | None:
    return None if value is None else readable(value)


async def _snapshot(chosen: argparse.Namespace) -> int:
    config = _config(chosen)
    from runnel.postgres.connecting import connect
    from runnel.postgres.relay import dsn_of
    from runnel.postgres.snapshot_reader import request_snapshot

    async with await connect(dsn_of(config), "runnel relay snapshot") as connection:
        await request_snapshot(connection, config, chosen.table)
    name = config.table_named(chosen.table).name
    said = f"asked the relay of the slot {config.slot} to read {name}"
    print_done(said, {"slot": config.slot, "table": name}, as_json=chosen.json)
    return FINE


async def _set_paused(chosen: argparse.Namespace) -> int:
    config = _config(chosen)
    import runnel
    from runnel.postgres.control import set_paused

    async with runnel.open(where(chosen)) as broker:
        changed = await set_paused(broker, config, chosen.paused)
    said = "is paused" if chosen.paused else "goes on"
    text = f"the relay {config.relay_name} {said}{'' if changed else ': it was so already'}"
    facts = {"relay": config.relay_name, "paused": chosen.paused, "changed": changed}
    print_done(text, facts, as_json=chosen.json)
    return FINE


async def _skip(chosen: argparse.Namespace) -> int:
    config = _config(chosen)
    import runnel
    from runnel.postgres.control import skip_transaction

    async with runnel.open(where(chosen)) as broker:
        await skip_transaction(broker, config, chosen.lsn)
    said = f"the relay {config.relay_name} will pass over the transaction at {chosen.lsn}"
    print_done(said, {"relay": config.relay_name, "lsn": chosen.lsn}, as_json=chosen.json)
    return FINE


async def _retain(chosen: argparse.Namespace) -> int:
    config = _config(chosen)
    tables = config.table if chosen.table is None else (config.table_named(chosen.table),)
    kept = [table for table in tables if table.keep is not None]
    if not kept:
        raise CommandError("usage_error", "no table has `keep`: name how long its rows stay", USAGE)
    from runnel.postgres.connecting import connect
    from runnel.postgres.expiry import expire_now
    from runnel.postgres.relay import dsn_of

    async with await connect(dsn_of(config), "runnel relay retain") as connection:
        await connection.execute("SET lock_timeout = '10s'")
        for table in kept:
            assert table.keep is not None
            with StatusLine() as ticker:
                ticker(f"removing rows of {table.name}")
                found = await expire_now(connection, config.slot, table, table.keep)
            if chosen.json:
                print_line({"table": table.name, "partitions": found.partitions, "rows": found.rows})
                continue
            dropped = f"{len(found.partitions)} partitions dropped, " if found.partitions else ""
            print(f"{table.name}: {dropped}{found.rows:,} rows deleted")
    return FINE


# -- in a server -------------------------------------------------------------------------------------------------------


async def keep_relaying(broker: Broker, config: RelayConfig) -> None:
    """Relay until cancelled. The server keeps running while PostgreSQL is not set up; the missing setup is logged."""
    import psycopg

    from runnel.postgres.relay import Relay

    relay = Relay(broker, config=config)
    while True:
        try:
            await relay.run()
        except (RunnelError, psycopg.Error) as error:
            log.error("relay %s: %s; trying again in %g s", config.slot, error, RETRY_SECONDS)
        await asyncio.sleep(RETRY_SECONDS)
