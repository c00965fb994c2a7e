"""The session of a native client: hello, publishes, subscriptions, calls, goodbye.

A publish creates no task and no future: it goes to the packed publisher of the backend, which calls back. A client's
mistake affects only that client: its request is refused or its connection ends, with an ERROR frame that says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from types import EllipsisType
from typing import Any, Protocol

import msgspec

from runnel.core.backend import WaitingPublish
from runnel.core.errors import (
    BrokerClosed,
    LimitExceeded,
    NotSupported,
    ProtocolError,
    PublishCancelled,
    RunnelError,
    SubscriptionEnded,
    Superseded,
)
from runnel.core.position import Span
from runnel.server.access.access import Access
from runnel.server.access.control import Peer
from runnel.server.access.peers import facts_of
from runnel.server.native.calls import CALLS, Caller, check_method
from runnel.server.native.connection import NativeConnection
from runnel.server.native.subscriptions import NativeMember, NativeSubscription, SharedFrames
from runnel.server.request_id import CURRENT
from runnel.server.served_broker import ServedBroker, http_refusal, is_http
from runnel.wire import json_events
from runnel.wire.binary_messages import (
    batch_weight,
    published_frame,
    read_credit,
    read_plain_publish,
    read_publish,
    read_unsubscribe,
)
from runnel.wire.errors import error_frame
from runnel.wire.frames import FrameKind, frame
from runnel.wire.msgpack_messages import (
    OPERATOR,
    PROTOCOL_VERSION,
    RECALLS,
    SHARED_DELIVER,
    Goodbye,
    Hello,
    Subscribe,
    Welcome,
    decode_message,
    encode_message,
    read_call,
    read_settle,
)

FEATURES = ("groups", "transactions", "stages", "requests")
_MAY_WAIT = {"transact": "committing a transaction"}  # calls that may wait for room, for as long as it takes
_SETTLE = "settle"  # the name of a task that waits until something settled is on disk
PENDING = "too much of what it published is not answered yet"
SETTLING = "too much of what it settled is not on disk yet"
TOO_FAST = "it publishes faster than its principal may"
LARGE_BATCH = 4 << 20  # bytes of a batch after which other connections are served

log = logging.getLogger("runnel")


def native_listener(serving: ServedBroker) -> Callable[[], NativeConnection]:
    """The factory of the protocol of each new native connection."""

    def made() -> NativeConnection:
        session = partial(NativeSession, serving)
        return NativeConnection(serving.options, serving.memory, session, serving.connections.remove)

    return made


class NativeSession:
    """One native client: its subscriptions, publishes and calls in flight."""

    def __init__(self, serving: ServedBroker, connection: NativeConnection) -> None:
        self._serving, self._connection = serving, connection
        self._publisher, self._options = serving.publisher.for_client(), serving.options
        self._slowed: asyncio.TimerHandle | None = None
        self._number = 0
        self._client = ""
        self._shared: SharedFrames | None = None  # of a client that understands them
        self._recalls = False
        self._pending: set[PendingPublish] = set()
        self._pending_bytes = 0
        self._late: dict[int, PendingPublish] = {}  # publishes that can still be withdrawn
        self._streams: dict[int, NativeSubscription] = {}
        self._members: dict[int, NativeMember] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._stopping: set[asyncio.Task[None]] = set()  # cancelled calls that have not ended yet
        self._entering: set[asyncio.Task[None]] = set()  # subscriptions that do not stand yet
        self._settling = 0
        self._finishing = self._draining = self._parted = False
        self._operator = False
        self.handlers: list[Callable[[int, int, int, bytes], None]] = [self._too_early] * (max(FrameKind) + 1)
        self.handlers[FrameKind.HELLO] = self._hello

    # -- its life -----------------------------------------------------------------------------------------------

    def opened(self) -> None:
        """The connection is established: count it."""
        self._number = self._serving.connections.add(self._connection)
        if self._serving.backend.replication is None and (refusal := self._serving.refusal()) is not None:
            raise refusal
        if self._serving.connections.draining:
            self._connection.close()

    def lost(self) -> None:
        """The connection is lost: leave all subscriptions, return all leases, withdraw publishes that wait for room."""
        for publish in [*self._pending]:
            publish.abandon()
        self._publisher.release()
        if self._slowed is not None:
            self._slowed.cancel()
        if (access := self._serving.access) is not None:
            access.on_end = access.on_slow = None
            access.release()
        for call in self._calls.values():
            call.cancel()
        left: list[NativeSubscription | NativeMember] = [*self._streams.values(), *self._members.values()]
        self._streams.clear()
        self._members.clear()
        self.handlers = []
        for one in left:
            try:
                one.leave()
            except Exception:
                log.exception("subscription %d of connection %d could not be left", one.id, self._number)

    def stranger(self, first: bytes) -> bytes | None:
        """The answer to a client that speaks another protocol."""
        if is_http(first):
            return http_refusal(self._serving.wrong_listener("native", "http"))
        if first[:1] == b"{":
            return json_events.error(self._serving.wrong_listener("native", "json"))
        return None

    def drain(self, reason: str, retry: float | None) -> None:
        """The server stops."""
        self._draining = True
        self._connection.send(frame(FrameKind.GOODBYE, 0, encode_message(Goodbye(reason=reason, retry=retry))))
        for publish in [*self._late.values()]:
            if publish.is_waiting:
                publish.withdraw()  # not answered: the client sends it again, to the next server
        if self._operator:
            for call in [*self._calls]:
                self._stop_call(call)  # a standby waits for something new, and nothing comes any more
        self._look_for_end()

    def describe(self) -> dict[str, Any]:
        """The client and what it holds, for the call `connections`."""
        return {
            "listener": "native",
            "client": self._client,
            **({} if self._serving.access is None else {"principal": self._serving.access.principal.name}),
            "subscriptions": len(self._streams) + len(self._members),
            "pending_bytes": self._pending_bytes,
            "calls": len(self._calls),
        }

    def _look_for_end(self) -> None:
        """Close, if a goodbye was sent or received and nothing is under way."""
        if self._pending or self._calls or (self._finishing and not self._parted):
            return
        if self._draining:
            self._connection.close(listen=True)
        elif self._finishing and not self._streams and not self._members:
            self._connection.close()

    # -- hello, ping, goodbye -----------------------------------------------------------------------------------

    def _too_early(self, flags: int, extra: int, id: int, payload: bytes) -> None:
        raise ProtocolError("the first frame must be a HELLO")

    def _hello(self, flags: int, extra: int, id: int, payload: bytes) -> None:
        hello = decode_message(Hello, payload)
        if hello.version < 1:
            raise ProtocolError(f"the client speaks version {hello.version}, and this server {PROTOCOL_VERSION}")
        replication, operator = self._serving.backend.replication, OPERATOR in hello.features
        if replication is not None and hello.seen is not None:
            replication.seen(hello.seen)  # before the login: it proves itself, and a promoted standby has no token here
            if isinstance(superseded := replication.refusal(), Superseded):
                raise superseded
        if self._serving.auth is not None:
            if self._serving.access is not None:  # by a cookie or a ticket of its WebSocket
                self._adopt(self._serving.access)
            elif not self._log_in(hello.token):
                return
        if replication is not None and not operator and (refusal := self._serving.refusal()) is not None:
            raise refusal
        if operator:
            self._operator = True
            self._serving.connections.operators.add(self._connection)
        self._client = hello.client[:256]
        if SHARED_DELIVER in hello.features:
            self._shared = SharedFrames(self._connection)
        self._recalls = RECALLS in hello.features
        serving = self._serving
        welcome = Welcome(
            version=min(hello.version, PROTOCOL_VERSION),
            server=f"runnel {serving.version}",
            features=[*FEATURES],
            journal=serving.journal,
            durable=serving.broker.is_durable,
            fsync=serving.fsync,
            max_frame=self._options.max_frame,
            ping=self._options.ping,
            time=serving.broker.clock.time(),
            connection=self._number,
            expires=self._expires(),
            generation=msgspec.UNSET if replication is None else replication.generation or msgspec.UNSET,
            origin=msgspec.UNSET if serving.backend.origin == serving.journal else serving.backend.origin,
        )
        self._connection.send(frame(FrameKind.WELCOME, 0, encode_message(welcome)))
        self._connection.greeted()
        for kind, handler in (
            (FrameKind.HELLO, self._second_hello),
            (FrameKind.PING, self._ping),
            (FrameKind.PONG, self._pong),
            (FrameKind.PUBLISH, self._publish),
            (FrameKind.CALL, self._call),
            (FrameKind.CANCEL, self._cancel),
            (FrameKind.SUBSCRIBE, self._subscribe),
            (FrameKind.CREDIT, self._credit),
            (FrameKind.UNSUBSCRIBE, self._unsubscribe),
            (FrameKind.SETTLE, self._settle),
            (FrameKind.GOODBYE, self._goodbye),
        ):
            self.handlers[kind] = handler
        if operator:
            self.handlers[FrameKind.PUBLISH] = self.handlers[FrameKind.SUBSCRIBE] = self._not_for_operators

    def _not_for_operators(self, flags: int, extra: int, id: int, payload: bytes) -> None:
        raise NotSupported("publishing and subscribing", "this connection is for operators' calls")

    def _log_in(self, token: str) -> bool:
        """Find out who the client is, and serve it what it may do. A failed login is answered after some time."""
        connection, auth = self._connection, self._serving.auth
        assert auth is not None
        listener = connection.transport.get_extra_info("listener") or ("native" if connection.peer_address else "unix")
        peer = Peer(connection.peer_address, listener)
        try:
            access = auth.login(token, peer, **facts_of(connection.transport))
        except RunnelError as error:
            connection.refuse(error, auth.login_delay(peer))
            return False
        self._serving = self._serving.guarded(access)
        self._adopt(access)
        return True

    def _adopt(self, access: Access) -> None:
        """The client has logged in: publish for it, and end with its login."""
        if access.ended is not None:  # that of its WebSocket, before its first message
            raise access.ended
        access.on_end, access.on_slow = self._access_ended, self._slow_down
        self._publisher.release()
        self._publisher = self._serving.publisher.for_client()

    def _expires(self) -> float | msgspec.UnsetType:
        access = self._serving.access
        expires = None if access is None else access.identity.expires
        return msgspec.UNSET if expires is None else expires

    async def authenticate(self, token: str) -> float | None:
        """Continue with a new token; the time at which it expires."""
        if self._serving.auth is None or (access := self._serving.access) is None:
            return None
        await self._serving.auth.renew(access, token)
        return access.identity.expires

    def _access_ended(self, error: RunnelError) -> None:
        """The token expired, or was taken back. A client that can get a new one comes back with it."""
        self._connection.loop.call_soon(self._connection.fail, error)

    def _slow_down(self, seconds: float) -> None:
        self._connection.pause(TOO_FAST)
        if self._slowed is not None:
            self._slowed.cancel()
        self._slowed = self._connection.loop.call_later(seconds, self._connection.resume, TOO_FAST)

    def _second_hello(self, flags: int, extra: int, id: int, payload: bytes) -> None:
        raise ProtocolError("a second HELLO came")

    def _ping(self, flags: int, extra: int, id: int, payload: bytes) -> None:
        self._connection.send(frame(FrameKind.PONG, id, payload))

    def _pong(self, flags: int, extra: int, id: int, payload: bytes) -> None:
        """A PONG: that the client is alive is noted already."""

    def _goodbye(self, flags: int, extra: int, id: int, payload: bytes) -> None:
        decode_message(Goodbye, payload)
        if self._finishing:
            return
        self._finishing = True
        if self._pending or self._calls:
            parting = self._connection.loop.create_task(self._part_later())
            self._stopping.add(parting)
            parting.add_done_callback(self._stopping.discard)
        else:
            self._part()

    async def _part_later(self) -> None:
        """Records being committed become visible first, for leaving subscribers, too."""
        with suppress(RunnelError):
            await self._serving.backend.flushed()
        self._connection.guard(self._part)

    def _part(self) -> None:
        """Stop waiting for room and replies, and end subscriptions after the records that are there."""
        self._parted = True
        for publish in [*self._late.values()]:
            if publish.is_waiting:
                publish.withdraw(BrokerClosed("publishing"))
        for call in [*self._calls.values()]:
            if call.get_name() in _MAY_WAIT:
                call.cancel(BrokerClosed.code)  # the call itself answers: it may be too late to cancel it
        subscriptions: list[NativeSubscription | NativeMember] = [*self._streams.values(), *self._members.values()]
        for one in subscriptions:
            one.finish(whole=False)
        self._look_for_end()

    # -- publishing ---------------------------------------------------------------------------------------------

    def _publish(self, flags: int, extra: int, id: int, payload: bytes) -> None:
        about = None
        if flags:
            topic, about, batch = read_publish(flags, extra, payload)
        else:
            topic, batch = read_plain_publish(extra, payload)
        if self._draining:
            return  # not answered: the client sends it again, to the next server
        publish = PendingPublish(self, id, batch_weight(batch))
        self._pending.add(publish)
        self._pending_bytes += publish.size
        readers: Sequence[Any] = ()
        if about is not None and about.reads:
            readers = [reader for one in about.reads if (reader := self._reader(one)) is not None]
        publisher = self._publisher
        waiting = publisher.publish(topic, batch, about, publish, readers)
        if waiting is not None and publish in self._pending:
            publish.waiting = waiting
            self._late[id] = publish
            if self._parted:
                publish.withdraw(BrokerClosed("publishing"))
        if self._pending_bytes > self._options.max_pending_bytes and len(self._pending) > 1:
            self._connection.pause(PENDING)  # one publish alone must not prevent the input that makes room for it
        if publisher.is_turn_over or publish.size > LARGE_BATCH:
            publisher.is_turn_over = False
            self._connection.rest()

    def _reader(self, id: int) -> Any:
        """The wait of a publish that only subscription `id` reads; None: there are other readers."""
        if (stream := self._streams.get(id)) is not None:
            return stream.reader
        member = self._members.get(id)
        return None if member is None else member.member.blocks

    def published(self, publish: PendingPublish, result: Span | Exception | None) -> None:
        """A publish has finished; None: the client does not get an answer."""
        self._pending.discard(publish)
        self._pending_bytes -= publish.size
        if publish.waiting is not None:
            self._late.pop(publish.id, None)
        if result is not None:
            if isinstance(result, Span):
                first, last = result
                self._connection.send(published_frame(publish.id, first.epoch, first.offset, last.offset))
            else:
                self._connection.send(_error_reply(publish.id, result))
        if self._connection.read_paused and self._pending_bytes <= self._options.max_pending_bytes // 2:
            self._connection.resume(PENDING)
        if not self._pending and (self._finishing or self._draining):
            self._look_for_end()

    def _cancel(self, flags: int, extra: int, id: int, payload: bytes) -> None:
        if (publish := self._late.get(id)) is not None:
            publish.withdraw(PublishCancelled())  # later publishes have to be numbered again
        else:
            self._stop_call(id)

    # -- subscribing --------------------------------------------------------------------------------------------

    def _subscribe(self, flags: int, extra: int, id: int, payload: bytes) -> None:
        asked = decode_message(Subscribe, payload)
        if self._draining:
            return
        self._check_new(id)
        try:
            many, allowed = len(self._streams) + len(self._members) + 1, self._options.max_subscriptions
            if many > allowed:
                raise LimitExceeded("max_subscriptions", many, allowed)
            found: NativeMember | NativeSubscription
            if asked.group is not None:
                found = self._members[id] = NativeMember(
                    self._serving, self._connection, id, asked, self._over, recalls=self._recalls
                )
            else:
                found = self._streams[id] = NativeSubscription(
                    self._serving, self._connection, id, asked, self._over, self._shared
                )
            if asked.presence is not None:
                self._connection.watch_closely()
            standing = found.enter()
            if standing is None:
                self._connection.send(found.stands())
                if isinstance(found, NativeSubscription) and found.reader.is_pattern:
                    self._connection.rest()  # a pattern checked all topics: serve other connections first
            else:
                task = self._connection.loop.create_task(self._stand(id, found, standing))
                self._entering.add(task)
                task.add_done_callback(self._entering.discard)
        except ProtocolError:
            raise
        except RunnelError as error:
            self._over(id)
            self._connection.send(error_frame(id, error))

    async def _stand(self, id: int, found: NativeMember | NativeSubscription, standing: Awaitable[None]) -> None:
        """Send SUBSCRIBED when a subscription that takes time has started."""
        try:
            await standing
            answer = found.stands()
        except Exception as error:
            answer = _error_reply(id, error)
        if self._streams.get(id) is not found and self._members.get(id) is not found:
            return  # it was left meanwhile
        if not found.is_up:
            self._over(id)
        self._connection.send(answer)

    def _check_new(self, id: int) -> None:
        if not id or id in self._streams or id in self._members or id in self._calls:
            raise ProtocolError(f"the id {id} is {'in use' if id else 'the connection itself'}; take a new one")

    def _over(self, id: int) -> None:
        """A subscription has sent its last frame."""
        found = self._streams.pop(id, None) or self._members.pop(id, None)
        if found is not None:
            found.leave()
        if self._finishing:
            self._look_for_end()

    def _credit(self, flags: int, extra: int, id: int, payload: bytes) -> None:
        given, place, ask, counts = read_credit(flags, payload)
        if (stream := self._streams.get(id)) is not None:  # else it ended, and the client does not know yet
            stream.credit(given, place, ask, counts)

    def _unsubscribe(self, flags: int, extra: int, id: int, payload: bytes) -> None:
        place = read_unsubscribe(flags, payload)
        if (stream := self._streams.pop(id, None)) is not None:
            stream.leave(place)
        elif (member := self._members.pop(id, None)) is not None:
            member.leave()
        else:
            return
        self._connection.send(frame(FrameKind.END, id))
        if self._finishing:
            self._look_for_end()

    # -- settling -----------------------------------------------------------------------------------------------

    def _settle(self, flags: int, extra: int, id: int, payload: bytes) -> None:
        settlements = read_settle(payload)
        refused: RunnelError | None = None
        for settlement in settlements:
            try:
                self.member(settlement.subscription).settle(settlement)
            except RunnelError as error:
                refused = refused or error
        if not id:
            if refused is not None:  # the client does not wait for it; the group redelivers the record
                log.debug("connection %d settled too late: %s", self._number, refused)
        else:
            self._check_new(id)
            found = {self._members.get(one.subscription) for one in settlements}  # now: they may leave meanwhile
            self._begin_call(id, self._settled([one for one in found if one is not None], refused), _SETTLE)
            self._settling += 1
            if self._settling > self._options.max_calls:
                self._connection.pause(SETTLING)

    async def _settled(self, members: list[NativeMember], refused: RunnelError | None) -> None:
        for member in members:
            await member.member.flushed()
        if refused is not None:
            raise refused

    def member(self, subscription: int) -> NativeMember:
        """The member with this subscription id."""
        found = self._members.get(subscription)
        if found is None:
            raise SubscriptionEnded(str(subscription))
        return found

    def _finish(self, subscription: int) -> None:
        """End a subscription after the records published before this call. Harmless if it has ended."""
        found = self._streams.get(subscription) or self._members.get(subscription)
        if found is not None:
            found.finish()

    # -- calls --------------------------------------------------------------------------------------------------

    def _call(self, flags: int, extra: int, id: int, payload: bytes) -> None:
        method, args = read_call(payload)
        if self._draining:
            return
        self._check_new(id)
        try:
            many, allowed = max(len(self._calls), len(self._stopping)) + 1, self._options.max_calls
            if many > allowed:
                raise LimitExceeded("max_calls", many, allowed)
            check_method(method, operator=self._operator)
        except RunnelError as error:
            self._connection.send(error_frame(id, error))
        else:
            self._begin_call(id, CALLS[method](self._caller(), args), method)

    def _caller(self) -> Caller:
        return Caller(self._serving, self.member, self._finish, self.authenticate)

    def _begin_call(self, id: int, work: Coroutine[Any, Any, Any], name: str = "") -> None:
        first = [*self._stopping]  # calls cancelled before it
        task = self._calls[id] = self._connection.loop.create_task(self._answer(id, work, name, first), name=name)
        task.add_done_callback(partial(self._call_over, id, work))

    def _stop_call(self, id: int) -> None:
        """The client cancelled the call."""
        if (call := self._calls.pop(id, None)) is not None:
            self._stopping.add(call)
            call.cancel()

    async def _answer(
        self, id: int, work: Coroutine[Any, Any, Any], name: str, first: list[asyncio.Task[None]]
    ) -> None:
        CURRENT.set(f"{self._number}-{id}")
        try:
            if first:
                await asyncio.wait(first)
            await self._connection.writable()  # no work for a client that does not read
            result = await work
            await self._connection.writable()
            answer = frame(FrameKind.REPLY, id, encode_message(result))
            if len(answer) > self._options.max_frame:
                raise LimitExceeded("max_frame", len(answer), self._options.max_frame)
        except asyncio.CancelledError as error:
            if error.args != (BrokerClosed.code,):
                raise
            answer = error_frame(id, BrokerClosed(_MAY_WAIT[name]))
        except Exception as error:
            answer = _error_reply(id, error)
        self._connection.send(answer)

    def _call_over(self, id: int, work: Coroutine[Any, Any, Any], task: asyncio.Task[None]) -> None:
        work.close()  # cancelled before it began
        self._stopping.discard(task)
        if self._calls.get(id) is task:
            del self._calls[id]
        if task.get_name() == _SETTLE:
            self._settling -= 1
            if self._settling <= self._options.max_calls // 2:
                self._connection.resume(SETTLING)
        if self._finishing or self._draining:
            self._connection.guard(self._look_for_end)


def _error_reply(id: int, error: Exception) -> bytes:
    """An ERROR frame for a request. Errors that are not the client's are logged, too."""
    if not isinstance(error, RunnelError):
        log.error("the server failed at a request", exc_info=error)
    return error_frame(id, error)


