"""The topics of a cluster: options, types and epochs, one message for each topic, mirrored in every process.

A process reads the last message of every topic when it opens, and then the changes as they come. A change is written
only if the entry is still the one that it was made from. A topic that is deleted keeps a message that says so, so that
its next life has another epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from runnel.cluster.jetstream import EXPECTED, ROLLUP, WRONG_LAST, Acknowledged, JetStream
from runnel.cluster.pulling import OrderedConsumer
from runnel.core.compression import compress
from runnel.core.errors import ClusterRefused, NotSupported, TopicConflict, UnknownTopic
from runnel.core.options import NO_TOPIC_OPTIONS, TopicOptions
from runnel.core.pattern import check_name
from runnel.core.schema import Codec, Schema, SchemaValidator, check_schema_evolution
from runnel.wire.nats import Message

ATTEMPTS = 50  # to change an entry that others change, too

_CANNOT = {
    "retention_bytes": "JetStream limits the bytes of a whole stream, not of some of its subjects; use retention_age",
    "retention_count": "JetStream counts messages, and for all subjects alike; use retention_age, or trim()",
    "compact": "messages hold many records, and JetStream can only replace whole messages by key",
}


class TopicEntry(msgspec.Struct, frozen=True):
    """The catalog's entry of a topic."""

    epoch: int
    options: TopicOptions = NO_TOPIC_OPTIONS
    schema: Schema | None = None
    deleted: bool = False
    trimmed: int = 0  # the place behind its last record when all of them were trimmed
    declared: bool = False  # else it was only published to: a declaration may still set options


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(TopicEntry).decode


def check_options(options: TopicOptions) -> TopicOptions:
    """`options`, if a topic of a cluster can have them."""
    if options is NO_TOPIC_OPTIONS:
        return options
    for option, why in _CANNOT.items():
        if value := getattr(options, option):
            raise NotSupported(f"{option}={value!r}", why)
    if options.durable is False:
        raise NotSupported("durable=False", "every topic of a cluster is stored and replicated")
    if options.retention_age is not None and options.retention_age < 1:
        raise NotSupported(
            f"retention_age={options.retention_age!r}", "JetStream keeps a message for 1 second at least"
        )
    if options.compression:
        compress(options.compression, b"")  # raises now, and not when the first record is sent
    return options


