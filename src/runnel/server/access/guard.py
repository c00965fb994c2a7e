"""The guard: the backend as one peer sees it. Every operation of the port checks the peer's `Access` first.

A listener that serves a peer gets a broker over this backend and nothing else, so no listener can forget a check. The
guard refuses every operation that it does not know. Readers, members and leases are passed on unchanged: reading costs
nothing more. A publish costs one look at a set.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import TYPE_CHECKING, Any

from runnel.api.topic import Topic
from runnel.core import dead_letter
from runnel.core.backend import (
    DeadLetterPage,
    DeadLetterTopic,
    Done,
    GroupVerb,
    HistoryPage,
    Member,
    OutgoingRequest,
    PackedPublisher,
    Reader,
    ReplyRoute,
    RequestRecord,
    StageRun,
    TopicUse,
    WaitingPublish,
    Writer,
)
from runnel.core.batch_format import unpack_untrusted
from runnel.core.columns import HEADERS
from runnel.core.errors import LimitExceeded, NameOwned, NotAuthorized, NotSupported, RunnelError
from runnel.core.options import SubscribeOptions, TopicOptions
from runnel.core.position import Position, Start
from runnel.core.publishing import Append, PublishDetails
from runnel.core.record import INBOX, NATS_INBOX, REPLY_TO, Record
from runnel.core.stages import StageInfo, StageKey
from runnel.core.statistics import ARCHIVE
from runnel.core.transaction import TransactionRequest
from runnel.security.policy import GATEWAY
from runnel.security.principal import ConsoleRole

if TYPE_CHECKING:
    from runnel.core.backend import Backend, MixedStageWriter, StageWriter
    from runnel.core.clock import Clock
    from runnel.core.markers import MarkerValue
    from runnel.core.presence import Present
    from runnel.core.replication import FollowReply, FollowRequest, Generation, Replication
    from runnel.core.schema import Codec, Schema
    from runnel.core.statistics import (
        BackendSample,
        GroupStatistics,
        HandlerStatistics,
        PipelineStatistics,
        RelayStatistics,
        ReplicationStatistics,
        Statistics,
    )
    from runnel.core.topic_bounds import TopicBounds, TopicFloors
    from runnel.server.access.access import Access

ACCESS_MARKERS = "$access/"  # what servers keep of logins: see `control` and `owners`
MAX_PRODUCERS = 1024  # of one peer that are remembered
_COLUMNS_AT, _COUNT_AT = 6, 8  # bytes of a batch's header
_RAW_LENGTH = slice(16, 20)
_LOOK = Struct("<H12xQ").unpack_from  # its columns, and the number of its producer
_LETTERS_PER_PAGE = 1000


class GuardedBackend:
    """A backend for one peer. See `core.backend.Backend`; a method says only what it allows."""

    def __init__(self, backend: Backend, access: Access, publisher: Callable[[], PackedPublisher]) -> None:
        self._backend, self._access, self._publisher = backend, access, publisher
        self.clock: Clock = backend.clock
        self.loop_owner = backend.loop_owner

    @property
    def inner(self) -> Backend:
        """The backend behind it."""
        return self._backend

    # -- what everyone may know ---------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The broker's id."""
        return self._backend.id

    @property
    def origin(self) -> str:
        """The broker's origin."""
        return self._backend.origin

    @property
    def is_durable(self) -> bool:
        """Whether its topics are durable."""
        return self._backend.is_durable

    @property
    def is_remote(self) -> bool:
        """Whether its topics are on another server."""
        return self._backend.is_remote

    @property
    def summary(self) -> str:
        """Its location and state, and the principal."""
        return f"{self._backend.summary} for {self._access.principal.name!r}"

    @property
    def fsync(self) -> str | None:
        """The `fsync` option of the journal."""
        return self._backend.fsync

    @property
    def connection(self) -> Any:
        """The state of the connection to another server."""
        return self._backend.connection

    @property
    def replication(self) -> GuardedReplication | None:
        """Its part in a warm standby, which is for admins."""
        found = self._backend.replication
        return None if found is None else GuardedReplication(found, self._access)

    def check_usable(self, doing: str) -> None:
        """Raise unless it is open."""
        self._backend.check_usable(doing)

    def check_ready(self, doing: str) -> None:
        """Raise unless it is open and connected."""
        self._backend.check_ready(doing)

    async def open(self) -> GuardedBackend:
        """It is open: the server's own."""
        return self

    def close(self) -> None:
        """A peer does not close the backend of its server."""

    async def aclose(self) -> None:
        """A peer does not close the backend of its server."""

    async def flushed(self) -> None:
        """Return when all earlier changes are durable."""
        await self._backend.flushed()

    async def synced(self) -> None:
        """Return when all earlier changes are synced."""
        await self._backend.synced()

    def has_topic(self, topic: str) -> bool | None:
        """Whether there is such a topic, if the principal may see it."""
        return self._backend.has_topic(topic) if self._access.sees(topic) else False

    def topic_use(self, topic: str) -> TopicUse | None:
        """Of any topic: whether a publish is kept and read is for the publisher to know, and no more than that."""
        return self._backend.topic_use(topic)

    def reclaim(self, topic: str) -> bool:
        """The server alone reclaims topics."""
        return False

    # -- reading ------------------------------------------------------------------------------------------------

    def reader(
        self,
        pattern: str | Sequence[str],
        options: SubscribeOptions,
        wake: Callable[[], None],
        resume: Position | int | None = None,
        until: int | None = None,
        *,
        far: bool = False,
    ) -> Reader:
        """With the right to subscribe to every pattern; with `partial`, to what it may of them."""
        access = self._access
        asked = (pattern,) if isinstance(pattern, str) else tuple(pattern)
        patterns = access.readable(asked, options)
        self._check_dead_letter(options.dead_letter)
        chosen: str | Sequence[str] = pattern if patterns == asked else patterns
        made = self._backend.reader(chosen, options, wake, resume, until, far=far)
        made.principal = access.principal.name
        if options.name is not None:
            self._claim_first(made, "subscription", options.name)
        access.opened(made, "subscribe", patterns)
        return made

    def member(self, pattern: str, options: SubscribeOptions, wake: Callable[[], None]) -> Member:
        """With the right to join groups of the pattern."""
        access = self._access
        access.readable((pattern,), options)
        self._check_dead_letter(options.dead_letter)
        made = self._backend.member(pattern, options, wake)
        made.principal = access.principal.name
        self._claim_first(made, "group", f"{options.group} {pattern}")
        access.opened(made, "group", (pattern,))
        return made

    def _claim_first(self, made: Any, kind: str, name: str) -> None:
        """Have the name claimed when the subscription is entered, if it is not known to be the principal's.

        An administrator may use the name of another: that is an admin action.
        """
        access = self._access
        owners = access.control.owners
        if owners.is_of_another(kind, name, access.principal):
            if not access.may("admin", ">"):
                access.refuse(kind, name, NameOwned(kind, name, access.principal.name))
        elif owners.is_known(kind, name, access.principal):
            return
        enter: Callable[[], Awaitable[None] | None] = made.enter

        async def claimed() -> None:
            try:
                if kind == "group":
                    self._count_group(name)
                await owners.claim(kind, name, access.principal)
            except NameOwned:
                if not access.may("admin", ">"):
                    raise
                await access.control.audited(access, f"{kind} of another", name)
            if (standing := enter()) is not None:
                await standing

        made.enter = claimed

    def _count_group(self, name: str) -> None:
        """The principal makes a group, unless it has it already."""
        access = self._access
        principal, owners = access.principal, access.control.owners
        if owners.is_known("group", name, principal):
            return
        for usage in access.usages:
            own = usage.limits.groups is not None and usage is access.usages[0]
            try:
                usage.check_count("groups", owners.count("group", principal.owner) if own else len(usage.groups))
            except LimitExceeded as error:
                access.refuse("group", name, error)
        for usage in access.usages[1:]:
            usage.note_made("groups", name)

    def _check_dead_letter(self, topic: str | None) -> None:
        """A subscriber that names a topic for dead letters needs the right to publish there."""
        if topic is not None:
            self._access.check("publish", topic)

    async def history(self, topic: str, start: Start, limit: int, max_bytes: int) -> HistoryPage:
        """With the right to subscribe."""
        self._access.readable((topic,), _PLAIN)
        return await self._backend.history(topic, start, limit, max_bytes)

    async def bounds(
        self,
        patterns: Sequence[str],
        time: datetime | None = None,
        sequence: int | None = None,
        *,
        history: bool = True,
    ) -> list[TopicBounds]:
        """Of the topics that the principal may see."""
        found = await self._backend.bounds(patterns, time, sequence, history=history)
        return [one for one in found if self._access.sees(one.topic)]

    async def confirm_archived(self, positions: Mapping[str, Position]) -> list[TopicFloors]:
        """With admin rights on the topics: confirmed records may leave the journal."""
        for topic in positions:
            await self._access.admin("confirm_archived", topic)
        return await self._backend.confirm_archived(positions)

    async def floors(self, patterns: Sequence[str]) -> list[TopicFloors]:
        """Of the topics that the principal may see."""
        return [one for one in await self._backend.floors(patterns) if self._access.sees(one.topic)]

    async def topics(self) -> list[str]:
        """Those that the principal may see."""
        return [topic for topic in await self._backend.topics() if self._access.sees(topic)]

    async def describe(self, topic: str) -> dict[str, Any] | None:
        """Of a topic that the principal may see."""
        return await self._backend.describe(topic) if self._access.sees(topic) else None

    async def end_sequence(self) -> int:
        """The sequence after the last visible record: a number, and no more."""
        return await self._backend.end_sequence()

    # -- writing ------------------------------------------------------------------------------------------------

    @property
    def fast_path(self) -> type:
        """No shorter way: each publish is checked."""
        return GuardedFastPath

    def writer(self, topic: str, codec: Codec[Any] | None, options: TopicOptions) -> Writer:
        """A writer that checks each append."""
        return GuardedWriter(self, self._backend.writer(topic, codec, options))  # type: ignore[return-value]

    def check_publish(self, topic: str, options: TopicOptions | Mapping[str, Any] | None = None) -> None:
        """Raise unless the principal may publish there now, and create the topic if there is none."""
        access = self._access
        access.check("publish", topic)
        try:
            for usage in access.usages:
                usage.check_storage()
        except LimitExceeded as error:
            access.refuse("publish", topic, error)
        said = options.given() if isinstance(options, TopicOptions) else options or {}
        self._check_dead_letter(said.get("dead_letter"))
        if not access.control.knows_topic(topic):
            access.check("create", topic)
            access.control.created(access, topic)
        elif said.get("dead_letter") is None and not any(usage.limits.storage_bytes for usage in access.usages):
            access.publishable.add(topic)

    def check_headers(self, headers: Iterable[Mapping[str, str] | None]) -> None:
        """A topic that is named for a reply is published to by the responder, for the principal that named it."""
        for one in headers:
            if one is not None and (target := one.get(REPLY_TO)) is not None:
                self.check_reply(target)

    async def paid(self, size: int, records: int, *topics: str) -> None:
        """Count a publish to `topics`, and wait as its size requires: the right may be revoked meanwhile."""
        access = self._access
        if (wait := access.pay(size, records, self.clock.time())) > 0:
            await asyncio.sleep(wait)
            if access.ended is not None:
                raise access.ended
            for topic in topics:
                access.check("publish", topic)

    def paid_later(self, size: int, records: int) -> None:
        """Count a publish; the listener reads nothing more for as long as its size asks for."""
        access = self._access
        if (wait := access.pay(size, records, self.clock.time())) > 0 and access.on_slow is not None:
            access.on_slow(wait)

    def packed_publisher(self) -> GuardedPublisher:
        """A publisher that checks each batch."""
        return GuardedPublisher(self, self._access, self._publisher())

    def producer(self, id: int, *, named: bool) -> Any:
        """Peers number their own batches."""
        raise NotSupported("a producer of a listener", "its clients number their batches themselves")

    async def producer_next(self, producer: int) -> int | None:
        """For a producer that belongs to no other principal, with the right to publish anything."""
        access = self._access
        self._check_some("publish")
        await access.control.owners.claim("producer", str(producer), access.principal)
        return await self._backend.producer_next(producer)

    def stage(self, writer: Any, key: StageKey) -> StageWriter:
        """With the right to publish to its topic; its writer's name is the principal's."""
        inner = writer.inner if isinstance(writer, GuardedWriter) else writer
        self.check_publish(inner.topic)
        return GuardedStage(self, key.writer, self._backend.stage(inner, key))  # type: ignore[return-value]

    def mixed_stage(self, key: StageKey) -> MixedStageWriter:
        """With the right to publish to each topic that is written; its writer's name is the principal's."""
        self._check_some("publish")
        inner: Any = self._backend.mixed_stage(key)
        return GuardedMixedStage(self, key.writer, inner)  # type: ignore[return-value]

    async def commit(self, request: TransactionRequest) -> None:
        """With the right to publish to each topic, and markers and stages that are the principal's."""
        try:
            for planned in request.publishes:
                self.check_publish(planned.writer.topic, planned.writer.options)
                columns = planned.append.columns
                if columns is not None and HEADERS in columns:
                    self.check_headers(columns[HEADERS])
            for name in request.markers:
                await self._check_marker(name)
            for key in request.stages:
                await self.claim("stage", key.writer)
        except BaseException:
            request.forget()
            raise
        request.publishes[:] = [
            one._replace(writer=one.writer.inner) if isinstance(one.writer, GuardedWriter) else one
            for one in request.publishes
        ]
        size = sum(planned.append.size for planned in request.publishes)
        count = sum(len(planned.append.values) for planned in request.publishes) + len(request.markers)
        try:
            if count:
                await self.paid(size, count, *(planned.writer.topic for planned in request.publishes))
        except BaseException:
            request.forget()
            raise
        await self._backend.commit(request)

    def _check_some(self, *actions: str) -> None:
        """Raise unless the principal may do one of `actions` with some topic: others need no names."""
        if not any(map(self._access.may_some, actions)):
            self._access.check(actions[0], ">")

    async def _check_marker(self, name: str) -> None:
        if name.startswith("$"):
            self._check_internal(name)
        else:
            self._check_some("publish", "subscribe", "group", "admin")
            await self.claim("marker", name)

    def _check_internal(self, name: str) -> None:
        """Internal markers are for administrators; those of access control, with the key of sessions, for gateways.

        With that key an administrator of topics could make a session of anyone, and change its own rights.
        """
        access = self._access
        if name.startswith(ACCESS_MARKERS) and GATEWAY not in access.principal.roles:
            advice = "it is for servers over this one, whose token needs the role gateway: `--role gateway`"
            access.refuse("admin", name, NotAuthorized(access.principal.name, "use the marker", name, advice=advice))
        access.check("admin", ">")

    async def claim(self, kind: str, name: str) -> None:
        """Raise unless the name is the principal's from now on. An administrator may use the names of others."""
        access = self._access
        try:
            await access.control.owners.claim(kind, name, access.principal)
        except RunnelError as error:
            if not access.may("admin", ">"):
                access.refuse(kind, name, error)
            await access.control.audited(access, f"{kind} of another", name)

    # -- positions, markers, stages -----------------------------------------------------------------------------

    async def place(self, places: Mapping[str, tuple[str, Position | int]], hold: bool | None) -> None:
        """Of names that are the principal's, on topics that it may subscribe to."""
        for name, (topic, _) in places.items():
            for one in topic.split(" "):
                self._access.check("subscribe", one)
            await self.claim("subscription", name)
        await self._backend.place(places, hold)

    async def forget(self, name: str) -> None:
        """A name of its own, or with admin rights any."""
        await self._own_or_admin("forget a subscription", "subscription", name)
        await self._backend.forget(name)
        await self._access.control.owners.release("subscription", name)

    async def _own_or_admin(self, doing: str, kind: str, name: str, topic: str = ">") -> None:
        access = self._access
        try:
            if access.control.owners.is_known(kind, name, access.principal):
                return
        except RunnelError:
            pass
        access.check("admin", topic)
        await access.control.audited(access, doing, name)

    async def mark(self, name: str) -> MarkerValue | None:
        """Of a marker that belongs to no other principal."""
        access = self._access
        if name.startswith("$"):
            self._check_internal(name)
        elif access.control.owners.is_of_another("marker", name, access.principal):
            access.check("admin", ">")
        return await self._backend.mark(name)

    async def marks(self, prefix: str) -> dict[str, MarkerValue]:
        """Those that belong to no other principal."""
        access, found = self._access, await self._backend.marks(prefix)
        if access.may("admin", ">"):
            hidden = "$" if not prefix.startswith("$") else "" if GATEWAY in access.principal.roles else ACCESS_MARKERS
            return {n: v for n, v in found.items() if not hidden or not n.startswith(hidden)}
        owners, principal = access.control.owners, access.principal
        return {
            name: value
            for name, value in found.items()
            if not name.startswith("$") and not owners.is_of_another("marker", name, principal)
        }

    async def stages(self) -> list[StageInfo]:
        """Its own."""
        access, found = self._access, await self._backend.stages()
        if access.may("admin", ">"):
            return found
        owners = access.control.owners
        return [one for one in found if not owners.is_of_another("stage", one.writer, access.principal)]

    # -- admin actions ------------------------------------------------------------------------------------------

    async def delete(self, topic: str) -> None:
        """With admin rights on the topic."""
        await self._access.admin("delete", topic)
        await self._backend.delete(topic)
        await self._access.control.deleted(topic)

    async def configure(self, topic: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """With admin rights on the topic, and the right to publish to a topic that it names for dead letters."""
        await self._access.admin("configure", topic)
        self._check_dead_letter(changes.get("dead_letter"))
        return await self._backend.configure(topic, changes)

    async def trim(self, writer: Writer, before: int | datetime, *, force: bool) -> int:
        """With admin rights on the topic."""
        await self._access.admin("trim", writer.topic)
        return await writer.trim(before, force=force)

    def group(self, name: str, pattern: str) -> Any:
        """Listeners use `ask_group`."""
        raise NotSupported("a handle on a group at a listener", "it asks for each thing apart")

    async def ask_group(self, name: str, pattern: str, verb: GroupVerb, start: Start = None) -> GroupStatistics | None:
        """Figures: with the right to join, or to look. Pausing: as operator or admin. Resetting: as admin."""
        access = self._access
        if verb == "statistics":
            if access.principal.console < ConsoleRole.VIEWER:
                access.check("group", pattern)
        elif verb == "reset" or access.principal.console < ConsoleRole.OPERATOR:
            await access.admin(f"{verb} group {name}", pattern)
        else:
            await access.control.audited(access, f"{verb} group {name}", pattern)
        return await self._backend.ask_group(name, pattern, verb, start)

    async def forget_group(self, name: str, pattern: str) -> None:
        """A group of its own, or with admin rights any."""
        await self._own_or_admin("forget a group", "group", f"{name} {pattern}", pattern)
        await self._backend.forget_group(name, pattern)
        for usage in self._access.usages:
            usage.groups.pop(f"{name} {pattern}", None)
        await self._access.control.owners.release("group", f"{name} {pattern}")

    async def replay(self, topic: str, limit: int | None, where: Callable[[Record[bytes]], bool] | None) -> int:
        """With admin rights on the topic, and the right to publish where the letters go."""
        await self._admin_letters("replay dead letters", topic)
        if where is None and self._access.may("publish", ">"):
            return await self._backend.replay(topic, limit, None)
        if where is not None:
            raise NotSupported("replay with a function at a listener", "it runs in the process of the broker only")
        return await self._replay_checked(topic, None, limit)

    async def settle_dead_letters(self, topic: str, offsets: Sequence[int] | None, *, put_back: bool) -> int:
        """With admin rights on the topic; to replay, also the right to publish where the letters go."""
        await self._admin_letters("replay dead letters" if put_back else "discard dead letters", topic)
        if not put_back or self._access.may("publish", ">"):
            return await self._backend.settle_dead_letters(topic, offsets, put_back=put_back)
        return await self._replay_checked(topic, offsets, None)

    async def present(self, topic: str) -> list[Present]:
        """With the right to subscribe."""
        self._access.readable((topic,), _PLAIN)
        return await self._backend.present(topic)

    async def cancel(self, topic: str, message_id: str) -> None:
        """With the right to publish to the topic."""
        self._access.check("publish", topic)
        await self._backend.cancel(topic, message_id)

    async def _admin_letters(self, doing: str, topic: str) -> None:
        access = self._access
        if access.principal.console >= ConsoleRole.OPERATOR:
            await access.control.audited(access, doing, topic)
        else:
            await access.admin(doing, topic)

    async def _replay_checked(self, topic: str, offsets: Sequence[int] | None, limit: int | None) -> int:
        """Replay letters whose origins were looked at: a forged letter must not publish with the operator's rights."""
        wanted, chosen, start = None if offsets is None else set(offsets), [], 0
        while True:
            page = await self._backend.dead_letters(topic, start, _LETTERS_PER_PAGE, 1 << 62)
            for letter in page.letters:
                if wanted is None or letter.offset in wanted:
                    self._access.check("publish", letter.headers.get(dead_letter.TOPIC, ""))
                    chosen.append(letter.offset)
            start = page.next
            if start >= page.end or not page.letters:
                break
        chosen = chosen if limit is None else chosen[:limit]
        return await self._backend.settle_dead_letters(topic, chosen, put_back=True) if chosen else 0

    async def dead_letter_topics(self) -> list[DeadLetterTopic]:
        """Those that the principal may see."""
        return [one for one in await self._backend.dead_letter_topics() if self._access.sees(one.name)]

    async def dead_letters(self, topic: str, start: int, limit: int, max_bytes: int) -> DeadLetterPage:
        """With the right to subscribe."""
        self._access.readable((topic,), _PLAIN)
        return await self._backend.dead_letters(topic, start, limit, max_bytes)

    # -- requests -----------------------------------------------------------------------------------------------

    async def request(self, asked: OutgoingRequest) -> Record[bytes]:
        """With the right to publish."""
        await self._check_request(asked)
        return await self._backend.request(asked)

    async def request_many(self, asked: OutgoingRequest, limit: int) -> list[Record[bytes]]:
        """With the right to publish."""
        await self._check_request(asked)
        return await self._backend.request_many(asked, limit)

    async def _check_request(self, asked: OutgoingRequest) -> None:
        self.check_publish(asked.topic)
        self.check_headers((asked.headers,))
        await self.paid(len(asked.value), 1, asked.topic)

    async def reply(self, record: RequestRecord, value: bytes | str, headers: Mapping[str, str] | None) -> bool:
        """To an inbox, which only a receiver of the request knows; to a topic with the right to publish there."""
        if self._access.ended is not None:
            raise self._access.ended
        topics: tuple[str, ...] = ()
        if (target := record.reply_to) is not None:
            if target.startswith(INBOX):
                self.check_reply(target)
            else:
                self.check_publish(target)
                topics = (target,)
        self.check_headers((headers,))
        await self.paid(len(value), 1, *topics)
        return await self._backend.reply(record, value, headers)

    def route_replies(self, prefix: str, route: ReplyRoute | None) -> bool:
        """The server alone routes replies."""
        return False

    # -- live messages of NATS clients, which are no records -----------------------------------------------------

    def publish_live(self, subject: str, size: int) -> None:
        """With the right to publish; to an inbox without it: only a receiver of the request knows its name."""
        access = self._access
        if access.ended is not None:
            raise access.ended
        if not (_is_secret(subject) or access.may("publish", subject)):
            access.check("publish", subject)
        if access.keeps_count:
            self.paid_later(size, 1)

    def check_reply(self, subject: str) -> None:
        """The target of replies or an answer: with the right to publish there, unless it is an inbox.

        Responders and the server publish there for the client that named it. Behind the prefix of NATS clients may be
        any subject, so what is behind it counts.
        """
        target = subject.removeprefix(NATS_INBOX)
        if not (target.startswith(INBOX) or _is_secret(target)):
            self._access.check("publish", target)

    def subscribe_live(self, subscription: Any, pattern: str) -> None:
        """With the right to subscribe; to an inbox with a name that no other client can guess without it."""
        if not _is_secret(pattern):
            self._access.check("subscribe", pattern)
        self._access.opened(subscription, "subscribe", () if _is_secret(pattern) else (pattern,))

    # -- figures ------------------------------------------------------------------------------------------------

    def statistics(self, pattern: str | None = None, limit: int | None = None) -> Statistics:
        """As viewer."""
        self._access.check_role(ConsoleRole.VIEWER, "look at statistics")
        return self._backend.statistics(pattern, limit)

    async def snapshot(self, pattern: str | None = None, limit: int | None = None) -> Statistics:
        """As viewer."""
        self._access.check_role(ConsoleRole.VIEWER, "look at statistics")
        return await self._backend.snapshot(pattern, limit)

    async def sample(self) -> BackendSample:
        """As viewer."""
        self._access.check_role(ConsoleRole.VIEWER, "look at statistics")
        return await self._backend.sample()

    async def report_relay(self, report: RelayStatistics) -> None:
        """From a relay: with the right to publish something; from an archive: to subscribe to something."""
        right = "subscribe" if report.kind == ARCHIVE else "publish"
        if not self._access.principal.rules.get(right):
            self._access.check(right, ">")
        await self._backend.report_relay(report)

    async def report_pipeline(self, report: PipelineStatistics) -> None:
        """From a pipeline: with the right to subscribe to something."""
        if not self._access.principal.rules.get("subscribe"):
            self._access.check("subscribe", ">")
        await self._backend.report_pipeline(report)

    async def report_handlers(self, client: str, handlers: Sequence[HandlerStatistics]) -> None:
        """From a worker: with the right to what its handlers read, in a group or without."""
        for one in handlers:
            self._access.check("subscribe" if one.group is None else "group", one.pattern)
        await self._backend.report_handlers(client, handlers)

    async def info(self) -> dict[str, Any]:
        """As viewer."""
        self._access.check_role(ConsoleRole.VIEWER, "look at the server")
        return await self._backend.info()


class GuardedReplication:
    """The warm standby of a server for one peer: for administrators of the server, who have the console role admin.

    A standby reads the whole journal: every record, and the key that sessions are signed with. The right `admin` alone
    reads no record.
    """

    def __init__(self, inner: Replication, access: Access) -> None:
        self._inner, self._access = inner, access

    def _check(self, doing: str) -> None:
        self._access.check_role(ConsoleRole.ADMIN, doing)
        self._access.check("admin", ">")

    async def _check_reading(self) -> None:
        """The first time that a login reads the journal is in the security log, whichever way it begins."""
        self._check("follow the journal")
        if not self._access.follows:
            await self._access.admin("follow", ">")
            self._access.follows = True

    @property
    def generation(self) -> Generation | None:
        """As it is."""
        return self._inner.generation

    @property
    def origin(self) -> str:
        """As it is."""
        return self._inner.origin

    def refusal(self) -> RunnelError | None:
        """As it is."""
        return self._inner.refusal()

    def on_refusal(self, ended: Callable[[], None]) -> None:
        """It concerns the server, not a peer."""

    def seen(self, generation: Generation) -> None:
        """From every peer: a generation proves itself."""
        self._inner.seen(generation)

    async def follow(self, request: FollowRequest) -> FollowReply:
        """As administrator of the server."""
        await self._check_reading()
        return await self._inner.follow(request)

    async def read_file(self, name: str, offset: int, size: int) -> bytes:
        """As administrator of the server."""
        await self._check_reading()
        return await self._inner.read_file(name, offset, size)

    async def promote(self, *, primary_is_down: bool) -> Generation:
        """As administrator of the server."""
        self._check("promote a standby")
        await self._access.admin("promote", ">")
        return await self._inner.promote(primary_is_down=primary_is_down)

    async def release(self) -> str | None:
        """As administrator of the server."""
        self._check("release a standby")
        await self._access.admin("release_standby", ">")
        return await self._inner.release()

    def statistics(self) -> ReplicationStatistics | None:
        """As viewer."""
        self._access.check_role(ConsoleRole.VIEWER, "look at statistics")
        return self._inner.statistics()


_PLAIN = SubscribeOptions()
_SECRET = re.compile(r"_INBOX[^.]*\.[^.*>]{16,}(\..+)?")  # clients make these names of 22 random characters


def _is_secret(subject: str) -> bool:
    """Whether a subject, or a pattern, is an inbox whose name is known to its maker, and to receivers of requests."""
    return _SECRET.fullmatch(subject) is not None


def _size_of(data: bytes) -> int:
    """The bytes that a batch counts: those that it has when it is not compressed, if these are more."""
    return max(len(data), int.from_bytes(data[_RAW_LENGTH], "little"))


class GuardedPublisher:
    """Publishes packed batches of one peer. See `core.backend.PackedPublisher`."""

    def __init__(self, guard: GuardedBackend, access: Access, inner: PackedPublisher) -> None:
        self._guard, self._access, self._inner = guard, access, inner
        self._owners = access.control.owners
        self._publishable = access.publishable
        self._producers: set[int] = {0}  # numbers of producers that were looked at; 0: not numbered
        self.is_turn_over = False

    def for_client(self) -> GuardedPublisher:
        """A publisher for one client."""
        return GuardedPublisher(self._guard, self._access, self._inner.for_client())

    def release(self) -> None:
        """The client disconnected."""
        self._inner.release()

    def publish(
        self, topic: str, data: bytes, details: PublishDetails | None, done: Done, readers: Sequence[Any] = ()
    ) -> WaitingPublish | None:
        """With the right to publish. A cached decision costs a look at two sets and at the batch's header."""
        try:
            columns, producer = _LOOK(data, _COLUMNS_AT)
        except StructError:
            columns, producer = 0, 0  # no batch: refused further on
        if (
            topic not in self._publishable
            or columns & HEADERS
            or producer not in self._producers
            or self._access.keeps_count
            or (details is not None and details.options)
        ):
            try:
                self._check(topic, data, details, columns, producer)
            except RunnelError as error:
                done(error)
                return None
        inner = self._inner
        waiting = inner.publish(topic, data, details, done, readers)
        if inner.is_turn_over:
            inner.is_turn_over, self.is_turn_over = False, True
        return waiting

    def _check(self, topic: str, data: bytes, details: PublishDetails | None, columns: int, producer: int) -> None:
        access = self._access
        options = None if details is None else details.options
        if topic not in access.publishable or options:
            self._guard.check_publish(topic, options)
        self._check_batch(data, columns, producer)
        if access.keeps_count:
            count = int.from_bytes(data[_COUNT_AT : _COUNT_AT + 4], "little")
            self._guard.paid_later(_size_of(data), count)

    def _check_batch(self, data: bytes, columns: int, producer: int) -> None:
        if producer not in self._producers:
            self._owners.is_known("producer", str(producer), self._access.principal)  # raises if it is another's
            if len(self._producers) >= MAX_PRODUCERS:
                self._producers = {0}
            self._producers.add(producer)
        if columns & HEADERS:
            found = unpack_untrusted(data).columns
            if found is not None and HEADERS in found:
                self._guard.check_headers(found[HEADERS])

    def plan(self, topic: str, data: bytes, details: PublishDetails | None) -> tuple[Writer, Append]:
        """A batch of a transaction: `commit` checks it."""
        self._guard.check_publish(topic, None if details is None else details.options)
        with suppress(StructError):  # an invalid batch is refused later
            self._check_batch(data, *_LOOK(data, _COLUMNS_AT))
        return self._inner.plan(topic, data, details)

    async def declare(self, topic: str, options: Mapping[str, Any], schema: Schema | None) -> None:
        """With the right to create the topic if there is none, else to publish to it."""
        access = self._access
        self._guard._check_dead_letter(options.get("dead_letter"))
        if access.control.knows_topic(topic):
            if not access.may("create", topic):
                access.check("publish", topic)
        else:
            access.check("create", topic)
            access.control.created(access, topic)
        await self._inner.declare(topic, options, schema)


class GuardedWriter:
    """The writer of one topic, for one peer. See `core.backend.Writer`."""

    def __init__(self, guard: GuardedBackend, inner: Writer) -> None:
        self._guard, self.inner = guard, inner
        self.loop_owner, self.options, self.topic = inner.loop_owner, inner.options, inner.topic
        self.access = guard._access
        # After the first check of a writer that names no topic itself: those that were decided before, and the handle
        # of the backend behind, which publishes to them.
        self.unchecked: Container[str] = ()
        self.plain: Topic[Any] | None = None

    @property
    def codec(self) -> Codec[Any] | None:
        """How values are encoded."""
        return self.inner.codec

    @property
    def tracing(self) -> Any:
        """The source of the current span."""
        return self.inner.tracing

    def now(self) -> float:
        """The backend's time."""
        return self.inner.now()

    def has_tombstones(self) -> bool:
        """Whether a key without a value deletes the key."""
        return self.inner.has_tombstones()

    async def learn_tombstones(self) -> None:
        """Ask the backend whether the topic has tombstones."""
        await self.inner.learn_tombstones()

    def _check(self, append: Append) -> None:
        """Raise unless it may be appended."""
        guard = self._guard
        if self.topic not in self.unchecked:
            guard.check_publish(self.topic, self.options)
            if self.plain is None and self.options.dead_letter is None:
                self.plain = Topic(guard.inner, self.topic, self.inner.codec, self.options)
                self.unchecked = self.access.publishable
        elif self.access.ended is not None:
            raise self.access.ended
        if append.columns is not None and HEADERS in append.columns:
            guard.check_headers(append.columns[HEADERS])

    async def append(self, append: Append) -> Position:
        """With the right to publish."""
        self._check(append)
        await self._guard.paid(append.size, len(append.values), self.topic)
        return await self.inner.append(append)

    async def append_and_wait(self, append: Append, timeout: float | None) -> Position:
        """With the right to publish."""
        self._check(append)
        await self._guard.paid(append.size, len(append.values), self.topic)
        return await self.inner.append_and_wait(append, timeout)

    def append_nowait(self, append: Append) -> None:
        """With the right to publish."""
        self._check(append)
        self._guard.paid_later(append.size, len(append.values))
        self.inner.append_nowait(append)

    async def declare(self) -> None:
        """With the right to create the topic, or to publish to it."""
        self._guard.check_publish(self.topic, self.options)
        await self.inner.declare()

    async def delete(self) -> None:
        """With admin rights."""
        await self._guard.delete(self.topic)

    async def trim(self, before: int | datetime, *, force: bool) -> int:
        """With admin rights."""
        return await self._guard.trim(self.inner, before, force=force)


class GuardedStage:
    """A stage, for one peer: its writer's name is claimed before anything is written."""

    def __init__(self, guard: GuardedBackend, writer: str, inner: StageWriter) -> None:
        self._guard, self._writer, self._inner = guard, writer, inner

    async def _claim(self) -> None:
        await self._guard.claim("stage", self._writer)

    def check_usable(self, doing: str) -> None:
        """Raise unless the backend supports stages."""
        self._inner.check_usable(doing)

    async def read_state(self) -> tuple[int, int]:
        """Records and bytes in it."""
        await self._claim()
        return await self._inner.read_state()

    async def write(self, pieces: Any, ordinal: int | None) -> int:
        """Stage records."""
        await self._claim()
        return await self._inner.write(pieces, ordinal)

    async def write_packed(self, data: bytes, batch: Any, ordinal: int | None, *, typed: bool) -> int:
        """Stage a checked batch."""
        await self._claim()
        if batch.columns is not None and HEADERS in batch.columns:
            self._guard.check_headers(batch.columns[HEADERS])
        await self._guard.paid(_size_of(data), len(batch.values))
        return await self._inner.write_packed(data, batch, ordinal, typed=typed)

    async def drop(self) -> None:
        """Discard it."""
        await self._claim()
        await self._inner.drop()


class GuardedMixedStage(GuardedStage):
    """The same of many topics: each needs the right to publish."""

    async def write(self, pieces: Any, ordinal: int | None) -> int:
        """Stage records, all of them or none."""
        await self._claim()
        self._size = self._count = 0
        staged = await self._inner.write(pieces.allowed(self._allowed), ordinal)
        await self._guard.paid(self._size, self._count)
        return staged

    def _allowed(self, run: StageRun) -> StageRun:
        writer = run.writer
        self._guard.check_publish(writer.topic, writer.options)
        self._size += run.append.size
        self._count += len(run.append.values)
        columns = run.append.columns
        if columns is not None and HEADERS in columns:
            self._guard.check_headers(columns[HEADERS])
        return run._replace(writer=writer.inner) if isinstance(writer, GuardedWriter) else run


class GuardedFastPath:
    """`publish` and `publish_nowait` of handles for peers: the shortest way, where no more is to be checked.

    Headers are looked at: they may name a topic for replies.
    """

    __slots__ = ()

    _writer: GuardedWriter
    _slow_publish: Callable[..., Coroutine[Any, Any, Position]]
    _slow_publish_nowait: Callable[..., None]

    def publish(
        self, value: Any, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> Coroutine[Any, Any, Position]:
        """As `Topic.publish`."""
        writer = self._writer
        if headers is None and writer.topic in writer.unchecked and not writer.access.keeps_count:
            return writer.plain.publish(value, **options)  # type: ignore[union-attr]  # it is there then
        return self._slow_publish(value, headers=headers, **options)

    def publish_nowait(
        self,
        value: Any,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        *options: Any,
        **named: Any,
    ) -> None:
        """As `Topic.publish_nowait`."""
        writer = self._writer
        if headers is None and writer.topic in writer.unchecked and not writer.access.keeps_count:
            writer.plain.publish_nowait(value, key, None, *options, **named)  # type: ignore[union-attr]
        else:
            self._slow_publish_nowait(value, key, headers, *options, **named)