# -- Publishes in flight ---------------------------------------------------------------------------------
# The session that waits for one, its weight in bytes, and how it is withdrawn.


class PublishWaiter(Protocol):
    """Waits for the outcome of publishes: the session."""

    def published(self, publish: PendingPublish, result: Span | Exception | None) -> None:
        """A publish has finished; None: the client does not get an answer."""


class PendingPublish:
    """A publish in flight. The packed publisher calls it with the outcome."""

    __slots__ = ("_answer", "_session", "id", "size", "waiting")

    def __init__(self, session: PublishWaiter, id: int, size: int) -> None:
        self._session: PublishWaiter | None = session
        self.id, self.size = id, size
        self.waiting: WaitingPublish | None = None  # it can be withdrawn
        self._answer: RunnelError | EllipsisType | None = ...  # to the client, if it could be withdrawn

    @property
    def is_waiting(self) -> bool:
        """Whether it waits, and none of it is known to be written."""
        return self.waiting is not None and self.waiting.is_waiting

    def __call__(self, result: Span | Exception) -> None:
        """It has finished."""
        session, self._session = self._session, None
        if session is not None:
            withdrawn = self._answer is not ... and isinstance(result, PublishCancelled)
            session.published(self, self._answer if withdrawn else result)  # type: ignore[arg-type]  # not the ellipsis

    def withdraw(self, answer: RunnelError | None = None) -> None:
        """Withdraw it and answer `answer` (None: nothing). If it is too late, the answer is the outcome."""
        if self._session is None or self._answer is not ...:
            return
        self._answer = answer
        if self.waiting is None or self.waiting.withdraw():
            self(PublishCancelled())

    def abandon(self) -> None:
        """The client disconnected: withdraw it if that is still possible."""
        session, self._session = self._session, None
        if session is not None:
            session.published(self, None)
            if self.waiting is not None:
                self.waiting.withdraw()