class ClusterCatalog:
    """All topics known to this process."""

    def __init__(self, js: JetStream, time: Callable[[], float], *, auto_create: bool) -> None:
        self._js, self._time, self._auto_create = js, time, auto_create
        self._entries: dict[str, tuple[TopicEntry, int]] = {}  # and the stream sequence of the entry
        self._validators: dict[str, tuple[Schema, SchemaValidator]] = {}
        self._consumer: OrderedConsumer | None = None
        self._is_current: asyncio.Future[None] | None = None
        self.on_change: list[Callable[[str, TopicEntry | None, TopicEntry], None]] = []

    async def open(self) -> None:
        """Read all entries, and begin to follow the changes."""
        self._is_current = asyncio.get_running_loop().create_future()
        start = await self._js.last_sequence()
        self._consumer = OrderedConsumer(
            self._js,
            [self._js.subjects.all_catalog],
            self._arrived,
            last_per_subject=True,
            batch=1000,
            caught_up=self._caught_up,
        )
        await self._consumer.start()
        await self._is_current
        if not self._entries:
            self._consumer.begin_at(start + 1)

    def close(self) -> None:
        """Follow no more."""
        if self._consumer is not None:
            self._consumer.end()

    def _arrived(self, message: Message, about: Acknowledged) -> None:
        topic = self._js.subjects.catalog_topic(message.subject)
        try:
            entry = _decode(message.payload)
        except msgspec.MsgspecError:
            return  # written by a later version
        self._learn(topic, entry, about.sequence)

    def _caught_up(self) -> None:
        if self._is_current is not None and not self._is_current.done():
            self._is_current.set_result(None)

    def _learn(self, topic: str, entry: TopicEntry, sequence: int) -> None:
        known = self._entries.get(topic)
        if known is not None and known[1] >= sequence:
            return
        self._entries[topic] = entry, sequence
        for call in list(self.on_change):
            call(topic, None if known is None else known[0], entry)

    # -- looking ------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The topics, sorted."""
        return sorted(name for name, (entry, _) in self._entries.items() if not entry.deleted and name[0] != "$")

    def get(self, topic: str) -> TopicEntry | None:
        """The entry of a topic; None: there is no such topic."""
        found = self._entries.get(topic)
        return None if found is None or found[0].deleted else found[0]

    def check_subscribed(self, topic: str) -> None:
        """Raise unless a topic may be subscribed to: with `auto_create=False` it must be there."""
        if self.get(topic) is None:
            check_name(topic)
            if not self._auto_create:
                raise UnknownTopic(topic)

    def least_epoch(self, topic: str) -> int:
        """The epoch that records of a topic have at least; those of an earlier life are no longer its own."""
        found = self._entries.get(topic)
        return 0 if found is None else found[0].epoch + found[0].deleted

    def validator(self, topic: str) -> SchemaValidator | None:
        """The validator for values of a typed topic that were not encoded by their publisher."""
        entry = self.get(topic)
        if entry is None or entry.schema is None:
            return None
        known = self._validators.get(topic)
        if known is None or known[0] != entry.schema:
            if len(self._validators) > 1024:
                self._validators.clear()
            known = self._validators[topic] = entry.schema, SchemaValidator(*entry.schema)
        return known[1]

    # -- changing -----------------------------------------------------------------------------------------------

    async def find(
        self,
        topic: str,
        options: TopicOptions = NO_TOPIC_OPTIONS,
        codec: Codec[Any] | Schema | None = None,
        *,
        declared: bool = False,
    ) -> TopicEntry:
        """The entry of a topic, created or changed if allowed; options and type must agree with the given ones."""
        schema = None if codec is None else Schema(codec.encoding, codec.schema)
        if schema is not None:
            schema.check()
        for attempt in range(ATTEMPTS):
            known = self._entries.get(topic)
            if known is None or attempt:
                known = await self._read(topic)
            wanted = self._wanted(topic, known[0] if known else None, options, schema, declared=declared)
            if known is not None and wanted is known[0]:
                return wanted
            if await self._write(topic, wanted, known[1] if known else 0):
                return wanted
        raise TopicConflict(topic, "options", "being changed by others", options)

    def _wanted(
        self, topic: str, entry: TopicEntry | None, options: TopicOptions, schema: Schema | None, *, declared: bool
    ) -> TopicEntry:
        """The entry that there should be: the same object if nothing changes."""
        if entry is None or entry.deleted:
            if not self._auto_create and not declared:
                raise UnknownTopic(topic)
            check_name(topic)
            if schema is not None:
                schema.check()
            least = 0 if entry is None else entry.epoch + 1
            epoch = max(least, int(self._time() * 1000) << 11)
            return TopicEntry(epoch, options, schema, declared=declared or options is not NO_TOPIC_OPTIONS)
        has, asked = entry.options.given(), options.given()
        asked.pop("durable", None)
        if asked and not entry.declared and not has:
            entry = msgspec.structs.replace(entry, options=options, declared=True)
        else:
            for option, value in asked.items():
                if has.get(option) != value:
                    raise TopicConflict(topic, option, has.get(option), value)
        if schema is not None and schema != entry.schema:
            if entry.schema is not None:
                check_schema_evolution(topic, schema, entry.schema)
            else:
                schema.check()
            entry = msgspec.structs.replace(entry, schema=schema)
        return entry

    async def delete(self, topic: str) -> int:
        """Mark a topic as deleted; the stream sequence behind which records belong to its next life."""
        return await self._change(topic, lambda entry: TopicEntry(entry.epoch, deleted=True))

    async def trimmed(self, topic: str, epoch: int, place: int) -> None:
        """Say that all records of a topic before a place were trimmed."""

        def change(entry: TopicEntry) -> TopicEntry:
            is_new = entry.epoch == epoch and entry.trimmed < place
            return msgspec.structs.replace(entry, trimmed=place) if is_new else entry

        await self._change(topic, change)

    async def _change(self, topic: str, change: Callable[[TopicEntry], TopicEntry]) -> int:
        """Change the entry of a topic that is there; its stream sequence."""
        for _ in range(ATTEMPTS):
            known = await self._read(topic)
            if known is None or known[0].deleted:
                raise UnknownTopic(topic)
            wanted = change(known[0])
            if wanted is known[0] or await self._write(topic, wanted, known[1]):
                return self._entries[topic][1]
        raise TopicConflict(topic, "options", "being changed by others", "changed here")

    async def _read(self, topic: str) -> tuple[TopicEntry, int] | None:
        """The entry as the leader has it."""
        found = await self._js.last(self._js.subjects.catalog(topic))
        if found is None:
            return None
        entry = _decode(found.payload)
        self._learn(topic, entry, found.sequence)
        known = self._entries[topic]
        return known if known[1] >= found.sequence else (entry, found.sequence)

    async def _write(self, topic: str, entry: TopicEntry, expected: int) -> bool:
        """Write an entry, unless it was changed since; whether it was written."""
        try:
            sequence, _ = await self._js.store(
                self._js.subjects.catalog(topic), _encode(entry), {EXPECTED: str(expected), ROLLUP: "sub"}
            )
        except ClusterRefused as error:
            if error.number != WRONG_LAST:
                raise
            return False
        self._learn(topic, entry, sequence)
        return True
