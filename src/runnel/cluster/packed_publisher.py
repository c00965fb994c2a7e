"""Publish packed batches of clients of a server that stands in front of a cluster. See `core.backend.PackedPublisher`.

A batch that its client numbered is stored once, though the client may send it again through another server; a client
that was away for so long that the cluster may have forgotten the number gets `OutcomeUnknown`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runnel.cluster.catalog import check_options
from runnel.cluster.publishing import OVERHEAD, ClusterPublishing, Source
from runnel.cluster.writer import ClusterWriter
from runnel.core.backend import Done, WaitingPublish
from runnel.core.columns import PRIORITIES
from runnel.core.errors import NotSupported, RunnelError
from runnel.core.options import NO_TOPIC_OPTIONS, TopicOptions
from runnel.core.position import Position
from runnel.core.publishing import Append, PublishDetails, append_of_batch, checked_batch
from runnel.core.schema import Schema

MAX_KNOWN = 65_536
CLOCK_ERROR = 2.0  # seconds: how well a client knows our time


class ClusterPackedPublisher:
    """The publisher of all listeners of a server."""

    def __init__(self, publishing: ClusterPublishing) -> None:
        self._publishing = publishing
        self._sources: dict[str, Source] = {}
        self.is_turn_over = False

    def __repr__(self) -> str:
        return f"<ClusterPackedPublisher, {len(self._sources)} topics>"

    def for_client(self) -> ClusterPackedPublisher:
        """The same for every client: each topic has one queue."""
        return self

    def release(self) -> None:
        """A client disconnected."""

    def publish(
        self, topic: str, data: bytes, details: PublishDetails | None, done: Done, readers: Sequence[Any] = ()
    ) -> WaitingPublish | None:
        """Publish a batch; `done` is called once, with its positions or the error."""
        publishing = self._publishing
        try:
            publishing.loop_owner.check_usable("publishing")
            if details is not None and details.wait:
                raise NotSupported("publish_and_wait()", "a cluster does not know its subscribers; use request()")
            append = self._append(topic, data, details)
            publishing.check_room(topic, append.size + append.extra + OVERHEAD * len(append.values))
            source = self._source(topic, details)
        except RunnelError as error:
            done(error)
            return None

        def outcome(result: Position | Exception) -> None:
            done(append.span(result) if isinstance(result, Position) else result)

        publishing.add(source, append, outcome)
        return None

    def plan(self, topic: str, data: bytes, details: PublishDetails | None) -> tuple[ClusterWriter, Append]:
        """A batch as part of a transaction: the writer, and what it appends."""
        append = self._append(topic, data, details)
        append.producer = 0  # the marker, or the fence of the transaction, detects a repetition
        options, schema = self._said(details)
        return ClusterWriter(self._publishing, topic, schema, options), append

    async def declare(self, topic: str, options: Mapping[str, Any], schema: Schema | None) -> None:
        """Create a topic, or check that it exists with these options and this type."""
        await self._publishing.catalog.find(topic, check_options(TopicOptions.of(dict(options))), schema, declared=True)

    def _append(self, topic: str, data: bytes, details: PublishDetails | None) -> Append:
        append = append_of_batch(topic, data, checked_batch(topic, data), details)
        append.packed = None
        if append.columns is not None and PRIORITIES in append.columns:
            raise NotSupported("priority", "consumers of JetStream hand messages out in the order of the stream")
        if details is not None:
            append.checked = details.schema is not None
            if details.sent is not None:
                append.sent = details.sent - CLOCK_ERROR
        return append

    def _source(self, topic: str, details: PublishDetails | None) -> Source:
        if details is not None and (details.options or details.schema):
            return self._publishing.source(topic, *self._said(details))
        known = self._sources.get(topic)
        if known is None:
            if len(self._sources) >= MAX_KNOWN:
                self._sources.clear()
            known = self._sources[topic] = self._publishing.source(topic, NO_TOPIC_OPTIONS, None)
        return known

    @staticmethod
    def _said(details: PublishDetails | None) -> tuple[TopicOptions, Schema | None]:
        options, schema = NO_TOPIC_OPTIONS, None
        if details is not None and details.options:
            options = check_options(TopicOptions.of(details.options))
        if details is not None and details.schema:
            schema = Schema(details.schema.encoding, details.schema.schema)
        return options, schema
