"""The `[relay]` table: mistakes are found before anything connects, and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runnel.core.errors import InvalidName, InvalidOption
from runnel.postgres.config import RelayConfig, TableConfig, read_config, relay_config
from runnel.postgres.relay import dsn_of

CHAT = {"table": "chat", "topic": "chat.{room}"}


def test_the_design_s_example_is_read(tmp_path: Path) -> None:
    file = tmp_path / "runnel.toml"
    file.write_text(
        """
        [relay]
        dsn = "postgresql://localhost/app"
        slot = "runnel"
        publication = "realtime_events"
        [[relay.table]]
        table = "chat_messages"
        topic = "chat.{channel_id}"
        key = "id"
        value = "row"
        [[relay.table]]
        table = "app.frames"
        topic = "frames.{room}.{user}"
        value = "column:frame"
        """
    )
    config = read_config(file)
    chat, frames = config.table
    assert (chat.name, chat.template_columns, chat.value_column) == ("public.chat_messages", ("channel_id",), None)
    assert (frames.name, frames.template_pieces, frames.value_column) == ("app.frames", ("frames.", ".", ""), "frame")
    assert (config.events_topic, config.dead_letter_topic) == ("relay.runnel", "relay.runnel.dead")
    assert config.table_named("app.frames") is frames


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "name at least one"),
        ({"table": [CHAT], "slots": "x"}, "slots"),
        ({"table": [CHAT], "slot": "Up-per"}, "a-z, 0-9 and _"),
        ({"table": [CHAT | {"tpic": 1}]}, "tpic"),
        ({"table": [{"table": "chat"}]}, "topic"),
        ({"table": [CHAT, CHAT]}, "configured twice"),
        ({"table": [CHAT | {"topic": "chat.{room"}]}, "expected a template"),
        ({"table": [CHAT | {"topic": "chat.{}"}]}, "expected a template"),
        ({"table": [CHAT | {"topic": "chat.x{room}"}]}, "a column fills a whole token"),
        ({"table": [CHAT | {"value": "column:"}]}, '"column:" and the name'),
        ({"table": [CHAT | {"publish": []}]}, "name at least one operation"),
        ({"table": [CHAT | {"publish": ["upsert"]}]}, "upsert"),
        ({"table": [CHAT | {"max_value": 1 << 40}]}, "the most that a record may have"),
        ({"table": [CHAT | {"headers": {"pg-op": "id"}}]}, "are the relay's"),
        ({"table": [CHAT | {"headers": {"a b": "id"}}]}, "letters, digits"),
        ({"table": [CHAT | {"compact": True}]}, "name a key column"),
        ({"table": [CHAT | {"keep": 0}]}, "more than 0"),
        ({"table": [CHAT | {"publish_expired": True}]}, "add delete to publish"),
        ({"message": [{"prefix": "runnel", "topic": "t"}]}, "for emit"),
        ({"channel": [{"channel": "c", "topic": "t"}] * 2}, "configured twice"),
        ({"table": [CHAT], "batch_records": 0}, "more than 0"),
    ],
)
def test_a_mistake_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        relay_config(given)


def test_topics_have_to_be_names() -> None:
    for given in ({"table": [CHAT | {"topic": "chat.*"}]}, {"table": [CHAT], "events": "a..b"}):
        with pytest.raises(InvalidName):
            relay_config(given)


def test_a_file_without_the_table_or_without_toml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    for text, says in (("[serve]\n", "no table"), ("[relay", "not TOML")):
        file.write_text(text)
        with pytest.raises(InvalidOption, match=says):
            read_config(file)


def test_an_unknown_table_is_named_with_those_that_there_are() -> None:
    config = RelayConfig(table=(TableConfig("chat", "chat"),))
    assert config.table_named("chat").name == config.table_named("public.chat").name
    with pytest.raises(InvalidOption, match=r"expected one of public\.chat"):
        config.table_named("orders")


def test_the_environment_names_the_database_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RelayConfig(dsn="postgresql://file")
    monkeypatch.delenv("RUNNEL_RELAY_DSN", raising=False)
    assert dsn_of(config) == "postgresql://file"
    with pytest.raises(InvalidOption, match="RUNNEL_RELAY_DSN"):
        dsn_of(RelayConfig())
    monkeypatch.setenv("RUNNEL_RELAY_DSN", "postgresql://environment")
    assert dsn_of(config) == "postgresql://environment"
    assert dsn_of(config, "postgresql://argument") == "postgresql://argument"
