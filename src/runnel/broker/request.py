"""Request and reply over topics: an inbox per request, gone when the answer is there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runnel.broker.catalog import UNSAID
from runnel.broker.delivery import Delivery
from runnel.broker.reader import Reader, SubscribeOptions
from runnel.broker.subscription import Subscription
from runnel.broker.topic import Topic
from runnel.core.errors import BrokerClosed, InvalidOption, NoResponders, RequestTimeout
from runnel.core.pattern import check_name
from runnel.core.record import REPLY_TO, Record
from runnel.core.trace import HEADER
from runnel.surface.waiting import all_done

if TYPE_CHECKING:
    from runnel.broker.bus import Bus

INBOX = "$runnel.inbox"


async def request(
    bus: Bus,
    topic: str,
    value: bytes | str,
    timeout: float,
    key: bytes | str | None,
    headers: Mapping[str, str] | None,
) -> Record[bytes]:
    """Publish `value` and wait for the first reply."""
    bus.home.check_usable("a request")
    if not bus.catalog.has_readers(check_name(topic)):
        raise NoResponders(topic)
    # A request that is on disk outlives its broker: no later life may give its inbox to another one.
    inbox = f"{INBOX}.{bus.life}.{bus.next_number()}"
    bus.catalog.make(inbox)
    subscription: Subscription[bytes] = Subscription(Reader(bus, inbox, SubscribeOptions(start="earliest")), None)
    try:
        async with subscription:
            await Topic[bytes](bus, topic, None, UNSAID).publish(
                value, key=key, headers={**(headers or {}), REPLY_TO: inbox}
            )
            answer = asyncio.ensure_future(anext(aiter(subscription), None))
            try:
                if not await all_done([answer], timeout, bus.clock):
                    raise RequestTimeout(topic, timeout)
                if (found := answer.result()) is None:
                    raise BrokerClosed("waiting for a reply")
                return found
            finally:
                answer.cancel()
                await asyncio.wait([answer])  # its generator must be at rest before the block is left
    finally:
        bus.catalog.delete(inbox)


async def reply(
    bus: Bus, record: Record[Any] | Delivery[Any], value: bytes | str, headers: Mapping[str, str] | None
) -> bool:
    """Answer `record`; False when whoever asked is no longer waiting."""
    inbox = record.reply_to
    if inbox is None:
        raise InvalidOption("record", record.topic, "it is not a request: nobody waits for a reply")
    if not inbox.startswith(f"{INBOX}."):
        await Topic[bytes](bus, check_name(inbox), None, UNSAID).publish(value, headers=headers)
        return True
    log = bus.catalog.logs.get(inbox)
    if log is None:
        return False
    entry = bus.publisher.one(
        inbox, None, value, None, {HEADER: record.traceparent, **(headers or {})}, None, None, 0, None
    )
    bus.publisher.append(log, entry)
    return True
