"""The calls of the native protocol: one small function each, over the public API of the broker.

The arguments of a call arrive as a map and are checked against the function's annotations. Unknown arguments are
ignored, so that arguments can be added later.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from typing import Any, NamedTuple, get_type_hints

import msgspec

from runnel.broker.remote.cursor import wire_batch_of
from runnel.broker.remote.publisher import RemotePublisher
from runnel.broker.tx.transaction import Transaction
from runnel.core.batch_format import BYTES, UnpackedBatch, unpack_untrusted
from runnel.core.clock import from_micros
from runnel.core.errors import InvalidOption, OutcomeUnknown, ProtocolError
from runnel.core.pattern import check_name
from runnel.core.position import Position
from runnel.core.record import NO_HEADERS, REPLY_TO, Meta, Record
from runnel.core.schema import Schema
from runnel.core.trace_context import TRACEPARENT as TRACE
from runnel.server.native.subscriptions import NativeMember
from runnel.server.served_broker import ServedBroker
from runnel.wire.msgpack_messages import AtSequence, PublishDetails, read_start


class Caller(NamedTuple):
    """The client that calls: the served broker, and the client's group members by id."""

    serving: ServedBroker
    member: Callable[[int], NativeMember]


Call = Callable[[Caller, dict[str, Any]], Coroutine[Any, Any, Any]]

CALLS: dict[str, Call] = {}
"""By the name that a CALL frame has."""


def check_method(method: str) -> None:
    """Raise if there is no such call."""
    if method not in CALLS:
        raise InvalidOption("method", method, f"there is no such call; there are {', '.join(sorted(CALLS))}")


