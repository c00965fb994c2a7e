"""The example in docs/reference/wire.md, byte by byte, is what the code says and understands."""

from __future__ import annotations

import re

from runnel.core.batch_format import unpack
from runnel.wire.binary_messages import credit_frame, publish_frame, published_frame, read_deliver, read_publish
from runnel.wire.frames import FLAGS, HAS_DETAILS, PREFACE, Frame, FrameDecoder, FrameKind
from runnel.wire.msgpack_messages import (
    Goodbye,
    Hello,
    PublishDetails,
    Subscribe,
    SubscribeReply,
    Welcome,
    WireError,
    WireGap,
    WirePolicy,
    decode_message,
)
from tests.project.project import ROOT

PAGE = (ROOT / "docs" / "reference" / "wire.md").read_text()
BLOCKS = [bytes.fromhex(block) for block in re.findall(r"```text\n([0-9a-f \n]+)```", PAGE)]


def only_frame(data: bytes, preface: bytes = b"") -> Frame:
    decoder = FrameDecoder(preface=preface)
    decoder.feed(data)
    (found,) = decoder.frames()
    assert decoder.pending == 0
    return found


def test_the_example_is_understood_frame_by_frame() -> None:
    hello, publish, published, subscribe, deliver, credit = BLOCKS

    kind, _, _, id, payload = only_frame(hello, PREFACE)
    assert (kind, id, decode_message(Hello, payload)) == (FrameKind.HELLO, 0, Hello(version=1, client="me"))

    kind, flags, extra, id, payload = only_frame(publish)
    topic, about, batch = read_publish(flags, extra, payload)
    assert (kind, id, topic, about) == (FrameKind.PUBLISH, 1, "test", None)
    records = unpack(batch)
    assert (records.values, records.header.producer, records.header.producer_sequence) == (
        (b"100",),
        0x0123456789ABCDEF,
        0,
    )
    assert b"".join(publish_frame(1, b"test", batch)) == publish

    assert published == published_frame(1, 1, 0, 0)

    kind, _, _, id, payload = only_frame(subscribe)
    assert (kind, id) == (FrameKind.SUBSCRIBE, 2)
    assert decode_message(Subscribe, payload) == Subscribe(pattern="test", start="earliest", credit=65536)

    kind, _, extra, id, payload = only_frame(deliver)
    found = read_deliver(extra, payload)
    assert (kind, id, found.topic, found.epoch, found.offset, found.sequence) == (FrameKind.DELIVER, 2, "test", 1, 0, 0)
    assert found.batch == batch

    assert credit == credit_frame(2, len(deliver), 1)


def test_every_kind_is_in_the_table_of_the_page() -> None:
    rows = re.findall(r"^\| (\d+) \| \[(\w+)\]", PAGE, re.MULTILINE)
    assert rows == [(str(kind.value), kind.name) for kind in FrameKind]


def test_every_field_is_on_the_page() -> None:
    for kind in (Hello, Welcome, PublishDetails, Subscribe, SubscribeReply, WirePolicy, WireGap, Goodbye, WireError):
        assert [name for name in kind.__struct_fields__ if f"`{name}`" not in PAGE] == []


def test_flags_are_those_that_the_page_names() -> None:
    assert HAS_DETAILS == FLAGS[FrameKind.PUBLISH] == 1
    assert {kind.name for kind in FLAGS} == {"PUBLISH", "CREDIT", "DELIVER", "UNSUBSCRIBE", "GRANT"}
