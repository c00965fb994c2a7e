"""The session of a NATS client: what its operations do to the broker.

Subjects are topics. One that is declared durable is on disk, one without a topic becomes a topic in memory, and inboxes
are no topics (`live`). `handle` does an operation at once, or returns an awaitable: then the next operation waits.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from runnel.core.backend import OutgoingRequest, TopicUse
from runnel.core.batch import Slice
from runnel.core.batch_format import pack
from runnel.core.columns import Columns
from runnel.core.errors import (
    Full,
    InvalidName,
    InvalidOption,
    InvalidPattern,
    LimitExceeded,
    NoResponders,
    NotAuthorized,
    NotSupported,
    OffsetConflict,
    ProtocolError,
    RequestTimeout,
    RunnelError,
    TopicConflict,
    TopicDeleted,
)
from runnel.core.lone_record import pack_lone
from runnel.core.options import TopicOptions
from runnel.core.pattern import matches
from runnel.core.position import Span
from runnel.core.publishing import PublishDetails, checked_record
from runnel.core.record import INBOX, NATS_INBOX, REPLY_TO
from runnel.runtime.waiting import resolve_waiter
from runnel.server.access.guard import GuardedBackend
from runnel.server.limited_log import LimitedLog
from runnel.server.nats.headers import PublishHeaders, head_of, read_publish_headers
from runnel.server.nats.live import LiveSubjects, is_live, may_be_live, may_be_topics
from runnel.server.nats.subscription import NatsOutlet, NatsSubscription
from runnel.server.nats.traffic import Traffic
from runnel.wire import nats

if TYPE_CHECKING:
    from runnel.server.nats.memory_topics import MemoryTopics
    from runnel.server.served_broker import ServedBroker

MAX_OWN = 1024  # stretches of its own records that a client without echo is spared, of each topic
MAX_OWN_TOPICS = 4096  # topics of which that is known
MAX_TOKENS = 128  # of a subject that is subscribed to; names of topics have no more
MAX_TARGETS = 1024  # subjects whose topics are kept at hand
REQUEST_SECONDS = 120.0  # for which the reply to a request is waited for at a server behind this one
NO_RESPONDERS = nats.headers((), "503")
PUMP_AFTER = 256  # records published after which subscriptions have their turn

_NO_HEADERS = PublishHeaders(None)
_IN_MEMORY = {"durable": False}
_SUBJECT = re.compile(r"[^.]+(?:\.[^.]+)*")

log = logging.getLogger("runnel")
_lost = LimitedLog(log)


class SessionOutlet(NatsOutlet, Protocol):
    """The connection, as its session needs it."""

    def refuse(self, error: RunnelError) -> None:
        """Send the error, and close."""

    def pump_all(self) -> None:
        """Have all subscriptions of this listener that have something send it now."""

    def answered(self, size: int) -> None:
        """A publish of so many bytes was answered; below 0: one is waited for."""


class ClientOptions(msgspec.Struct, frozen=True):
    """The fields of CONNECT that matter here; others are ignored."""

    verbose: bool = True
    pedantic: bool = True
    echo: bool = True
    headers: bool = False
    no_responders: bool = False
    tls_required: bool = False
    name: str | None = None
    lang: str | None = None
    version: str | None = None
    user: str | None = None
    password: str | None = msgspec.field(name="pass", default=None)
    auth_token: str | None = None
    jwt: str | None = None

    @property
    def credential(self) -> str:
        """The token that it logs in with, in whichever field."""
        return self.auth_token or self.password or self.jwt or self.user or ""


def read_options(said: nats.Connect) -> ClientOptions:
    """The options of a CONNECT."""
    try:
        return msgspec.convert(said.fields, ClientOptions, strict=False)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"CONNECT: {error}") from None


class Target(NamedTuple):
    """Where publishes to a subject go. `put`: publishes without waiting; None: each is packed, and answered."""

    live: bool
    durable: bool = False
    made: bool = False  # a topic in memory that NATS clients made
    options: dict[str, Any] | None = None
    put: Callable[..., None] | None = None


_LIVE = Target(True)


class NatsSession:
    """One client: its subscriptions, and its publishes that are not answered."""

    def __init__(
        self,
        serving: ServedBroker,
        outlet: SessionOutlet,
        live: LiveSubjects,
        made: MemoryTopics,
        traffic: Traffic,
        client: int,
    ) -> None:
        self._serving, self._outlet, self._live, self._made = serving, outlet, live, made
        self._traffic = traffic
        self.client = client
        self.options = ClientOptions()
        self.subscriptions: dict[str, NatsSubscription] = {}
        self.requests: set[asyncio.Task[Any]] = set()  # at a server behind this one, and ends of groups
        self.unanswered = 0  # publishes that are being stored
        self._targets: dict[str, Target] = {}
        self._own: dict[str, deque[Span]] = {}  # without echo: where lies what it published
        self._root = serving.backend  # of the server, which may look at groups
        self._drained: asyncio.Future[None] | None = None  # done when every publish is answered
        self._stored = False  # whether it published to a durable topic since the last PONG
        self._published = 0
        self._now = asyncio.get_running_loop().time
        self._adopt(serving)

    def _adopt(self, serving: ServedBroker) -> None:
        self._serving, self._broker, self._backend = serving, serving.broker, serving.backend
        self._guard = self._backend if isinstance(self._backend, GuardedBackend) else None
        self._publisher = serving.publisher.for_client()

    def adopt(self, serving: ServedBroker) -> None:
        """The client has logged in: `serving` is what it may use."""
        self._publisher.release()
        self._adopt(serving)

    def lost(self) -> None:
        """The client disconnected."""
        self.end_subscriptions()
        self._publisher.release()

    def end_subscriptions(self) -> None:
        """Send nothing more."""
        for subscription in list(self.subscriptions.values()):
            self._drop(subscription)

    # -- operations ---------------------------------------------------------------------------------------------

    def handle(self, operation: nats.Operation) -> Awaitable[None] | None:
        """Do one operation; the next one has to wait for the result, if there is one."""
        kind = operation.__class__
        if kind is nats.Publish:
            waits = self._publish(operation)  # type: ignore[arg-type]
        elif kind is nats.Subscribe:
            waits = self._subscribe(operation)  # type: ignore[arg-type]
        elif kind is nats.Unsubscribe:
            waits = self._unsubscribe(operation)  # type: ignore[arg-type]
        elif operation is nats.PING_SIGNAL:
            return self._ping()
        elif kind is nats.Message:
            raise ProtocolError("a client does not send MSG")
        elif kind is nats.Connect:  # once more: who the client is does not change
            self.options, waits = read_options(operation), None  # type: ignore[arg-type]
        else:
            return None  # PONG, and what a server says
        if self.options.verbose:
            if waits is not None:
                return self._then_ok(waits)
            self._outlet.write(nats.OK)
        return waits

    async def _then_ok(self, waits: Awaitable[None]) -> None:
        await waits
        self._outlet.write(nats.OK)

    def _ping(self) -> Awaitable[None] | None:
        """PONG confirms all earlier input. Publishes to durable topics are on disk."""
        if self._stored or self.unanswered:
            self._stored = False
            return self._pong_when_stored()
        self._outlet.pump_all()  # what it published itself reaches its own subscriptions before the PONG
        self._outlet.write(nats.PONG)
        return None

    async def _pong_when_stored(self) -> None:
        try:
            await self._backend.flushed()
            await self.all_answered()
        except RunnelError as error:
            _lost.warning("records of NATS connection %d may be lost: %s", self.client, error)
        self._outlet.pump_all()
        self._outlet.write(nats.PONG)

    async def all_answered(self) -> None:
        """Return when every publish has an outcome."""
        if self.unanswered:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._drained])

    # -- publishing ---------------------------------------------------------------------------------------------

    def _publish(self, message: nats.Publish, *, again: bool = False) -> Awaitable[None] | None:
        subject, reply, head, payload = message
        traffic = self._traffic
        traffic.in_msgs += 1
        traffic.in_bytes += len(payload)
        if self.options.pedantic and not _is_literal(subject):
            self._outlet.write(nats.failure("Invalid Publish Subject"))
            return None
        target = self._targets.get(subject)
        if target is None:
            if not is_live(subject) and self._backend.is_remote:
                return self._publish_remotely(message)
            target = self._target(subject)
        try:
            if reply is not None and self._guard is not None:
                self._guard.check_reply(reply)
            if target.live:
                self._publish_live(message)
                return None
            if reply is None and head is None and target.put is not None and self.options.echo:
                target.put(payload)
                self._note(subject, target, len(payload))
                return None
            return self._publish_record(target, message)
        except Full:
            return self._publish_packed(target, message, _NO_HEADERS, waits=True)
        except (TopicConflict, TopicDeleted) as error:  # it was made anew, as something else
            self._targets.pop(subject, None)
            if again:
                self._refused(message, error)
                return None
            return self._publish(message, again=True)
        except RunnelError as error:
            self._refused(message, error)
            return None

    def _target(self, subject: str) -> Target:
        """Where publishes to a subject go, in this process."""
        if is_live(subject):
            found = _LIVE
        else:
            use = self._backend.topic_use(subject) or TopicUse(True, durable=self._backend.is_durable, read=True)
            made = not use.durable and (not use.exists or subject in self._made)
            options = _IN_MEMORY if made else None
            put = self._broker.topic(subject, durable=False if made else None).publish_nowait
            found = Target(False, use.durable, made, options, put)
        self._keep(subject, found)
        return found

    def _keep(self, subject: str, target: Target) -> None:
        if len(self._targets) >= MAX_TARGETS:
            self._targets.clear()
        self._targets[subject] = target

    async def _publish_remotely(self, message: nats.Publish) -> None:
        """Ask the server behind this one what the topic is, and publish."""
        subject = message.subject
        try:
            found = await self._backend.describe(subject)
            is_durable, options = self._backend.is_durable, None
            if found is None and is_durable:
                try:
                    self._backend.writer(subject, None, TopicOptions(durable=False))
                    is_durable, options = False, _IN_MEMORY
                except NotSupported:
                    pass  # a cluster has no topics in memory
            elif found is not None:
                is_durable = is_durable and found.get("durable") is not False
            self._keep(subject, Target(False, is_durable, False, options, None))
            waits = self._publish(message)
        except RunnelError as error:
            self._refused(message, error)
            return
        if waits is not None:
            await waits

    def _note(self, subject: str, target: Target, size: int) -> None:
        """Something was published without waiting."""
        if target.durable:
            self._stored = True
        elif target.made:
            self._made.used(subject, self._now(), size)
        self._published += 1
        if self._published >= PUMP_AFTER:
            self._published = 0
            self._outlet.pump_all()

    def _publish_live(self, message: nats.Publish) -> None:
        subject, reply, head, payload = message
        if subject.startswith(INBOX):
            self._reply(subject, head, payload)
            return
        if self._guard is not None:
            self._guard.publish_live(subject, len(payload))
        but = None if self.options.echo else self
        if not self._live.deliver(subject, reply, head, payload, but) and reply is not None:
            self._no_responders(reply)

    def _reply(self, inbox: str, head: bytes | None, payload: bytes) -> None:
        """Reply to a request that came through another listener."""
        headers = None if head is None else read_publish_headers(head).headers
        self._later(self._backend.reply(_Request("", inbox, ""), payload, headers))

    def _later(self, work: Any) -> None:
        if len(self.requests) >= self._serving.options.max_calls:
            work.close()
            raise LimitExceeded("max_calls", len(self.requests) + 1, self._serving.options.max_calls)
        task = asyncio.ensure_future(work)
        self.requests.add(task)
        task.add_done_callback(self._request_done)

    def _request_done(self, task: asyncio.Task[Any]) -> None:
        self.requests.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, RunnelError):
                raise error
            _lost.warning("a reply of NATS connection %d is lost: %s", self.client, error)

    def _publish_record(self, target: Target, message: nats.Publish) -> Awaitable[None] | None:
        """Publish a message that is a request, has headers, or may not be echoed."""
        subject, reply, head, payload = message
        said = _NO_HEADERS if head is None else read_publish_headers(head)
        is_answered = target.durable and reply is not None
        if reply is not None and not is_answered:
            if target.put is None and is_live(reply):
                self._later(self._asked(message, said))  # the server behind this one has the inbox
                return None
            use = self._backend.topic_use(subject)
            if use is not None and not use.read:
                self._no_responders(reply)
                if not use.exists:
                    return None
            address = f"{NATS_INBOX}{reply}" if is_live(reply) else reply
            said = said._replace(headers={**(said.headers or {}), REPLY_TO: address})
        if is_answered or target.put is None or said.expected_offset is not None or not self.options.echo:
            return self._publish_packed(target, message, said, waits=False)
        try:
            target.put(payload, said.key, said.headers, None, said.expires, 0, said.message_id)
        except Full:
            return self._publish_packed(target, message, said, waits=True)
        self._note(subject, target, len(payload))
        return None

    async def _asked(self, message: nats.Publish, said: PublishHeaders) -> None:
        assert message.reply is not None
        try:
            asked = OutgoingRequest(message.subject, message.payload, REQUEST_SECONDS, said.key, said.headers)
            reply = await self._backend.request(asked)
        except NoResponders:
            self._no_responders(message.reply)
        except RequestTimeout:
            pass
        except RunnelError as error:
            self._refused(message, error)
        else:
            _, head = head_of(reply.headers, reply.key)
            self._live.deliver(message.reply, None, head, reply.value)

    def _no_responders(self, reply: str) -> None:
        if not (self.options.no_responders and self.options.headers):
            return
        if is_live(reply):
            self._live.deliver(reply, None, NO_RESPONDERS, b"")
            return
        for subscription in self.subscriptions.values():  # an inbox under a prefix of the client's own is a topic
            if subscription.is_open and matches(subscription.pattern, reply):
                subscription.deliver(reply, None, NO_RESPONDERS, b"")
                return

    def _publish_packed(
        self, target: Target, message: nats.Publish, said: PublishHeaders, *, waits: bool
    ) -> Awaitable[None] | None:
        """Publish, and be called back with the position. `waits`: the next operation waits for that."""
        subject, _, _, payload = message
        if said is _NO_HEADERS:
            data, details = pack_lone(payload), None
        else:
            _, columns, _, _ = checked_record(
                subject, None, payload, said.key, said.headers, None, said.expires, now=self._broker.clock.time()
            )
            data, details = pack((payload,), columns or Columns()) if columns else pack_lone(payload), None
        if target.options or said.message_id is not None or said.expected_offset is not None:
            details = PublishDetails(
                message_id=said.message_id, expected_offset=said.expected_offset, options=target.options
            )
        waiter: asyncio.Future[None] | None = None
        outlet, size = self._outlet, len(data)
        is_done = False

        def done(outcome: Span | Exception) -> None:
            nonlocal is_done
            is_done = True
            self.unanswered -= 1
            outlet.answered(size)
            if self._drained is not None and not self.unanswered:
                resolve_waiter(self._drained)
                self._drained = None
            if waiter is not None:
                resolve_waiter(waiter)
            self._done(target, message, outcome)

        self.unanswered += 1
        outlet.answered(-size)
        waiting = self._publisher.publish(subject, data, details, done)
        self._note(subject, target, size)
        if is_done:
            return None
        if waits or (waiting is not None and waiting.is_waiting and target.put is not None):
            waiter = asyncio.get_running_loop().create_future()
        return waiter

    def _done(self, target: Target, message: nats.Publish, outcome: Span | Exception) -> None:
        """A packed publish has an outcome: a durable one with a reply subject is answered."""
        if isinstance(outcome, TopicConflict | TopicDeleted):
            self._targets.pop(message.subject, None)
        if isinstance(outcome, Exception):
            self._refused(message, outcome)
            return
        first, last = outcome
        if not self.options.echo and self.subscriptions:
            own = self._own_spans(message.subject)
            if own and own[-1].last.epoch == first.epoch and own[-1].last.offset + 1 == first.offset:
                own[-1] = Span(own[-1].first, last)
            else:
                own.append(outcome)
        if target.durable and message.reply is not None:
            fields = {"stream": message.subject, "seq": first.offset + 1, "offset": first.offset, "epoch": first.epoch}
            self._answer(message.reply, fields)

    def _own_spans(self, topic: str) -> deque[Span]:
        found = self._own.get(topic)
        if found is None:
            if len(self._own) >= MAX_OWN_TOPICS:
                del self._own[next(iter(self._own))]
            found = self._own[topic] = deque(maxlen=MAX_OWN)
        return found

    def _answer(self, reply: str, fields: dict[str, Any]) -> None:
        payload = msgspec.json.encode(fields)
        if is_live(reply):
            self._live.deliver(reply, None, None, payload)
        else:
            self._publish(nats.Publish(reply, None, None, payload))

    def _refused(self, message: nats.Publish, error: Exception) -> None:
        """A publish failed: a requester is answered, and others learn of what they may not do."""
        if isinstance(error, NotAuthorized):
            self._outlet.write(nats.failure(f'Permissions Violation for Publish to "{message.subject}"'))
            return
        if message.reply is not None:
            self._answer(message.reply, _failed(message, error))
        else:
            _lost.warning("a publish of NATS connection %d to %r failed: %s", self.client, message.subject, error)

    # -- subscribing --------------------------------------------------------------------------------------------

    def _subscribe(self, asked: nats.Subscribe) -> Awaitable[None] | None:
        subject, queue, sid = asked
        outlet = self._outlet
        if sid in self.subscriptions:
            return None
        if not _is_subject(subject) or (queue is not None and not _is_subject(queue)):
            outlet.write(nats.failure("Invalid Subject"))
            return None
        if len(self.subscriptions) >= self._serving.options.max_subscriptions:
            outlet.write(nats.failure("maximum subscriptions exceeded"))
            return None
        subscription = NatsSubscription(self, outlet, self._traffic, sid, subject, queue, self._over)
        subscription.shows_headers = self.options.headers
        if not self.options.echo:
            subscription.own = self._own_of
        self.subscriptions[sid] = subscription
        try:
            if may_be_live(subject):
                if self._guard is not None:
                    self._guard.subscribe_live(subscription, subject)
                self._live.add(subject, subscription)
                subscription.is_live = True
            if not may_be_topics(subject):
                return None
            entering = subscription.read(self._backend, self._root, lags=self._lags(subject))
        except RunnelError as error:
            self._not_subscribed(subscription, error)
            return None
        return None if entering is None else self._entered(subscription, entering)

    def _lags(self, pattern: str) -> bool:
        """Whether its topics are durable: then records that a client is slow to read stay on disk."""
        if "*" in pattern or ">" in pattern:
            return self._backend.is_durable
        use = self._backend.topic_use(pattern)
        return use is None or use.durable

    async def _entered(self, subscription: NatsSubscription, entering: Awaitable[None]) -> None:
        try:
            await entering
        except RunnelError as error:
            self._not_subscribed(subscription, error)

    def _not_subscribed(self, subscription: NatsSubscription, error: RunnelError) -> None:
        self._drop(subscription)
        if isinstance(error, InvalidName | InvalidOption | InvalidPattern):
            self._outlet.write(nats.failure("Invalid Subject"))  # no queue group can be called that
        elif isinstance(error, NotAuthorized):
            using = "" if subscription.queue is None else f' using queue "{subscription.queue}"'
            self._outlet.write(
                nats.failure(f'Permissions Violation for Subscription to "{subscription.pattern}"{using}')
            )
        else:
            self._outlet.refuse(error)

    def _unsubscribe(self, asked: nats.Unsubscribe) -> Awaitable[None] | None:
        subscription = self.subscriptions.get(asked.sid)
        if subscription is None:
            return None
        self._outlet.pump_all()  # earlier publishes reach it
        if not asked.limit or subscription.limit(asked.limit):
            self._drop(subscription)
        return None

    def _over(self, subscription: NatsSubscription) -> None:
        """A subscription has sent all it was to send, or may not or cannot read on."""
        error = subscription.error
        if isinstance(error, TopicDeleted) and subscription.sid in self.subscriptions:
            self._drop(subscription)
            self._resubscribe(subscription)
        elif error is not None:
            self._not_subscribed(subscription, error)
        else:
            self._drop(subscription)

    def _resubscribe(self, ended: NatsSubscription) -> None:
        """The topic was deleted. NATS clients do not see that: continue with the next topic of this name."""
        waits = self._subscribe(nats.Subscribe(ended.pattern, ended.queue, ended.sid))
        if ended.left is not None and (again := self.subscriptions.get(ended.sid)) is not None:
            again.limit(ended.left)
        if waits is not None:
            self._later(waits)

    def _drop(self, subscription: NatsSubscription) -> None:
        if self.subscriptions.pop(subscription.sid, None) is None:
            return
        if subscription.is_live:
            self._live.remove(subscription.pattern, subscription)
        subscription.leave()
        if subscription.has_joined:  # else the group is that of others
            task = asyncio.ensure_future(subscription.forget_group(self._backend))
            self.requests.add(task)
            task.add_done_callback(self.requests.discard)

    def _own_of(self, part: Slice) -> set[int]:
        """The offsets in a slice of what this client published itself, which has echo off."""
        found: set[int] = set()
        for first, last in self._own.get(part.topic, ()):
            if first.epoch == part.epoch:
                found.update(range(max(first.offset, part.start), min(last.offset + 1, part.end)))
        return found


class _Request(NamedTuple):
    """The request that a reply answers, if it is known here."""

    topic: str
    reply_to: str | None
    traceparent: str


def _failed(message: nats.Publish, error: Exception) -> dict[str, Any]:
    """The answer to a publish that failed, as JetStream clients read it."""
    if isinstance(error, OffsetConflict):
        found = {"code": 400, "err_code": 10071, "description": f"wrong last sequence: {error.actual}"}
    elif isinstance(error, RunnelError):
        found = {"code": 503, "err_code": 10077, "description": f"{error.code}: {error}"}
    else:
        log.error("the server failed at a publish of a NATS connection", exc_info=error)
        found = {"code": 500, "err_code": 10077, "description": "the server failed; its log says why"}
    return {"error": found, "stream": message.subject, "seq": 0}


def _is_subject(text: str) -> bool:
    """Whether a subject may be subscribed to: no empty token, `>` only as the last one, and not too many."""
    return _SUBJECT.fullmatch(text) is not None and ">" not in text.split(".")[:-1] and text.count(".") < MAX_TOKENS


def _is_literal(subject: str) -> bool:
    """Whether a subject may be published to by a client that wants an answer."""
    return _SUBJECT.fullmatch(subject) is not None and not {"*", ">"} & set(subject.split("."))
