"""The calls of the native protocol: one small function each, over the public API of the broker.

The arguments of a call arrive as a map and are checked against the function's annotations. Unknown arguments are
ignored, so that arguments can be added later.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple, get_type_hints

import msgspec

from runnel.api.stage import RunsCut, StageCut
from runnel.core.backend import (
    AckRange,
    DeadLetterTopic,
    MixedStageWriter,
    OutgoingRequest,
    StageRun,
    StageWriter,
    Writer,
)
from runnel.core.batch_format import UnpackedBatch, unpack_untrusted
from runnel.core.clock import from_micros
from runnel.core.errors import InvalidOption, NotSupported, OutcomeUnknown, ProtocolError, TopicDeleted
from runnel.core.markers import Marker
from runnel.core.options import NO_TOPIC_OPTIONS, positive
from runnel.core.pattern import check_name, check_pattern
from runnel.core.position import Position, reads_by_sequence
from runnel.core.presence import Present
from runnel.core.publishing import Append, Publication, PublishDetails, checked_batch
from runnel.core.record import NO_HEADERS, REPLY_TO, Meta, Record
from runnel.core.replication import FollowReply, FollowRequest, Replication
from runnel.core.replies import checked_gathering
from runnel.core.schema import Schema
from runnel.core.stages import checked_stage_key
from runnel.core.statistics import BackendSample, HandlerStatistics, PipelineStatistics, RelayStatistics
from runnel.core.trace_context import TRACEPARENT as TRACE
from runnel.core.transaction import TransactionRequest
from runnel.security.principal import ConsoleRole
from runnel.server.access.access import Access
from runnel.server.access.control import AccessControl
from runnel.server.examination import examine
from runnel.server.native.subscriptions import NativeMember
from runnel.server.served_broker import ServedBroker
from runnel.wire.msgpack_messages import AtSequence, read_start, wire_record
from runnel.wire.wire_batch import wire_batch_of

MAX_PAGE = 10_000  # records in the answer to one call
MAX_PAGE_BYTES = 8 << 20  # and their bytes; but always one record


class Caller(NamedTuple):
    """The calling client: the served broker, and operations on the client's subscriptions by id."""

    serving: ServedBroker
    member: Callable[[int], NativeMember]
    finish: Callable[[int], None]  # end a subscription of this client after the records published so far
    authenticate: Callable[[str], Awaitable[float | None]] | None = None  # continue with a new token


Call = Callable[[Caller, dict[str, Any]], Coroutine[Any, Any, Any]]

CALLS: dict[str, Call] = {}
"""By the name that a CALL frame has."""


FOR_OPERATORS = frozenset(
    (
        *("follow", "read_file", "promote", "release_standby", "info", "statistics", "sample", "connections", "doctor"),
        *("authenticate", "whoami", "reload", "token_create", "token_list", "token_revoke"),
    )
)
"""The calls of a connection for operators: none of them needs the topics."""


def check_method(method: str, *, operator: bool = False) -> None:
    """Raise if there is no such call, or not on a connection for operators."""
    known = FOR_OPERATORS if operator else CALLS
    if method not in known:
        raise InvalidOption("method", method, f"there is no such call; there are {', '.join(sorted(known))}")


