"""Request and reply: each request has a reply topic of its own, which is deleted when the answer came."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from runnel.broker.read.reader import LocalReader
from runnel.broker.topic.catalog import UNDECLARED
from runnel.broker.writer import LocalWriter
from runnel.core.backend import RequestRecord
from runnel.core.errors import BrokerClosed, InvalidOption, NoResponders, RequestTimeout
from runnel.core.options import Policy, SubscribeOptions
from runnel.core.pattern import check_name
from runnel.core.publishing import append_of
from runnel.core.record import REPLY_TO, Record
from runnel.core.trace_context import TRACEPARENT
from runnel.runtime.waiting import wait_all

if TYPE_CHECKING:
    from runnel.broker.parts import BrokerParts

INBOX = "$runnel.inbox"


async def request(
    backend: BrokerParts,
    topic: str,
    value: bytes | str,
    timeout: float,
    key: bytes | str | None,
    headers: Mapping[str, str] | None,
) -> Record[bytes]:
    """Publish `value` and wait for the first reply."""
    backend.loop_owner.check_usable("a request")
    if not backend.catalog.has_readers(check_name(topic)):
        raise NoResponders(topic)
    # A request that is on disk outlives its broker: no later life may give its inbox to another one.
    inbox = f"{INBOX}.{backend.life}.{backend.next_number()}"
    backend.catalog.make(inbox)
    came = asyncio.Event()
    reader = backend.reader(inbox, SubscribeOptions(start="earliest", policy=Policy()), came.set)
    reader.enter()
    try:
        writer = LocalWriter(backend, topic, None, UNDECLARED)
        await writer.append(append_of(writer, value, key, {**(headers or {}), REPLY_TO: inbox}))
        answer = asyncio.ensure_future(_first_record(reader, came))
        try:
            if not await wait_all([answer], timeout, backend.clock):
                raise RequestTimeout(topic, timeout)
            return answer.result()
        finally:
            answer.cancel()
    finally:
        reader.leave()
        backend.catalog.delete(inbox)


async def _first_record(reader: LocalReader, came: asyncio.Event) -> Record[bytes]:
    """The first record that comes; `BrokerClosed` if none will."""
    while True:
        taken = reader.take(1)
        if taken is not None and taken.slices:
            return taken.slices[0].records[0]
        if reader.ended:
            raise reader.error or BrokerClosed("waiting for a reply")
        came.clear()
        reader.park()
        await came.wait()


async def reply(
    backend: BrokerParts, record: RequestRecord, value: bytes | str, headers: Mapping[str, str] | None
) -> bool:
    """Reply to `record`; False if the requester no longer waits."""
    inbox = record.reply_to
    if inbox is None:
        raise InvalidOption("record", record.topic, "it is not a request: nobody waits for a reply")
    if not inbox.startswith(f"{INBOX}."):
        writer = LocalWriter(backend, check_name(inbox), None, UNDECLARED)
        await writer.append(append_of(writer, value, headers=headers))
        return True
    log = backend.catalog.logs.get(inbox)
    if log is None:
        return False
    append = backend.publisher.own(inbox, value, None, {TRACEPARENT: record.traceparent, **(headers or {})})
    backend.publisher.append(log, append)
    return True
