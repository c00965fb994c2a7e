"""Request and reply: each request has a reply topic of its own, which is deleted when the answer came."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runnel.broker.group.subscription import Delivery
from runnel.broker.read.subscription import Subscription
from runnel.broker.topic.catalog import UNDECLARED
from runnel.broker.topic_handle import Topic
from runnel.core.errors import BrokerClosed, InvalidOption, NoResponders, RequestTimeout
from runnel.core.options import Policy, SubscribeOptions
from runnel.core.pattern import check_name
from runnel.core.record import REPLY_TO, Record
from runnel.core.trace_context import TRACEPARENT
from runnel.runtime.waiting import wait_all

if TYPE_CHECKING:
    from runnel.broker.backend import LocalBackend

INBOX = "$runnel.inbox"


async def request(
    backend: LocalBackend,
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
    asked = SubscribeOptions(start="earliest", policy=Policy())
    subscription: Subscription[bytes] = Subscription(backend.reader(inbox, asked), None)
    try:
        async with subscription:
            await Topic[bytes](backend, topic, None, UNDECLARED).publish(
                value, key=key, headers={**(headers or {}), REPLY_TO: inbox}
            )
            answer = asyncio.ensure_future(anext(aiter(subscription), None))
            try:
                if not await wait_all([answer], timeout, backend.clock):
                    raise RequestTimeout(topic, timeout)
                if (found := answer.result()) is None:
                    raise BrokerClosed("waiting for a reply")
                return found
            finally:
                answer.cancel()
                await asyncio.wait([answer])  # its generator must be at rest before the block is left
    finally:
        backend.catalog.delete(inbox)


async def reply(
    backend: LocalBackend, record: Record[Any] | Delivery[Any], value: bytes | str, headers: Mapping[str, str] | None
) -> bool:
    """Answer `record`; False when whoever asked is no longer waiting."""
    inbox = record.reply_to
    if inbox is None:
        raise InvalidOption("record", record.topic, "it is not a request: nobody waits for a reply")
    if not inbox.startswith(f"{INBOX}."):
        await Topic[bytes](backend, check_name(inbox), None, UNDECLARED).publish(value, headers=headers)
        return True
    log = backend.catalog.logs.get(inbox)
    if log is None:
        return False
    entry = backend.publisher.one(
        inbox, None, value, None, {TRACEPARENT: record.traceparent, **(headers or {})}, None, None, 0, None
    )
    backend.publisher.append(log, entry)
    return True
