"""Transactions on a cluster: publishes and markers as one atomic batch of messages.

A marker is written only if it is still the one that was read, so that of two transactions with one marker the first
counts. A batch whose outcome is unknown is sent again, and a fence in it makes sure that it is stored once.
"""

from __future__ import annotations

import msgspec

from runnel.cluster.catalog import TopicEntry
from runnel.cluster.jetstream import EXPECTED, ROLLUP, WRONG_LAST, JetStream, Outgoing
from runnel.cluster.layout import MAX_BATCH, first_offset
from runnel.cluster.publishing import ClusterPublishing
from runnel.cluster.writer import ClusterWriter
from runnel.core.columns import DUE, Columns
from runnel.core.errors import ClusterRefused, NotSupported, TooLarge
from runnel.core.markers import MarkerValue
from runnel.core.position import Position
from runnel.core.publishing import Publication
from runnel.core.transaction import ADVICE, TransactionRequest

ATTEMPTS = 20  # with a marker that others move at the same time

_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode


async def read_marker(js: JetStream, name: str) -> tuple[MarkerValue | None, int]:
    """The value of a marker, and the stream sequence of its message; None, 0: there is no such marker."""
    found = await js.last(js.subjects.marker(name))
    return (None, 0) if found is None else (_decode(found.payload), found.sequence)


class PlannedUnit:
    """The publishes of a transaction to one topic: one unit, and its outcome."""

    def __init__(self, writer: ClusterWriter) -> None:
        self.writer = writer
        self.values: list[bytes] = []
        self.columns: Columns | None = None
        self.publications: list[tuple[int, Publication]] = []
        self.expected: dict[str, str] = {}
        self.entry: TopicEntry | None = None
        self.messages: list[Outgoing] = []
        self.at = 0  # the number of its first message in the batch


async def commit(publishing: ClusterPublishing, request: TransactionRequest) -> None:
    """Commit a transaction, all of it or nothing."""
    if request.acks:
        why = "JetStream cannot ack in an atomic batch; publish with a mark of the delivery's position, then ack it"
        request.forget()
        raise NotSupported("tx.ack()", why)
    if request.stages:
        raise NotSupported("tx.commit(stage)", "a cluster has no stages")
    units = await _planned(publishing, request)
    js = publishing.js
    for attempt in range(ATTEMPTS):
        messages: list[Outgoing] = []
        for unit in units:
            unit.at = len(messages)
            assert unit.entry is not None
            made = publishing.messages(unit.writer.source, unit.entry, unit.values, unit.columns)
            made[0] = made[0]._replace(headers={**made[0].headers, **unit.expected})
            unit.messages = made
            messages += made
        past = False
        for marker in request.markers.values():
            current, sequence = await read_marker(js, marker.name)
            past = marker.is_past(current) or past
            headers = {EXPECTED: str(sequence), ROLLUP: "sub"}
            messages.append(Outgoing(js.subjects.marker(marker.name), _encode(marker.value), headers))
        if past:
            request.forget(done=True)
            return
        if len(messages) >= MAX_BATCH:
            raise TooLarge(
                "a transaction in messages", len(messages), "messages of a transaction", MAX_BATCH - 1, ADVICE
            )
        request.has_begun = True
        try:
            first = await js.store_all(messages)
        except ClusterRefused as error:
            is_expecting = bool(request.markers) or any(unit.expected for unit in units)
            if error.number != WRONG_LAST or not is_expecting or attempt + 1 == ATTEMPTS:
                raise
            for unit in units:
                await _expect(publishing, unit, request)  # raises, if it is the end of a topic that moved
            continue
        break
    request.settle()
    for unit in units:
        assert unit.entry is not None
        base = first_offset(first + unit.at)
        publishing.count(unit.writer.topic, len(unit.values), sum(map(len, unit.values)))
        publishing.chain(unit.writer.topic).stored(unit.entry.epoch, base, unit.messages, len(unit.values))
        for index, publication in unit.publications:
            publication.put(Position(unit.entry.epoch, base + index))


async def _planned(publishing: ClusterPublishing, request: TransactionRequest) -> list[PlannedUnit]:
    """The publishes to each topic, checked."""
    units: dict[str, PlannedUnit] = {}
    for writer, append, publication in request.publishes:
        assert isinstance(writer, ClusterWriter), "writers are of the backend that commits"
        writer.check(append)
        if append.message_id is not None:
            raise NotSupported("message_id in a transaction", "JetStream refuses the batch; give it a mark instead")
        if append.columns is not None and DUE in append.columns:
            raise NotSupported("delay in a transaction", "the cluster publishes it later by itself; publish it outside")
        unit = units.setdefault(writer.topic, PlannedUnit(writer))
        index = len(unit.values)
        if append.columns is not None:
            if unit.columns is None:
                unit.columns = Columns()
            unit.columns.extend(index, append.columns)
        unit.values.extend(append.values)
        unit.publications.append((index, publication))
    for unit in units.values():
        await _expect(publishing, unit, request)
    for writer, append, _ in request.publishes:  # a transaction that is refused makes no topics
        assert isinstance(writer, ClusterWriter)
        units[writer.topic].entry = await publishing.entry(writer.source)
        publishing.check_values(writer.source, append, list(append.values))
    return list(units.values())


async def _expect(publishing: ClusterPublishing, unit: PlannedUnit, request: TransactionRequest) -> None:
    """Have the batch stored only if the topic ends where a publish of it expects."""
    for writer, append, _ in request.publishes:
        if writer.topic == unit.writer.topic and append.expected_offset is not None:
            unit.expected = await publishing.expected(unit.writer.topic, append.expected_offset)
