"""Blocks of pages that need PostgreSQL run against one, and do what the page says."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import runnel
from tests.docs.blocks import Block as PythonBlock
from tests.docs.pages import marked_for
from tests.docs.shell import Block, Shell, blocks_of, reader
from tests.patience import PATIENCE
from tests.postgres.conftest import NEWEST, Database
from tests.postgres.relaying import run_sql
from tests.project.project import ROOT

PAGES = marked_for(__file__)
assert {*PAGES} == {"archive", "from-listen-notify", "from-polling", "relay"}, "each has a test"
pytestmark = pytest.mark.parametrize("postgres", [NEWEST], indirect=True)
CHAT = "CREATE TABLE chat_messages (id bigint PRIMARY KEY, channel_id text, body text)"
RELAY = {
    "slot": "s",
    "publication": "p",
    "table": [{"table": "chat_messages", "topic": "chat.{channel_id}", "key": "id"}],
}


@pytest.fixture
def shell(database: Database, tmp_path: Path) -> Iterator[Shell]:
    with reader(tmp_path) as made:
        made.names = {"postgresql://localhost/app": database.dsn}
        made.prelude = f"import psycopg, runnel, runnel.postgres\ndsn, config = {database.dsn!r}, {RELAY!r}\n"
        yield made


def python(page: str) -> list[PythonBlock]:
    return [block for block in PAGES[page] if isinstance(block, PythonBlock)]


def holds(shell: Shell, topic: str, value: bytes) -> bool:
    """Whether a topic of the folder has a record with this value."""
    with runnel.blocking.open(shell.folder / "data") as broker:
        found = [one for one in broker.bounds(topic) if one.first < one.end]
        if not found:
            return False
        with broker.subscribe(topic, start="earliest") as records:
            return value in next(iter(records)).value


def test_a_topic_is_archived_and_read_from_the_table(shell: Shell, database: Database) -> None:
    with runnel.blocking.open(shell.folder / "data") as broker:
        broker.publish("orders.paid", "42")
    archive, history, _ = python("archive")
    shell.run_python(
        archive,
        lambda: (
            run_sql(database.dsn, "SELECT to_regclass('orders')")
            and run_sql(database.dsn, "SELECT count(*) FROM orders") == 1
        ),
    )
    shell.run_python(history)


def test_a_page_reads_its_table_and_then_what_comes(shell: Shell, database: Database) -> None:
    run_sql(database.dsn, CHAT)
    run_sql(database.dsn, "INSERT INTO chat_messages VALUES (1, 'general', 'hello')")
    shell.prelude += 'broker = await runnel.open("data/").__aenter__()\n'
    _, _, live = python("archive")
    shell.run_python(live)


def test_a_relay_publishes_rows(shell: Shell, database: Database) -> None:
    run_sql(database.dsn, CHAT)
    (relay,) = python("relay")

    def is_relayed() -> bool:
        run_sql(database.dsn, "INSERT INTO chat_messages SELECT count(*), 'general', 'hello' FROM chat_messages")
        return holds(shell, "chat.general", b"hello")

    shell.run_python(relay, is_relayed)


def test_a_transaction_emits(shell: Shell) -> None:
    shell.prelude += "connection = await psycopg.AsyncConnection.connect(dsn)\n"
    for block in python("from-listen-notify"):
        shell.run_python(block)


def test_rows_that_were_polled_are_records(shell: Shell, database: Database) -> None:
    run_sql(database.dsn, "CREATE TABLE lines (id serial PRIMARY KEY, job int, text text)")
    page = (ROOT / "docs" / "howto" / "from-polling.md").read_text(encoding="utf-8")
    (config,) = [one.text for one in blocks_of(page) if one.language == "toml"]
    shell.write("relay.toml", config)
    (commands,) = PAGES["from-polling"]
    assert isinstance(commands, Block)
    shell.run_block(commands)
    assert shell.server is not None
    end = time.monotonic() + PATIENCE
    with runnel.blocking.open(shell.server.url) as broker:
        while not [one for one in broker.bounds("jobs.42") if one.end]:
            assert time.monotonic() < end, shell.server.told()
            run_sql(database.dsn, "INSERT INTO lines (job, text) VALUES (42, 'done')")
