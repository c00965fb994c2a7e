"""Inboxes: where the replies to requests arrive.

An inbox is an entry in a table, not a topic: a request costs the same beside one subscriber and beside 10,000. Its name
has 128 random bits and is in the request alone, so only a receiver of the request can reply. It takes one reply or, for
`request_many`, at most so many until a deadline.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from secrets import token_hex
from types import MappingProxyType

from runnel.broker.topic.catalog import UNDECLARED, TopicCatalog
from runnel.broker.topic.publisher import Publisher
from runnel.broker.topic.timeline import Timeline
from runnel.core.backend import ReplyRoute
from runnel.core.errors import BrokerClosed, RunnelError
from runnel.core.pattern import check_name
from runnel.core.record import FAILURE, INBOX, Record
from runnel.core.replies import Gathering
from runnel.core.trace_context import TRACEPARENT
from runnel.runtime.waiting import resolve_waiter

GIVEN_UP = "given_up"  # the error of a request that a group gives up for a reason without a code
MAX_REASON = 10_000  # characters of a reason that are sent

logger = logging.getLogger("runnel")


class Inboxes:
    """The requests that wait for a reply, by the name of their inbox."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Record[bytes]]] = {}
        self._routes: dict[str, ReplyRoute] = {}  # by prefix: inboxes that a listener looks after
        self._gathering: dict[str, tuple[Gathering, asyncio.Future[None]]] = {}  # of `request_many`

    def __repr__(self) -> str:
        return f"<Inboxes, {len(self)} requests wait>"

    def __len__(self) -> int:
        return len(self._waiting) + len(self._gathering)

    def open(self) -> tuple[str, asyncio.Future[Record[bytes]]]:
        """A new inbox, and a future for its reply."""
        inbox = f"{INBOX}{token_hex(16)}"
        reply = self._waiting[inbox] = asyncio.get_running_loop().create_future()
        return inbox, reply

    def open_many(self, limit: int) -> tuple[str, Gathering, asyncio.Future[None]]:
        """A new inbox for at most `limit` replies, and a future for when they are complete."""
        inbox = f"{INBOX}{token_hex(16)}"
        full: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gathering = Gathering(limit)
        self._gathering[inbox] = gathering, full
        return inbox, gathering, full

    def close_many(self, inbox: str) -> None:
        """Take an inbox of many replies away."""
        self._gathering.pop(inbox, None)

    def close(self, inbox: str) -> asyncio.Future[Record[bytes]] | None:
        """Take an inbox away: no other reply is taken. None: there is no such inbox, or not any more."""
        return self._waiting.pop(inbox, None)

    def route(self, prefix: str, route: ReplyRoute | None) -> None:
        """Have `route` take the replies to inboxes that begin with `prefix`; None: not any more."""
        if route is None:
            self._routes.pop(prefix, None)
        else:
            self._routes[prefix] = route

    def deliver(self, inbox: str, value: bytes, headers: dict[str, str], time: datetime) -> bool:
        """Give the requester its reply; False if it no longer waits, or has one."""
        waiting = self.close(inbox)
        if waiting is None:
            found = ((prefix, route) for prefix, route in self._routes.items() if inbox.startswith(prefix))
            routed = any(route(inbox.removeprefix(prefix), value, headers) for prefix, route in found)
            return routed or self._gather(inbox, value, headers, time)
        if waiting.done():
            return False
        waiting.set_result(Record(inbox, 0, 0, 0, None, value, MappingProxyType(headers), time))
        return True

    def _gather(self, inbox: str, value: bytes, headers: dict[str, str], time: datetime) -> bool:
        gathering, full = self._gathering.get(inbox, (None, None))
        if gathering is None or full is None or full.done():
            return False
        if not gathering.add(Record(inbox, 0, 0, 0, None, value, MappingProxyType(headers), time)):
            full.set_result(None)
        return True

    def close_all(self) -> None:
        """No reply will come any more."""
        while self._waiting:
            _, reply = self._waiting.popitem()
            resolve_waiter(reply, BrokerClosed("waiting for a reply"))
        while self._gathering:
            _, (_, full) = self._gathering.popitem()
            resolve_waiter(full, BrokerClosed("waiting for replies"))


class GivenUpRequests:
    """Tells requesters that a group has given up their requests: no further attempt will answer them."""

    def __init__(self, inboxes: Inboxes, timeline: Timeline, publisher: Publisher, catalog: TopicCatalog) -> None:
        self._inboxes, self._timeline, self._publisher, self._catalog = inboxes, timeline, publisher, catalog

    def tell(self, record: Record[bytes], reason: str) -> None:
        """Reply with a failure, if `record` is a request without a reply.

        A reason that a handler gives begins with the code of the error that it raised, or with its class.
        """
        inbox = record.reply_to
        if inbox is None:
            return
        code, _, why = reason.partition(": ")
        if not code.isidentifier():
            code, why = GIVEN_UP, reason
        value, headers = why[:MAX_REASON].encode(errors="replace"), {TRACEPARENT: record.traceparent, FAILURE: code}
        if inbox.startswith(INBOX):
            self._inboxes.deliver(inbox, value, headers, self._timeline.now())
            return
        try:
            log = self._catalog.find(check_name(inbox), UNDECLARED)
            self._publisher.append(log, self._publisher.own(inbox, value, None, headers))
        except RunnelError as error:  # the record is a dead letter all the same
            logger.warning("a requester could not be informed that its request was given up: %s", error)
