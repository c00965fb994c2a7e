"""Request and reply. The server keeps the reply inboxes.

A request is never resent after a lost connection: the responder might act twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from runnel.core import publishing
from runnel.core.backend import OutgoingRequest, RequestRecord
from runnel.core.batch_format import pack, unpack
from runnel.core.errors import InvalidOption
from runnel.core.pattern import check_name
from runnel.core.record import INBOX, NO_HEADERS, Record
from runnel.core.trace_context import TRACEPARENT

if TYPE_CHECKING:
    from runnel.client.server_link import ServerLink


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def request(link: ServerLink, asked: OutgoingRequest) -> Record[bytes]:
    """Publish it and wait for the first reply. Not sent twice: the responder might act twice."""
    return _record(await _call(link, "request", asked))


async def request_many(link: ServerLink, asked: OutgoingRequest, limit: int) -> list[Record[bytes]]:
    """Publish it, and gather replies on the server."""
    return [_record(one) for one in await _call(link, "request_many", asked, limit=limit)]


async def _call(link: ServerLink, method: str, asked: OutgoingRequest, **more: int) -> Any:
    batch = _packed(link, asked.topic, asked.value, asked.key, asked.headers)
    args = {"topic": check_name(asked.topic), "batch": batch, "timeout": asked.timeout, **more}
    usual = link.options.timeout
    return await link.call(method, args, again=False, timeout=None if usual is None else asked.timeout + usual)


def topic_of_reply(record: RequestRecord) -> str | None:
    """The topic that a reply is published to; None: it goes to an inbox of the server."""
    inbox = record.reply_to
    if inbox is None:
        raise InvalidOption("record", record.topic, "it is not a request: no reply is expected")
    return None if inbox.startswith(INBOX) else inbox


async def reply(link: ServerLink, record: RequestRecord, value: bytes | str, headers: Mapping[str, str] | None) -> bool:
    """Reply to `record`; False if the requester no longer waits."""
    inbox = record.reply_to or ""
    batch = _packed(link, inbox, value, None, {TRACEPARENT: record.traceparent, **(headers or {})})
    answered: bool = await link.call("reply", {"reply_to": inbox, "batch": batch})
    return answered


def _packed(link: ServerLink, topic: str, value: object, key: object, headers: Mapping[str, str] | None) -> bytes:
    tracing = link.publishing.tracing
    if tracing.is_active:
        headers = tracing.traced(headers)
    values, columns, _, _ = publishing.checked_record(topic, None, value, key, headers)
    return pack(values, columns)


def _record(found: dict[str, Any]) -> Record[bytes]:
    """A reply, as the record that it is."""
    unpacked = unpack(found["batch"])
    meta = unpacked.metas.get(0)
    return Record(
        found["topic"],
        found["offset"],
        found["sequence"],
        found["epoch"],
        None if meta is None else meta.key,
        unpacked.values[0],
        NO_HEADERS if meta is None else meta.headers,
        _EPOCH + timedelta(microseconds=found["time"]),
    )