def call(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Enter a function into the table. Its parameters after the first are what a client may say."""
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
    """Make a topic, or check that it is there with these options and this type."""
    _declare(caller, topic, options, schema)
    await caller.serving.broker.backend.flushed()


def _declare(caller: Caller, topic: str, options: dict[str, Any] | None, schema: Schema | None) -> None:
    caller.serving.intake.declare(check_name(topic), options or {}, schema)


@call
async def delete(caller: Caller, topic: str) -> None:
    """Delete a topic and its records."""
    await caller.serving.broker.delete(topic)


@call
async def topics(caller: Caller) -> list[str]:
    """The names of all topics."""
    return await caller.serving.broker.topics()


@call
async def bounds(caller: Caller, patterns: list[str] = [], time: int | None = None) -> Any:  # noqa: B006
    """Where topics begin and end; with a `time` in microseconds, from which offset on they are not older."""
    return await caller.serving.broker.bounds(*patterns, time=None if time is None else from_micros(time))


@call
async def place(caller: Caller, places: list[tuple[str, str, int, int]], hold: bool | None = None) -> None:
    """Store where names stand, [name, topic, epoch, offset] each, though nobody reads under them."""
    found = {name: (topic, Position(epoch, offset)) for name, topic, epoch, offset in places}
    await caller.serving.broker.place(found, hold=hold)


@call
async def describe(caller: Caller, topic: str) -> dict[str, Any] | None:
    """What a topic was told about itself; None: there is none of that name."""
    log = caller.serving.broker.backend.catalog.logs.get(topic)
    return None if log is None else {"options": log.options.given()}


@call
async def trim(caller: Caller, topic: str, before: int | dict[str, Any], force: bool = False) -> int:
    """Take away the records before an offset or a time; the first offset that is left."""
    where = _start(before)
    if not isinstance(where, int | datetime):
        raise InvalidOption("before", before, "expected an offset, or a map with a time")
    return await caller.serving.broker.topic(topic).trim(where, force=force)


@call
async def replay(caller: Caller, topic: str, limit: int | None = None, offsets: list[int] | None = None) -> int:
    """Publish dead letters again to where they came from; how many."""
    return await caller.serving.broker.replay(topic, limit=limit, offsets=offsets)


@call
async def discard(caller: Caller, topic: str, offsets: list[int] | None = None) -> int:
    """Be done with dead letters; how many."""
    return await caller.serving.broker.discard(topic, offsets)


# -- groups and names -------------------------------------------------------------------------------------------


@call
async def forget(caller: Caller, name: str) -> None:
    """Forget a named subscription."""
    await caller.serving.broker.forget(name)


@call
async def forget_group(caller: Caller, name: str, pattern: str) -> None:
    """Forget a group that has no members."""
    await caller.serving.broker.forget_group(name, pattern)


@call
async def group(caller: Caller, name: str, pattern: str) -> Any:
    """A group in numbers."""
    return caller.serving.broker.group(name, pattern).statistics()


@call
async def group_pause(caller: Caller, name: str, pattern: str) -> None:
    """Have a group grant nothing more."""
    caller.serving.broker.group(name, pattern).pause()


@call
async def group_resume(caller: Caller, name: str, pattern: str) -> None:
    """Have it go on."""
    caller.serving.broker.group(name, pattern).resume()


@call
async def group_reset(caller: Caller, name: str, pattern: str, start: Any) -> None:
    """Have a group go on from `start`, whatever was settled."""
    caller.serving.broker.group(name, pattern).reset(_start(start))


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
    """The number that a producer has to use next; None: nothing is known of it."""
    return caller.serving.broker.backend.publisher.deduplicator.next(producer)


@call
async def transact(
    caller: Caller,
    publishes: list[tuple[str, bytes, PublishDetails | None]] = [],  # noqa: B006  # msgspec makes a new one each time
    acks: list[tuple[int, int, int, int]] = [],  # noqa: B006
    marks: list[list[Any]] = [],  # noqa: B006
    commits: list[tuple[str, int, int, int]] = [],  # noqa: B006
) -> dict[str, Any]:
    """Publishes, acks, marks and commits of stages: all of it, or nothing."""
    intake, tx = caller.serving.intake, caller.serving.broker.transaction()
    try:
        return await _transacted(caller, intake, tx, publishes, acks, marks, commits)
    except asyncio.CancelledError:
        if tx.has_begun:
            raise OutcomeUnknown("it was being written when nobody waited for it any more", committing=True) from None
        raise


async def _transacted(
    caller: Caller,
    intake: RemotePublisher,
    tx: Transaction,
    publishes: list[tuple[str, bytes, PublishDetails | None]],
    acks: list[tuple[int, int, int, int]],
    marks: list[list[Any]],
    commits: list[tuple[str, int, int, int]],
) -> dict[str, Any]:
    async with tx:
        promised = [intake.add(tx, check_name(topic), batch, about) for topic, batch, about in publishes]
        for subscription, lease, first, end in acks:
            member = caller.member(subscription).member
            for place in range(first, end):
                tx.ack(member.delivery(lease, place))
        for one in marks:
            if not 2 <= len(one) <= 3:
                raise InvalidOption("marks", one, "expected [name, value] or [name, value, expected]")
            tx.mark(*one)
        if commits:
            promised += tx.commit(*commits)
    spans = [(one.span.first.epoch, one.span.first.offset, one.span.last.offset) for one in promised if tx.applied]
    return {"applied": tx.applied, "spans": spans if tx.applied else [None] * len(promised)}


# -- stages -----------------------------------------------------------------------------------------------------


@call
async def stages(caller: Caller) -> Any:
    """The stages that are open."""
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
    """Stage the records of a batch; how many records and bytes there are now. Without a batch it is only opened."""
    if options or schema:
        _declare(caller, topic, options, schema)
    stage = _stage(caller, topic, key)
    if batch is None:
        await stage.write([], ordinal=ordinal)
    else:
        await stage._take(batch, caller.serving.intake.checked(topic, batch, typed=schema is not None), ordinal)
        await asyncio.sleep(0)  # one that is staged already is passed over without waiting for anything
    return {"records": stage.records, "bytes": stage.bytes}


@call
async def stage_state(caller: Caller, topic: str, key: tuple[str, int, int, int]) -> dict[str, int]:
    """How many records and bytes a stage holds."""
    stage = _stage(caller, topic, key)
    return {"records": stage.records, "bytes": stage.bytes}


@call
async def stage_drop(caller: Caller, topic: str, key: tuple[str, int, int, int]) -> None:
    """Give a stage up."""
    await _stage(caller, topic, key).drop()


def _stage(caller: Caller, topic: str, key: tuple[str, int, int, int]) -> Any:
    writer, batch, part, attempt = key
    return caller.serving.broker.stage(topic, writer=writer, batch=batch, part=part, attempt=attempt)


# -- requests ---------------------------------------------------------------------------------------------------


@call
async def request(caller: Caller, topic: str, batch: bytes, timeout: float = 5.0) -> dict[str, Any]:
    """Publish one record and wait for the reply to it."""
    broker = caller.serving.broker
    value, meta = _one(unpack_untrusted(batch))
    found = await broker.request(topic, value, timeout=timeout, key=meta.key, headers=meta.headers)
    piece = wire_batch_of(found, BYTES)
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
    """Answer a request; False when whoever asked has stopped waiting."""
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
async def statistics(caller: Caller) -> dict[str, Any]:
    """The broker in numbers; `flowed` as a list of [pattern, subscriber, numbers]."""
    found = caller.serving.broker.statistics()
    numbers = {name: getattr(found, name) for name in found.__struct_fields__}
    numbers["flowed"] = [[pattern, subscriber, flowed] for (pattern, subscriber), flowed in found.flowed.items()]
    return numbers


@call
async def info(caller: Caller) -> dict[str, Any]:
    """The server: its version, listeners and limits."""
    return caller.serving.describe()


@call
async def connections(caller: Caller) -> list[dict[str, Any]]:
    """Who is connected, and what each of them holds."""
    return caller.serving.connections.describe()


_PLAIN = Meta(headers=NO_HEADERS)


def _start(note: Any) -> Any:
    """A start that came with a call: where it makes no sense, only the call is refused."""
    try:
        found = read_start(note)
    except ProtocolError as error:
        raise InvalidOption("start", note, error.why) from None
    if isinstance(found, AtSequence):
        raise InvalidOption("start", note, "a sequence is for a reader that goes on")
    return found