def call(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Register a function as a call. Its parameters after the first are the arguments of the call."""
    hints = get_type_hints(function)
    fields: list[Any] = []
    for name, parameter in [*inspect.signature(function).parameters.items()][1:]:
        default = () if parameter.default is parameter.empty else (parameter.default,)
        fields.append((name, hints[name], *default))
    shape = msgspec.defstruct(f"{function.__name__}_arguments", fields, kw_only=True)

    async def checked(caller: Caller, args: dict[str, Any]) -> Any:
        try:
            said = msgspec.convert(args, shape)
        except msgspec.ValidationError as error:
            raise InvalidOption(function.__name__, sorted(args), f"its arguments do not fit: {error}") from None
        return await function(caller, **{name: getattr(said, name) for name in shape.__struct_fields__})

    CALLS[function.__name__] = checked
    return function


# -- topics -----------------------------------------------------------------------------------------------------


@call
async def declare(
    caller: Caller, topic: str, options: dict[str, Any] | None = None, schema: Schema | None = None
) -> None:
    """Create a topic, or check that it exists with these options and this type."""
    await caller.serving.publisher.declare(check_name(topic), options or {}, schema)
    await caller.serving.backend.flushed()


@call
async def delete(caller: Caller, topic: str) -> None:
    """Delete a topic and its records."""
    await caller.serving.broker.delete(topic)


@call
async def topics(caller: Caller) -> list[str]:
    """The names of all topics."""
    return await caller.serving.broker.topics()


@call
async def bounds(
    caller: Caller,
    patterns: list[str] = [],  # noqa: B006
    time: int | None = None,
    sequence: int | None = None,
    history: bool = True,
) -> Any:
    """The bounds of topics; with a `time` in microseconds, or a `sequence`, also the first offset from there on.

    Without `history`, those of the journal: no source of history is queried, and `removed` says which ranges left it.
    """
    since = None if time is None else from_micros(time)
    if history:
        return await caller.serving.broker.bounds(*patterns, time=since, sequence=sequence)
    asked = tuple(check_pattern(one) for one in patterns or (">",))
    return await caller.serving.backend.bounds(asked, since, sequence, history=False)


@call
async def confirm_archived(caller: Caller, positions: list[tuple[str, int, int]]) -> Any:
    """Store that the archive has all records before these positions: [topic, epoch, offset] each. For operators."""
    found = {topic: Position(epoch, offset) for topic, epoch, offset in positions}
    return await caller.serving.broker.confirm_archived(found)


@call
async def floors(caller: Caller, patterns: list[str] = []) -> Any:  # noqa: B006
    """How far the topics that match have left the journal."""
    return await caller.serving.broker.floors(*patterns)


@call
async def place(caller: Caller, places: list[tuple[str, str, int, int]], hold: bool | None = None) -> None:
    """Store positions of named subscriptions that are not open: [name, topic, epoch, offset] each.

    Of a name that reads a pattern: [name, pattern, 0, sequence].
    """
    found = {
        name: (topic, offset if reads_by_sequence(topic) else Position(epoch, offset))
        for name, topic, epoch, offset in places
    }
    await caller.serving.broker.place(found, hold=hold)


@call
async def describe(caller: Caller, topic: str) -> dict[str, Any] | None:
    """The options with which a topic was declared; None: there is no such topic."""
    options = await caller.serving.backend.describe(topic)
    return None if options is None else {"options": options}


@call
async def configure(caller: Caller, topic: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Change options of a topic, nil takes one back to its default; return those that hold now."""
    return await caller.serving.backend.configure(check_name(topic), changes)


@call
async def trim(
    caller: Caller, topic: str, before: int | dict[str, Any], force: bool = False, epoch: int | None = None
) -> int:
    """Remove the records before an offset or a time; return the first offset that is left.

    `epoch`: of the topic that is meant; one that was deleted since, or made again, is left alone.
    """
    where = _start(before)
    if not isinstance(where, int | datetime):
        raise InvalidOption("before", before, "expected an offset, or a map with a time")
    if epoch is not None and [one.epoch for one in await caller.serving.broker.floors(check_name(topic))] != [epoch]:
        raise TopicDeleted(topic, epoch)
    return await caller.serving.broker.topic(topic).trim(where, force=force)


@call
async def replay(
    caller: Caller, topic: str, limit: int | None = None, offsets: list[int] | None = None, all: bool = False
) -> int:
    """Publish dead letters to their original topics again; return how many.

    In order, and no more than `limit`; with `offsets` those there, and with `all` all that are there: then an unknown
    topic raises.
    """
    if all:
        return await caller.serving.backend.settle_dead_letters(topic, None, put_back=True)
    return await caller.serving.broker.replay(topic, limit=limit, offsets=offsets)


@call
async def discard(caller: Caller, topic: str, offsets: list[int] | None = None) -> int:
    """Discard dead letters; return how many."""
    return await caller.serving.broker.discard(topic, offsets)


# -- groups and names -------------------------------------------------------------------------------------------


@call
async def forget(caller: Caller, name: str) -> None:
    """Forget a named subscription."""
    await caller.serving.broker.forget(name)


@call
async def presence(caller: Caller, topic: str) -> list[Present]:
    """The subscriptions that read a topic: [id, name, since, group, presence, principal] each, by name."""
    return await caller.serving.backend.present(topic)


@call
async def cancel(caller: Caller, topic: str, message_id: str) -> None:
    """Hand a delayed record to no group any more."""
    await caller.serving.broker.cancel(topic, message_id)


@call
async def forget_group(caller: Caller, name: str, pattern: str) -> None:
    """Forget a group that has no members."""
    await caller.serving.broker.forget_group(name, pattern)


@call
async def group(caller: Caller, name: str, pattern: str) -> Any:
    """The statistics of a group."""
    return await caller.serving.backend.ask_group(name, pattern, "statistics")


@call
async def group_pause(caller: Caller, name: str, pattern: str) -> None:
    """Pause a group."""
    await caller.serving.backend.ask_group(name, pattern, "pause")


@call
async def group_resume(caller: Caller, name: str, pattern: str) -> None:
    """Resume a group."""
    await caller.serving.backend.ask_group(name, pattern, "resume")


@call
async def group_reset(caller: Caller, name: str, pattern: str, start: Any) -> None:
    """Continue a group from `start`, regardless of what was settled."""
    await caller.serving.backend.ask_group(name, pattern, "reset", _start(start))


# -- marks, producers, transactions -----------------------------------------------------------------------------


@call
async def mark(caller: Caller, name: str) -> Any:
    """The value of a mark."""
    return await caller.serving.broker.mark(name)


@call
async def marks(caller: Caller, prefix: str = "") -> dict[str, Any]:
    """All marks whose names begin with `prefix`."""
    return dict(await caller.serving.broker.marks(prefix))


@call
async def producer_next(caller: Caller, producer: int) -> int | None:
    """The next number of a producer; None: the producer is unknown."""
    return await caller.serving.backend.producer_next(producer)


@call
async def transact(
    caller: Caller,
    publishes: list[tuple[str, bytes, PublishDetails | None]] = [],  # noqa: B006  # msgspec makes a new one each time
    acks: list[tuple[int, int, int, int]] = [],  # noqa: B006
    marks: list[list[Any]] = [],  # noqa: B006
    commits: list[tuple[str, int, int, int]] = [],  # noqa: B006
) -> dict[str, Any]:
    """Commit a transaction: publishes, acks, marks and stages, all or nothing."""
    backend, request = caller.serving.broker.backend, TransactionRequest()
    try:
        backend.loop_owner.check_usable("a transaction")
        promised = _asked(caller, request, publishes, acks, marks, commits)
        if request:
            await backend.commit(request)
    except asyncio.CancelledError:
        if request.has_begun:
            raise OutcomeUnknown("it was being written when its caller stopped waiting", committing=True) from None
        raise
    applied = request.applied
    spans = [(one.span.first.epoch, one.span.first.offset, one.span.last.offset) for one in promised if applied]
    return {"applied": applied, "spans": spans if applied else [None] * len(promised)}


def _asked(
    caller: Caller,
    request: TransactionRequest,
    publishes: list[tuple[str, bytes, PublishDetails | None]],
    acks: list[tuple[int, int, int, int]],
    marks: list[list[Any]],
    commits: list[tuple[str, int, int, int]],
) -> list[Publication]:
    """Fill in the request of a transaction; return its publishes and stages, in order."""
    backend, publisher = caller.serving.broker.backend, caller.serving.publisher
    try:
        promised = [
            request.publish(*publisher.plan(check_name(topic), batch, details)) for topic, batch, details in publishes
        ]
        for subscription, lease, first, end in acks:
            request.ack(_acks(caller.member(subscription), lease, first, end))
        for one in marks:
            if not 2 <= len(one) <= 3:
                raise InvalidOption("marks", one, "expected [name, value] or [name, value, expected]")
            request.mark(Marker(*one))
        if commits and not backend.is_durable:
            raise NotSupported("staging", "this broker lives in memory only; open it with a folder")
        return promised + [request.commit(checked_stage_key(key)) for key in commits]
    except BaseException:
        request.forget()
        raise


def _acks(native: NativeMember, number: int, first: int, end: int) -> list[AckRange]:
    """The places of a lease that a transaction acks: each must be unsettled."""
    lease = native.lease(number, first)
    if not lease.first <= first < end <= lease.end:
        raise InvalidOption("places", (first, end), f"lease {number} has [{lease.first}, {lease.end})")
    return [AckRange(native.member, lease, place, place + 1, False) for place in range(first, end)]


# -- stages -----------------------------------------------------------------------------------------------------


@call
async def stages(caller: Caller) -> Any:
    """The open stages."""
    return await caller.serving.broker.stages()


@call
async def stage_write(
    caller: Caller,
    topic: str,
    key: tuple[str, int, int, int],
    batch: bytes | None = None,
    ordinal: int | None = None,
    options: dict[str, Any] | None = None,
    schema: Schema | None = None,
) -> dict[str, int]:
    """Stage the records of a batch; return the records and bytes of the stage. Without a batch, only open it."""
    if options or schema:
        await caller.serving.publisher.declare(check_name(topic), options or {}, schema)
    writer, stage = _stage(caller, topic, key)
    if batch is None:
        stage.check_usable("staging")
        await stage.write(StageCut(writer, (), {}), ordinal)
    else:
        await stage.write_packed(batch, checked_batch(topic, batch), ordinal, typed=schema is not None)
        await asyncio.sleep(0)  # a batch that is staged already is skipped without waiting
    return dict(zip(("records", "bytes"), await stage.read_state(), strict=True))


@call
async def stage_block(
    caller: Caller,
    key: tuple[str, int, int, int],
    topics: list[tuple[str, bytes, list[int], dict[str, Any] | None, Schema | None]],
    ordinal: int | None = None,
) -> dict[str, int]:
    """Stage records of many topics; return the records and bytes of the stage. Without topics, only open it.

    For each topic: a batch, and which of the records they are, as pairs: the number of the first, and how many. Then
    its options and its schema, as in a publish.
    """
    backend = caller.serving.broker.backend
    found: list[tuple[int, StageRun]] = []
    for topic, batch, numbers, options, schema in topics:
        if options or schema:
            await caller.serving.publisher.declare(check_name(topic), options or {}, schema)
        writer = backend.writer(check_name(topic), None, NO_TOPIC_OPTIONS)
        found += _numbered_runs(writer, checked_batch(topic, batch), numbers, typed=schema is not None)
    stage = backend.mixed_stage(checked_stage_key(key))
    stage.check_usable("staging")
    await stage.write(RunsCut(_in_order(found)), ordinal)
    await asyncio.sleep(0)  # records that are staged already are skipped without waiting
    return dict(zip(("records", "bytes"), await stage.read_state(), strict=True))


def _numbered_runs(
    writer: Writer, batch: UnpackedBatch, numbers: list[int], *, typed: bool
) -> Iterator[tuple[int, StageRun]]:
    """The records of a batch, in runs, each with the number of its first record."""
    at, pairs = 0, iter(numbers)
    if len(numbers) % 2 or sum(numbers[1::2]) != len(batch):
        raise InvalidOption("topics", numbers, f"expected pairs that count up to the {len(batch)} records of the batch")
    for number, count in zip(pairs, pairs, strict=True):
        if count < 1:
            raise InvalidOption("topics", numbers, "a run has one record at least")
        values = batch.values[at : at + count]
        columns = None if batch.columns is None else batch.columns.part(at, at + count)
        extra = 0 if columns is None else columns.weight
        yield number, StageRun(writer, Append(values, columns, sum(map(len, values)), None, typed, extra))
        at += count


def _in_order(runs: list[tuple[int, StageRun]]) -> list[StageRun]:
    """Runs by their numbers, which have to be those of all records from 0 on."""
    runs.sort(key=itemgetter(0))
    following = 0
    for number, run in runs:
        if number != following:
            raise InvalidOption("topics", number, f"expected a run that begins with record {following}")
        following += len(run.append.values)
    return [run for _, run in runs]


@call
async def stage_state(caller: Caller, topic: str | None, key: tuple[str, int, int, int]) -> dict[str, int]:
    """How many records and bytes a stage holds. Without a topic: of many."""
    stage = _any_stage(caller, topic, key)
    return dict(zip(("records", "bytes"), await stage.read_state(), strict=True))


@call
async def stage_drop(caller: Caller, topic: str | None, key: tuple[str, int, int, int]) -> None:
    """Discard a stage. Without a topic: one of many."""
    stage = _any_stage(caller, topic, key)
    stage.check_usable("dropping a stage")
    await stage.drop()


def _any_stage(caller: Caller, topic: str | None, key: tuple[str, int, int, int]) -> StageWriter | MixedStageWriter:
    if topic is None:
        stage: MixedStageWriter = caller.serving.broker.backend.mixed_stage(checked_stage_key(key))
        return stage
    return _stage(caller, topic, key)[1]


def _stage(caller: Caller, topic: str, key: tuple[str, int, int, int]) -> tuple[Writer, StageWriter]:
    backend = caller.serving.broker.backend
    writer = backend.writer(check_name(topic), None, NO_TOPIC_OPTIONS)
    return writer, backend.stage(writer, checked_stage_key(key))


# -- requests ---------------------------------------------------------------------------------------------------


@call
async def request(caller: Caller, topic: str, batch: bytes, timeout: float = 5.0) -> dict[str, Any]:
    """Publish one record and wait for the reply to it."""
    broker = caller.serving.broker
    value, meta = _one(unpack_untrusted(batch))
    return _reply(await broker.request(topic, value, timeout=timeout, key=meta.key, headers=meta.headers))


@call
async def request_many(
    caller: Caller, topic: str, batch: bytes, timeout: float = 1.0, limit: int | None = None
) -> list[dict[str, Any]]:
    """Publish one record and gather the replies to it, also those that say that a responder failed."""
    backend = caller.serving.broker.backend
    value, meta = _one(unpack_untrusted(batch))
    seconds, most = checked_gathering(timeout, limit)
    asked = OutgoingRequest(topic, value, seconds, meta.key, meta.headers)
    return [_reply(one) for one in await backend.request_many(asked, most)]


def _reply(record: Record[bytes]) -> dict[str, Any]:
    piece = wire_batch_of(record, None)
    return {
        "topic": piece.topic,
        "offset": piece.offset,
        "sequence": piece.sequence,
        "epoch": piece.epoch,
        "time": piece.time,
        "batch": piece.packed,
    }


@call
async def reply(caller: Caller, reply_to: str, batch: bytes) -> bool:
    """Reply to a request; False if the requester no longer waits."""
    value, meta = _one(unpack_untrusted(batch))
    headers = dict(meta.headers)
    asked = {REPLY_TO: reply_to, **({TRACE: headers[TRACE]} if TRACE in headers else {})}
    record = Record(reply_to, 0, 0, 0, None, b"", asked, from_micros(0))
    return await caller.serving.broker.reply(record, value, headers=headers)


def _one(batch: UnpackedBatch) -> tuple[bytes, Meta]:
    if len(batch) != 1:
        raise InvalidOption("batch", len(batch), "a request and a reply are one record each")
    return batch.values[0], batch.metas.get(0) or _PLAIN


# -- looking ----------------------------------------------------------------------------------------------------


@call
async def statistics(caller: Caller, pattern: str | None = None, limit: int | None = None) -> dict[str, Any]:
    """The statistics of the broker; `flowed` as a list of [pattern, subscriber, numbers]."""
    found = await caller.serving.backend.snapshot(pattern, limit)
    numbers = {name: getattr(found, name) for name in found.__struct_fields__}
    numbers["flowed"] = [[pattern, subscriber, flowed] for (pattern, subscriber), flowed in found.flowed.items()]
    return numbers


@call
async def sample(caller: Caller) -> BackendSample:
    """The figures of the console."""
    return await caller.serving.backend.sample()


@call
async def report_relay(caller: Caller, report: RelayStatistics) -> None:
    """Take what a relay or an archive of PostgreSQL reports of itself: `statistics` and the console show it."""
    await caller.serving.backend.report_relay(report)


@call
async def report_pipeline(caller: Caller, report: PipelineStatistics) -> None:
    """Store the report of a pipeline: `statistics` shows it."""
    await caller.serving.backend.report_pipeline(report)


@call
async def report_handlers(caller: Caller, client: str, handlers: list[HandlerStatistics]) -> None:
    """Take what the handlers of a client did since it started: `statistics` adds it up over all clients."""
    await caller.serving.backend.report_handlers(client, handlers)


@call
async def end_sequence(caller: Caller) -> int:
    """The sequence after the last visible record."""
    return await caller.serving.backend.end_sequence()


@call
async def history(
    caller: Caller, topic: str, start: Any = None, limit: int = 100, max_bytes: int = MAX_PAGE_BYTES
) -> dict[str, Any]:
    """Records of a topic from `start`, within limits; `next` is where the next page starts."""
    where = _start(start)
    limit, max_bytes = _page(limit, max_bytes)
    found = await caller.serving.backend.history(topic, "earliest" if where is None else where, limit, max_bytes)
    return found._asdict() | {"records": [wire_record(record) for record in found.records]}


@call
async def dead_letters(caller: Caller) -> list[DeadLetterTopic]:
    """The dead-letter topics: [name, groups, open, first, end, epoch] each."""
    return await caller.serving.backend.dead_letter_topics()


@call
async def dead_letter_list(
    caller: Caller, topic: str, start: int = 0, limit: int = 100, max_bytes: int = MAX_PAGE_BYTES
) -> dict[str, Any]:
    """Open dead letters from an offset; `next` is where the next page starts."""
    limit, max_bytes = _page(limit, max_bytes)
    found = await caller.serving.backend.dead_letters(topic, start, limit, max_bytes)
    return found._asdict() | {"letters": [wire_record(letter) for letter in found.letters]}


def _page(limit: int, max_bytes: int) -> tuple[int, int]:
    return min(positive("limit", limit), MAX_PAGE), min(positive("max_bytes", max_bytes), MAX_PAGE_BYTES)


@call
async def flush(caller: Caller) -> None:
    """Return when the client's earlier settlements and confirmed positions are on disk, if there is one."""
    await caller.serving.backend.flushed()


@call
async def sync(caller: Caller) -> None:
    """Return when everything that was published and settled is synced to disk, also with fsync interval or os."""
    await caller.serving.backend.synced()


@call
async def finish(caller: Caller, subscription: int) -> None:
    """End a subscription after the records published before this call, as a GOODBYE does for all of them."""
    caller.finish(subscription)


@call
async def info(caller: Caller) -> dict[str, Any]:
    """The server: its version, listeners and limits."""
    return caller.serving.describe()


@call
async def connections(caller: Caller) -> list[dict[str, Any]]:
    """The connected clients, and what each of them holds."""
    if (access := caller.serving.access) is not None:
        access.check_role(ConsoleRole.VIEWER, "list connections")
    return caller.serving.connections.describe()


@call
async def doctor(caller: Caller) -> dict[str, Any]:
    """The server's checks of its machine, journal, certificates and relays: [what, state, seen, advice] each."""
    serving = caller.serving
    if serving.access is not None:
        serving.access.check_role(ConsoleRole.OPERATOR, "examine the server")
    return {"time": serving.broker.clock.time(), "findings": await examine(serving, serving.folder)}


# -- warm standby -----------------------------------------------------------------------------------------------


def _replication(caller: Caller) -> Replication:
    found = caller.serving.backend.replication
    if found is None:
        raise NotSupported("a standby", "this server has no journal of its own: follow the server that has it")
    return found


@call
async def follow(caller: Caller, request: FollowRequest) -> FollowReply:
    """The bytes behind the place of a standby; a request confirms all before it. For admins."""
    return await _replication(caller).follow(request)


@call
async def read_file(caller: Caller, name: str, offset: int, size: int) -> bytes:
    """Bytes of a file of the journal; fewer than asked only at its end. For admins."""
    return await _replication(caller).read_file(name, offset, size)


@call
async def promote(caller: Caller, primary_is_down: bool = False) -> dict[str, Any]:
    """Make a primary of a standby; return its generation. For admins."""
    found = await _replication(caller).promote(primary_is_down=primary_is_down)
    return {"origin": found.origin, "generation": found.number}


@call
async def release_standby(caller: Caller) -> str | None:
    """Continue without the synchronous standby; return its name, None if there is none. For admins."""
    return await _replication(caller).release()


# -- access -----------------------------------------------------------------------------------------------------


@call
async def authenticate(caller: Caller, token: str) -> dict[str, Any]:
    """Continue with a new token of the same principal; fewer rights end what they no longer allow."""
    return {"expires": None if caller.authenticate is None else await caller.authenticate(token)}


@call
async def whoami(caller: Caller) -> dict[str, Any]:
    """The principal of this connection, and what it may do; empty if authentication is off."""
    access = caller.serving.access
    if access is None:
        return {}
    principal = access.principal
    return {"principal": principal.name, "roles": principal.roles, "rules": dict(principal.rules)}


@call
async def reload(caller: Caller) -> None:
    """Read certificates, limits, rules, tokens and keys again."""
    if caller.serving.auth is not None:
        auth, access = _administration(caller)
        await auth.audited(access, "reload", "")
    if caller.serving.reload is None:
        raise NotSupported("reload", "the process that serves here has no files to read again")
    await caller.serving.reload()


@call
async def token_create(
    caller: Caller,
    name: str,
    allow: list[str] = [],  # noqa: B006
    roles: list[str] = [],  # noqa: B006
    expires: float | None = None,
) -> dict[str, Any]:
    """Make a token; it is in the answer, and nowhere else. `expires`: seconds since 1970."""
    auth, access = _administration(caller)
    token, stored = await auth.create_token(access, name, tuple(allow), tuple(roles), expires)
    return {"token": token, "id": stored.id}


@call
async def token_list(caller: Caller) -> list[dict[str, Any]]:
    """The tokens, without what they are."""
    auth, _ = _administration(caller)
    return [
        {name: value for name, value in msgspec.structs.asdict(one).items() if name != "hash"}
        for one in auth.policy.tokens
    ]


@call
async def token_revoke(caller: Caller, which: str) -> list[str]:
    """Take back tokens, by name or id; the ids of those."""
    auth, access = _administration(caller)
    return [one.id for one in await auth.revoke_token(access, which)]


def _administration(caller: Caller) -> tuple[AccessControl, Access]:
    auth, access = caller.serving.auth, caller.serving.access
    if auth is None or access is None:
        raise NotSupported("administration of access", "the server runs without --auth")
    access.check_role(ConsoleRole.ADMIN, "administer access")
    return auth, access


_PLAIN = Meta(headers=NO_HEADERS)


def _start(note: Any) -> Any:
    """The start argument of a call; an invalid one fails only the call."""
    try:
        found = read_start(note)
    except ProtocolError as error:
        raise InvalidOption("start", note, error.why) from None
    if isinstance(found, AtSequence):
        raise InvalidOption("start", note, "a sequence is for a reader that continues")
    return found
