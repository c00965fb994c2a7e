"""A prepared publish: packed with what it carries, and with what its topic has to say."""

from typing import Any

import msgspec
import pytest

import runnel
from runnel.client import publishing
from runnel.core.batch_format import JSON, read_batch_header, unpack


class Order(msgspec.Struct):
    id: int


async def test_a_plain_one_says_nothing_about_itself(remote: Any) -> None:
    found = publishing.prepare_one(remote.topic("t"), b"a", None, None, None, None, 0)
    assert (found.topic, found.records, found.size, found.about) == ("t", 1, 1, None)
    assert unpack(found.pack()).values == (b"a",)


async def test_types_options_and_expectations_go_along(remote: Any) -> None:
    topic = remote.topic("t", Order, retention_count=5)
    found = publishing.prepare_one(topic, Order(1), "k", {"h": "1"}, None, None, 3, "id", 7)
    assert found.about is not None
    assert (found.about.message_id, found.about.expected_offset) == ("id", 7)
    assert found.about.options == {"retention_count": 5}
    assert found.about.schema is not None
    header = read_batch_header(found.pack(producer=9, sequence=4))
    assert (header.content_type, header.producer, header.producer_sequence) == (JSON, 9, 4)
    meta = unpack(found.pack()).metas[0]
    assert (meta.key, dict(meta.headers), meta.priority) == (b"k", {"h": "1"}, 3)


async def test_many_are_taken_as_they_are_now(remote: Any) -> None:
    mine: list[Any] = [b"1", "2"]
    found = publishing.prepare_many(remote.topic("t"), mine, None, None, None, None, 0)
    mine.clear()
    assert unpack(found.pack()).values == (b"1", b"2")


async def test_what_is_wrong_is_said(remote: Any) -> None:
    with pytest.raises(runnel.InvalidOption, match="expected_offset"):
        publishing.prepare_one(remote.topic("t"), b"a", None, None, None, None, 0, None, -1)
    with pytest.raises(runnel.ValidationFailed):
        publishing.prepare_one(remote.topic("t", Order), 5, None, None, None, None, 0)
