"""One subscription of a NATS client: records of topics, and live messages, become MSG and HMSG.

It reads from "latest", and at most once: records written to the connection count as processed. Records for which the
connection has no room stay in the log. A queue group is a group of the broker with the name `nats:QUEUE`, so that its
members may be clients of any server of the backend; a record is acked when it is written, and the group is forgotten
when its last member leaves.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from runnel.core.backend import Member, Reader, SettleVerb
from runnel.core.batch import Slice
from runnel.core.columns import HEADERS, KEYS, Columns
from runnel.core.errors import RunnelError
from runnel.core.options import SubscribeOptions
from runnel.server.nats.headers import head_of
from runnel.server.nats.traffic import Traffic
from runnel.wire import nats

if TYPE_CHECKING:
    from runnel.core.backend import Backend

GROUP_PREFIX = "nats:"  # begins the names of groups that are queue groups
TAKE_RECORDS = 256  # records taken at a time
QUANTUM = 256 << 10  # bytes after which another subscription of the connection is served
BUFFER = 1 << 20  # records of a topic in memory that a client may lag by, or 64 MiB of them, before it misses some

log = logging.getLogger("runnel")


class NatsOutlet(Protocol):
    """The connection, as its subscriptions need it."""

    def write(self, data: bytes) -> None:
        """Send it to the client."""

    def wants(self, subscription: NatsSubscription) -> None:
        """There may be something to send: call `pump` soon, when the connection has room."""

    def watch_closely(self) -> None:
        """Others ask who is subscribed: notice soon when the client is lost."""


class NatsSubscription:
    """A subscription: its reader or member, if it covers topics. `over` is called when it ends on its own."""

    def __init__(
        self,
        owner: Any,
        outlet: NatsOutlet,
        traffic: Traffic,
        sid: str,
        pattern: str,
        queue: str | None,
        over: Callable[[NatsSubscription], None],
    ) -> None:
        self.owner, self.sid, self.pattern, self.queue = owner, sid, pattern, queue
        self.queued = self.is_live = False  # whether it waits to send; whether live messages are delivered to it
        self.has_joined = False  # its group: then it is forgotten with its last member
        self.sent = 0
        self.error: RunnelError | None = None
        self.ended = False  # for the guard: a login that may not read it any more ends it
        self.shows_headers = True
        self.own: Callable[[Slice], set[int]] | None = None  # without echo: the client's own records in a slice
        self.outlet, self._traffic, self._over = outlet, traffic, over
        self._most: int | None = None  # messages, until it ends
        self._source: Reader | Member | None = None
        self._is_member = False
        self._parts: deque[tuple[int, Slice]] = deque()  # taken and not sent yet; in a group with their places
        self._lease: Any = None  # of a member: what they are of
        self._topic, self._prefix = "", b""
        self._sid = f" {sid} ".encode()

    def __repr__(self) -> str:
        return f"<NatsSubscription {self.sid} of {self.pattern!r}, {self.sent} sent>"

    @property
    def group(self) -> str:
        """The name of its group in the broker."""
        return f"{GROUP_PREFIX}{self.queue}"

    @property
    def is_open(self) -> bool:
        """Whether it takes messages."""
        return not self.ended

    # -- its life -----------------------------------------------------------------------------------------------

    def read(self, backend: Backend, root: Backend, *, lags: bool) -> Awaitable[None] | None:
        """Read topics from now on; an awaitable is done when that is so. `lags`: they are durable.

        `backend` is that of the client, `root` the one behind it.
        """
        if self.queue is not None:
            self._is_member = True
            options = SubscribeOptions(start="latest", group=self.group, prefetch=TAKE_RECORDS)
            member = backend.member(self.pattern, options, self._ready)
            member.on_presence = self.outlet.watch_closely
            self._source = member
            return self._join(backend, root, member)
        options = SubscribeOptions(start="latest") if lags else SubscribeOptions(start="latest", buffer=BUFFER)
        reader = backend.reader(self.pattern, options, self._ready, far=True)
        reader.on_presence = self.outlet.watch_closely
        self._source = reader
        entering = reader.enter()
        self._ready()  # it parks then
        return entering

    async def _join(self, backend: Backend, root: Backend, member: Member) -> None:
        """Join the group. One that a stopped server left behind, without members, begins at the end again."""
        with suppress(RunnelError):
            found = await root.ask_group(self.group, self.pattern, "statistics")
            if found is not None and not found.members:
                await root.ask_group(self.group, self.pattern, "reset", "latest")
        if (joining := member.enter()) is not None:
            await joining
        self.has_joined = True
        if self.ended:  # it was left meanwhile
            member.leave()
            await self.forget_group(backend)
        self._ready()

    @property
    def left(self) -> int | None:
        """Messages until it ends; None: it has no limit."""
        return None if self._most is None else max(1, self._most - self.sent)

    def limit(self, most: int) -> bool:
        """End after so many messages since it began; whether that is now."""
        self._most = most
        return self.sent >= most

    def leave(self) -> None:
        """Send no more."""
        self.ended = True
        self._parts.clear()
        source, self._source = self._source, None
        if source is not None:
            source.leave()

    async def forget_group(self, backend: Backend) -> None:
        """Forget its group, which it has left, unless it has other members."""
        with suppress(RunnelError):
            await backend.forget_group(self.group, self.pattern)

    def end(self, error: RunnelError | None = None) -> None:
        """Its client may not read it any more."""
        if not self.ended:
            self.ended, self.error = True, error
            self._over(self)

    def _ready(self) -> None:
        """There may be something to send. Called during publishes, so it only queues this subscription."""
        if not self.queued and not self.ended:
            self.queued = True
            self.outlet.wants(self)

    # -- sending ------------------------------------------------------------------------------------------------

    def deliver(self, subject: str, reply: str | None, head: bytes | None, payload: bytes) -> None:
        """Send a live message."""
        if not self.shows_headers:
            head = None
        self.outlet.write(nats.delivery(subject, self.sid, reply, head, payload))
        self._count(1, len(payload))

    def pump(self, room: int) -> bool:
        """Send records, up to about `room` bytes; whether there may be more to send now."""
        source = self._source
        if source is None or self.ended:
            return False
        return self._pump_member(source, room) if self._is_member else self._pump_reader(source, room)

    def _pump_reader(self, reader: Any, room: int) -> bool:
        room, parts = min(room, QUANTUM), self._parts
        while room > 0:
            if not parts:
                taken = reader.take(TAKE_RECORDS if self._most is None else min(TAKE_RECORDS, self._most - self.sent))
                if taken is None:
                    if reader.ended:
                        self.end(reader.error)
                    else:
                        reader.park()
                    return False
                parts.extend((0, part) for part in taken.slices)
            while parts and room > 0:
                room -= self._send(self._next_part(room)[1])
            if not parts:
                reader.pass_all()
            if self.ended:
                return False
        return True

    def _pump_member(self, member: Any, room: int) -> bool:
        inbox, parts = member.inbox, self._parts
        while (inbox or parts) and room > 0:
            if not parts:
                lease = self._lease = inbox.popleft()
                if lease.ended or not member.take_up(lease):
                    continue
                parts.extend(member.parts(lease))
            lease = self._lease
            while parts and room > 0:
                if lease.ended:  # it took too long: the group has the rest again
                    parts.clear()
                    break
                place, part = self._next_part(room)
                end = place + len(part)
                if member.hand is not None:
                    member.hand(lease, place, end)
                lease.handed = max(lease.handed, end)
                room -= self._send(part)
                if not lease.ended:
                    member.settle(lease, SettleVerb.ACK, place, end)
                if self.ended:
                    self._over(self)  # it leaves, and the group has the rest again
                    return False
        if not inbox and not parts and member.ended:
            self.end(member.error)
        return bool(inbox or parts)

    def _next_part(self, room: int) -> tuple[int, Slice]:
        """As much of the next part as there is room for, one record at least; no more than it is to send."""
        place, part = self._parts.popleft()
        most = len(part) if self._most is None else max(1, min(len(part), self._most - self.sent))
        if part.size > room:
            size = count = 0
            while count < most and size < room:
                size += len(part.values[count])
                count += 1
            most = count
        if most == len(part):
            return place, part
        self._parts.appendleft((place + most, part.cut(part.start + most, part.end)))
        return place, part.cut(part.start, part.start + most)

    def _send(self, part: Slice) -> int:
        """Send the records of a slice; about how many bytes they take."""
        if part.topic != self._topic:
            self._topic, self._prefix = part.topic, b"MSG " + part.topic.encode() + self._sid
        own = () if self.own is None else self.own(part)
        if part.columns is None and not own:
            prefix = self._prefix
            data = b"".join([b"%b%d\r\n%b\r\n" % (prefix, len(value), value) for value in part.values])
            count = len(part)
        else:
            data, count = self._with_columns(part, own)
        self.outlet.write(data)
        self._count(count, part.size)
        return len(data)

    def _with_columns(self, part: Slice, own: set[int] | tuple[()]) -> tuple[bytes, int]:
        columns = part.columns or Columns()
        keys, headers = columns.get(KEYS, ()), columns.get(HEADERS, ())
        pieces = []
        for at, value in enumerate(part.values):
            if part.start + at in own:
                continue
            key = keys[at] if at < len(keys) else None
            reply, head = head_of(headers[at] if at < len(headers) else None, key)
            pieces.append(nats.delivery(part.topic, self.sid, reply, head if self.shows_headers else None, value))
        return b"".join(pieces), len(pieces)

    def _count(self, sent: int, size: int) -> None:
        self.sent += sent
        self._traffic.out_msgs += sent
        self._traffic.out_bytes += size
        if self._most is not None and self.sent >= self._most and not self.ended:
            self.ended = True
            if not self._is_member:  # a member first acks what it has sent
                self._over(self)
