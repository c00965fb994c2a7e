"""Request and reply on a cluster: the request is a record of its topic, the reply a message of core NATS.

Subscribers answer on a subject of their pattern, so that a request without any fails at once. A reply goes to the
requester alone, which says whether it still waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime
from secrets import token_hex

from runnel.cluster.publishing import ClusterPublishing
from runnel.cluster.writer import ClusterWriter
from runnel.core.backend import OutgoingRequest, RequestRecord
from runnel.core.batch_format import pack, unpack
from runnel.core.errors import BadBatch, InvalidOption, NoAnswer, NoResponders, RequestTimeout, RunnelError
from runnel.core.options import NO_TOPIC_OPTIONS
from runnel.core.pattern import check_name
from runnel.core.publishing import append_of, checked_record
from runnel.core.record import FAILURE, INBOX, NO_HEADERS, REPLY_TO, Record
from runnel.core.replies import Gathering
from runnel.core.trace_context import TRACEPARENT
from runnel.wire.nats import Message

ANSWER = 5.0  # seconds that a subscriber, or a requester, has to say that it is there
GIVEN_UP = "given_up"
MAX_REASON = 10_000


async def request(publishing: ClusterPublishing, asked: OutgoingRequest) -> Record[bytes]:
    """Publish it, and wait for the first reply."""
    found = await request_many(publishing, asked, 1)
    if not found:
        raise RequestTimeout(asked.topic, asked.timeout)
    return found[0]


async def request_many(publishing: ClusterPublishing, asked: OutgoingRequest, limit: int) -> list[Record[bytes]]:
    """Publish it, and gather replies until its `timeout`, or until there are `limit`."""
    publishing.loop_owner.check_usable("a request")
    js, link = publishing.js, publishing.js.link
    try:
        await link.request(js.subjects.presence(check_name(asked.topic)), b"", ANSWER)
    except NoResponders:
        raise NoResponders(asked.topic) from None
    except NoAnswer:
        pass  # a subscriber is there, and busy
    inbox = f"_INBOX.{token_hex(16)}"
    gathering = Gathering(limit)
    full: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def arrived(message: Message) -> None:
        is_taken = not full.done()
        if is_taken:
            try:
                if not gathering.add(_record(message.payload)):
                    full.set_result(None)
            except BadBatch as error:
                full.set_exception(error)
        if message.reply is not None:
            link.publish(message.reply, b"1" if is_taken else b"0")

    def over(done: asyncio.Future[None]) -> None:
        publishing.requests.discard(done)
        if not done.cancelled():
            done.exception()  # retrieved, where the publish failed first

    sid = link.subscribe(inbox, arrived)
    publishing.requests.add(full)
    full.add_done_callback(over)
    try:
        writer = ClusterWriter(publishing, asked.topic, None, NO_TOPIC_OPTIONS)
        headers = {**(asked.headers or NO_HEADERS), REPLY_TO: f"{INBOX}{inbox}"}
        await writer.append(append_of(writer, asked.value, asked.key, headers))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(asked.timeout):
                await full
        return gathering.replies
    finally:
        link.unsubscribe(sid)
        full.cancel()


async def reply(
    publishing: ClusterPublishing, record: RequestRecord, value: bytes | str, headers: Mapping[str, str] | None
) -> bool:
    """Reply to `record`; False if the requester no longer waits, or has a reply."""
    publishing.loop_owner.check_usable("replying")
    to = record.reply_to
    if to is None:
        raise InvalidOption("record", record.topic, "it is not a request: no reply is expected")
    if not to.startswith(INBOX):
        writer = ClusterWriter(publishing, check_name(to), None, NO_TOPIC_OPTIONS)
        await writer.append(append_of(writer, value, headers=headers))
        return True
    if publishing.tracing.is_active:
        headers = publishing.tracing.traced(headers)
    values, columns, _, _ = checked_record(to, None, value, None, {TRACEPARENT: record.traceparent, **(headers or {})})
    try:
        answer = await publishing.js.link.request(to.removeprefix(INBOX), pack(values, columns), ANSWER)
    except (NoResponders, NoAnswer):
        return False
    return answer.payload == b"1"


async def give_up(publishing: ClusterPublishing, record: Record[bytes], reason: str) -> None:
    """Tell a requester that a group has given up its request."""
    code, _, why = reason.partition(": ")
    if not code.isidentifier():
        code, why = GIVEN_UP, reason
    try:
        await reply(publishing, record, why[:MAX_REASON].encode(errors="replace"), {FAILURE: code})
    except RunnelError:
        return  # the record is a dead letter all the same


def _record(payload: bytes) -> Record[bytes]:
    unpacked = unpack(payload)
    meta = unpacked.metas.get(0)
    return Record(
        "$runnel.inbox",
        0,
        0,
        0,
        None,
        unpacked.values[0],
        NO_HEADERS if meta is None else meta.headers,
        datetime.now(UTC),
    )
