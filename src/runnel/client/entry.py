"""One publish as it travels in a transaction, from a producer or to a stage: checked here, and packed.

Below: core.publishing, core.packing. Above: transaction, producer, stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.core import publishing
from runnel.core.packing import BYTES, JSON, MSGPACK, pack
from runnel.core.publishing import Headers, Seconds, Weighed, check_expected
from runnel.wire.messages import About

if TYPE_CHECKING:
    from runnel.client.topic import RemoteTopic

_CONTENT = {None: BYTES, "json": JSON, "msgpack": MSGPACK}
_NOTHING = About()


class Entry(NamedTuple):
    """Records of one topic that are published together: what they are, what they weigh, what is said about them."""

    topic: str
    weighed: Weighed
    content_type: int
    compression: str | None
    about: About | None

    @property
    def records(self) -> int:
        """How many records."""
        return len(self.weighed[0])

    @property
    def size(self) -> int:
        """Bytes of values, keys and headers."""
        return self.weighed[2] + self.weighed[3]

    def pack(self, producer: int = 0, sequence: int = 0) -> bytes:
        """The records as a batch."""
        values, metas, *_ = self.weighed
        return pack(
            values,
            metas,
            compression=self.compression,
            content_type=self.content_type,
            producer=producer,
            producer_sequence=sequence,
        )


def one(
    topic: RemoteTopic[Any],
    value: object,
    key: object,
    headers: Mapping[str, str] | None,
    delay: Seconds | None,
    expires: Seconds | None,
    priority: int,
    message_id: str | None = None,
    expected_offset: int | None = None,
) -> Entry:
    """The entry of one record, or what is wrong with it."""
    weighed = topic._one(value, key, headers, delay, expires, priority, message_id)
    return entry_of(topic, weighed, message_id, expected_offset)


def many(
    topic: RemoteTopic[Any],
    values: Sequence[object],
    keys: Sequence[object] | None,
    headers: Headers | None,
    delay: Seconds | None,
    expires: Seconds | None,
    priority: int,
    expected_offset: int | None = None,
) -> Entry:
    """The entry of many records, in order; the caller may go on changing its own list."""
    data, metas, size, extra = publishing.many(
        topic.name, topic._codec, values, keys, topic._traced_all(headers), delay, expires, priority, topic._now()
    )
    return entry_of(topic, (tuple(data), metas, size, extra), None, expected_offset)


def entry_of(
    topic: RemoteTopic[Any], weighed: Weighed, message_id: str | None = None, expected_offset: int | None = None
) -> Entry:
    """Records that were checked, for `topic`, with what a publish to it has to say."""
    check_expected(expected_offset)
    about = topic._said(message_id=message_id, expected_offset=expected_offset)
    codec = topic._codec
    content_type = _CONTENT[None if codec is None else codec.encoding]
    return Entry(topic.name, weighed, content_type, topic.options.compression, None if about == _NOTHING else about)
