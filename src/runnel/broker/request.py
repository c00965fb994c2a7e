"""Request and reply: a request is a record that names an inbox; the first reply to the inbox is the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from runnel.broker.topic.catalog import UNDECLARED
from runnel.broker.writer import LocalWriter
from runnel.core.backend import OutgoingRequest, RequestRecord
from runnel.core.columns import HEADERS
from runnel.core.errors import InvalidOption, NoResponders, RequestTimeout
from runnel.core.pattern import check_name
from runnel.core.publishing import append_of, checked_record
from runnel.core.record import INBOX, NO_HEADERS, REPLY_TO, Record
from runnel.core.trace_context import TRACEPARENT
from runnel.runtime.waiting import resolve_waiter

if TYPE_CHECKING:
    from runnel.broker.parts import BrokerParts


async def request(backend: BrokerParts, asked: OutgoingRequest) -> Record[bytes]:
    """Publish it and wait for the reply."""
    _check_responders(backend, asked.topic)
    inbox, reply = backend.inboxes.open()
    timer = None
    try:
        await _publish(backend, asked, inbox)
        timer = backend.clock.call_later(
            asked.timeout, lambda: resolve_waiter(reply, RequestTimeout(asked.topic, asked.timeout))
        )
        return await reply
    finally:
        if timer is not None:
            timer.cancel()
        backend.inboxes.close(inbox)
        if reply.done() and not reply.cancelled():
            reply.exception()  # so that asyncio does not report one that came while the publish failed


async def request_many(backend: BrokerParts, asked: OutgoingRequest, limit: int) -> list[Record[bytes]]:
    """Publish it, and gather replies until its `timeout`, or until there are `limit`."""
    _check_responders(backend, asked.topic)
    inbox, gathering, full = backend.inboxes.open_many(limit)
    timer = None
    try:
        await _publish(backend, asked, inbox)
        timer = backend.clock.call_later(asked.timeout, lambda: resolve_waiter(full))
        await full
        return gathering.replies
    finally:
        if timer is not None:
            timer.cancel()
        backend.inboxes.close_many(inbox)
        if full.done() and not full.cancelled():
            full.exception()  # so that asyncio does not report one that came while the publish failed


def _check_responders(backend: BrokerParts, topic: str) -> None:
    backend.loop_owner.check_usable("a request")
    if not backend.catalog.has_readers(check_name(topic)):
        raise NoResponders(topic)


async def _publish(backend: BrokerParts, asked: OutgoingRequest, inbox: str) -> None:
    writer = LocalWriter(backend, asked.topic, None, UNDECLARED)
    headers = {**(asked.headers or NO_HEADERS), REPLY_TO: inbox}
    await writer.append(append_of(writer, asked.value, asked.key, headers))


async def reply(
    backend: BrokerParts, record: RequestRecord, value: bytes | str, headers: Mapping[str, str] | None
) -> bool:
    """Reply to `record`; False if the requester no longer waits, or has a reply."""
    inbox = record.reply_to
    if inbox is None:
        raise InvalidOption("record", record.topic, "it is not a request: no reply is expected")
    if not inbox.startswith(INBOX):
        writer = LocalWriter(backend, check_name(inbox), None, UNDECLARED)
        await writer.append(append_of(writer, value, headers=headers))
        return True
    if backend.publisher.tracing.is_active:
        headers = backend.publisher.tracing.traced(headers)
    (data,), columns, _, _ = checked_record(inbox, None, value, None, headers)
    shown = {TRACEPARENT: record.traceparent, **(columns[HEADERS][0] if columns else NO_HEADERS)}
    return backend.inboxes.deliver(inbox, data, shown, backend.timeline.now())
