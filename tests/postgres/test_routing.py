"""From a row to topic, key, headers and value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.pattern import check_name
from runnel.postgres.config import TableConfig
from runnel.postgres.routing import RowRouter, TooLargeValue, Unroutable
from runnel.postgres.types import TypeCatalog
from runnel.wire.pgoutput import UNCHANGED, Column, Relation
from tests.postgres.messages import BYTEA, CHAT, INT, TEXT

FRAMES = Relation(
    2,
    "app",
    "frames",
    "f",
    (Column("id", INT, -1, True), Column("frame", BYTEA, -1, True), Column("url", TEXT, -1, True)),
)


def chat(**options: object) -> RowRouter:
    config = TableConfig("chat", **({"topic": "chat.{room}"} | options))  # type: ignore[arg-type]
    return RowRouter(config, CHAT, TypeCatalog())


def frames(**options: object) -> RowRouter:
    config = TableConfig("app.frames", **({"topic": "frames", "value": "column:frame"} | options))  # type: ignore[arg-type]
    return RowRouter(config, FRAMES, TypeCatalog())


def test_a_row_is_routed_by_its_columns() -> None:
    router = chat(topic="chat.{room}.of.{id}", key="id", headers={"author": "body"})
    row = [b"1", b"lobby", b"hi"]
    assert router.topic_of(row) == "chat.lobby.of.1"
    assert router.key_of(row) == b"1"
    assert router.headers_of(row) == {"author": "hi"}
    assert router.value_of(row) == b'{"id":1,"room":"lobby","body":"hi"}'
    assert router.headers_of([b"1", b"lobby", None]) == {}


@pytest.mark.parametrize("room", [None, b"", b"a.b", b"*", b">", b"$x", b"a b", b"\n", b"\x7f", UNCHANGED])
def test_a_column_that_is_no_token_keeps_the_row_from_its_topic(room: object) -> None:
    with pytest.raises(Unroutable, match="'room'"):
        chat().topic_of([b"1", room, b"hi"])  # type: ignore[list-item]


@given(st.text(max_size=300))
def test_whatever_is_routed_is_a_name_of_one_token_more(text: str) -> None:
    try:
        topic = chat().topic_of([b"1", text.encode(errors="surrogatepass"), b"hi"])
    except Unroutable:
        return
    assert check_name(topic).count(".") == 1


def test_a_topic_that_is_too_long_keeps_the_row_from_it() -> None:
    with pytest.raises(Unroutable, match="bytes long"):
        chat().topic_of([b"1", b"x" * 5000, b"hi"])


def test_a_column_that_is_gone_keeps_every_row_from_its_topic() -> None:
    with pytest.raises(Unroutable, match="no published column 'channel', which its topic needs"):
        chat(topic="chat.{channel}").topic_of([b"1", b"lobby", b"hi"])


def test_a_key_may_be_null_unless_the_topic_is_compacted() -> None:
    row = [None, b"lobby", b"hi"]
    assert chat(key="id").key_of(row) is None
    with pytest.raises(Unroutable, match="compacted topic needs it"):
        chat(key="id", compact=True).key_of(row)
    with pytest.raises(Unroutable, match="REPLICA IDENTITY FULL"):
        chat(key="id").key_of([UNCHANGED, b"lobby", b"hi"])


def test_a_header_has_one_line() -> None:
    with pytest.raises(Unroutable, match="several lines"):
        chat(headers={"author": "body"}).headers_of([b"1", b"lobby", b"a\nb"])


def test_one_column_is_the_value_raw() -> None:
    router = frames()
    assert router.value_of([b"1", b"\\x00ff", None]) == b"\x00\xff"
    assert router.value_of([b"1", None, None]) == b""
    with pytest.raises(Unroutable, match="bytea"):
        router.value_of([b"1", b"nonsense", None])
    with pytest.raises(Unroutable, match="REPLICA IDENTITY FULL"):
        router.value_of([b"1", UNCHANGED, None])
    assert router.value_of([b"1", UNCHANGED, None], is_delete=True) == b""


def test_beyond_max_value_the_pointer_is_published_or_nothing() -> None:
    row = [b"1", b"\\x" + b"00" * 11, b"s3://x"]
    assert frames(max_value=11).value_of(row) == b"\0" * 11
    assert frames(max_value=10, pointer="url").value_of(row) == b"s3://x"
    with pytest.raises(
        TooLargeValue, match=r"11 bytes, more than max_value \(10\); raise max_value, or name a pointer"
    ):
        frames(max_value=10).value_of(row)
    with pytest.raises(TooLargeValue, match="'url' has no value"):
        frames(max_value=10, pointer="url").value_of([*row[:2], None])


def test_a_dead_letter_can_be_made_of_any_row() -> None:
    bad = [b"1", b"lobby", b"\xff"]
    with pytest.raises(Unroutable, match="column 'body'"):
        chat().value_of(bad)
    assert chat().dead_letter_of(bad) == rb'{"id":"1","room":"lobby","body":"\\xff"}'
    assert chat().dead_letter_of([b"1", UNCHANGED, None]) == b'{"id":1,"body":null}'
    assert chat(max_value=10).dead_letter_of([b"1", b"lobby", b"x" * 20]) == b""


def test_of_an_old_row_only_the_identity_is_known() -> None:
    assert chat().key_only([b"1", b"lobby", None]) == [b"1", b"lobby", UNCHANGED]
