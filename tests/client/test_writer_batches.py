"""What a writer sends: the batch with what its records carry, and what it has to say of its topic."""

from typing import Any

import msgspec

from runnel.client.writer import RemoteWriter
from runnel.core.batch_format import JSON, pack, read_batch_header, unpack
from runnel.core.publishing import Append, PublishDetails, append_of, append_of_many


class Order(msgspec.Struct):
    id: int


def writer_of(topic: Any) -> RemoteWriter:
    assert isinstance(topic._writer, RemoteWriter)
    return topic._writer


async def test_a_plain_one_says_nothing_about_itself(remote: Any) -> None:
    writer = writer_of(remote.topic("t"))
    append = append_of(writer, b"a")
    assert writer.details(append) == PublishDetails()
    assert unpack(writer.pack(append)).values == (b"a",)


async def test_types_options_and_expectations_go_along(remote: Any) -> None:
    writer = writer_of(remote.topic("t", Order, retention_count=5))
    append = append_of(writer, Order(1), "k", {"h": "1"}, None, None, 3, "id", 7)
    details = writer.details(append)
    assert (details.message_id, details.expected_offset) == ("id", 7)
    assert details.options == {"retention_count": 5}
    assert details.schema is not None
    header = read_batch_header(writer.pack(append, producer=9, sequence=4))
    assert (header.content_type, header.producer, header.producer_sequence) == (JSON, 9, 4)
    meta = unpack(writer.pack(append)).metas[0]
    assert (meta.key, dict(meta.headers), meta.priority) == (b"k", {"h": "1"}, 3)


async def test_what_came_packed_goes_on_as_it_is(remote: Any) -> None:
    data = pack([b"1", b"2"], producer=3, producer_sequence=4)
    assert writer_of(remote.topic("t")).pack(Append((b"1", b"2"), None, 2, packed=data)) is data


async def test_many_are_taken_as_they_are_when_they_are_published(remote: Any) -> None:
    mine: list[Any] = [b"1", "2"]
    writer = writer_of(remote.topic("t"))
    assert unpack(writer.pack(append_of_many(writer, mine))).values == (b"1", b"2")
