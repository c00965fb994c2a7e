"""The topics of a broker: create, find, check options and type, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runnel.broker.topic.log import Log
from runnel.broker.topic.readers import TopicReader, TopicReaders
from runnel.core.compression import compress
from runnel.core.errors import NotSupported, TopicConflict, TopicDeleted, UnknownTopic
from runnel.core.options import TopicOptions
from runnel.core.pattern import PatternTable, check_name
from runnel.core.schema import Codec, Schema, check_schema_evolution

if TYPE_CHECKING:
    from runnel.broker.bus import Bus

UNDECLARED = TopicOptions()  # of a topic that has only been subscribed to: whoever publishes first says what it is

_DURABLE_ONLY = ("durable", "compact", "compression")


class TopicCatalog:
    """Logs by name, and the patterns that new ones are held against."""

    def __init__(self, bus: Bus, *, auto_create: bool) -> None:
        self.logs: dict[str, Log] = {}
        self.patterns: PatternTable[TopicReader] = PatternTable()
        self._bus = bus
        self._auto_create = auto_create
        self.epoch = 0  # the highest ever given

    def names(self) -> list[str]:
        """The topics that users see, sorted."""
        return sorted(name for name in self.logs if name[0] != "$")

    def check(self, options: TopicOptions) -> TopicOptions:
        """`options`, when a topic here can have them."""
        in_memory = not self._bus.is_durable
        for option in _DURABLE_ONLY if in_memory else ():
            if value := getattr(options, option):
                raise NotSupported(f"{option}={value!r}", "this broker lives in memory only")
        if options.compression:
            compress(options.compression, b"")  # raises now, and not when the first record is written
        for option in ("compression", "compact") if options.durable is False else ():
            if getattr(options, option):
                raise NotSupported(option, "a topic with durable=False is kept in memory, as it is")
        return options

    def find(
        self,
        name: str,
        options: TopicOptions | None = None,
        codec: Codec[Any] | Schema | None = None,
        *,
        declared: bool = False,
    ) -> Log:
        """The log of a topic, made when it may be; its options and type must agree with what is asked."""
        self._bus.loop_owner.check_usable("publishing")
        log = self.logs.get(name)
        if log is None:
            if not self._auto_create and not declared:
                raise UnknownTopic(name)
            log = self.make(check_name(name), options)
        elif options is not None and log.options is not options:
            if log.options is UNDECLARED:
                log.options = options
                self._bus.timeline.cool()
                if options.durable is False:
                    self._bus.groups.unkeep(name)
            self._agree(log, options)
        if options is not None and log.stored is None and self._is_to_be_stored(log):
            self._store(log)
        if codec is not None and log.codec is not codec:
            self._type(log, codec)
        return log

    def _type(self, log: Log, codec: Codec[Any] | Schema) -> None:
        """`log` has this type from now on, if that may follow the one it has. From afar only the schema comes."""
        if (earlier := log.codec or log.schema) is not None:
            check_schema_evolution(log.name, codec, earlier)
        if isinstance(codec, Schema):
            log.schema = codec
        else:
            log.codec = codec
        self._bus.timeline.cool()  # from now on every publish is checked
        is_new = earlier is None or earlier.schema != codec.schema
        if is_new and log.stored is not None and self._bus.store is not None:
            self._bus.store.describe(log)

    def _is_to_be_stored(self, log: Log) -> bool:
        """Whether a topic that somebody publishes to, or declares, belongs on disk."""
        return self._bus.store is not None and log.options.durable is not False and log.name[0] != "$" and not log.end

    def _store(self, log: Log) -> None:
        assert self._bus.store is not None
        self._bus.timeline.cool()
        self._bus.store.adopt(log)

    @staticmethod
    def _agree(log: Log, options: TopicOptions) -> None:
        has = log.options.given()
        for option, asked in options.given().items():
            if option == "durable" and asked == (log.stored is not None):
                continue  # said is what holds anyway
            if has.get(option) != asked:
                raise TopicConflict(log.name, option, has.get(option), asked)

    def make(self, name: str, options: TopicOptions | None = None) -> Log:
        """A new log, joined by the readers whose patterns cover it."""
        # Milliseconds and a counter: epochs rise, and no two lives of a topic ever share one.
        self.epoch = max(self.epoch + 1, int(self._bus.clock.time() * 1000) << 11)
        log = self.logs[name] = Log(name, self.epoch, options or UNDECLARED)
        for reader in dict.fromkeys(self.patterns.covering(name)):  # one with several patterns joins once
            reader.join(log)
        return log

    def delete(self, name: str) -> None:
        """Delete a log and tell its readers."""
        if name not in self.logs:
            raise UnknownTopic(name)
        bus = self._bus
        bus.timeline.cool()
        log = self.logs.pop(name)
        deleted = TopicDeleted(name, log.epoch)
        topic_readers = log.topic_readers or TopicReaders()
        if name[0] != "$":
            bus.ended.published += log.end
            bus.ended.published_bytes += log.count_bytes()
        bus.settle_readers()
        for reader in topic_readers.readers:
            reader.overflow.settle()  # while what it drops can still be counted
        if log.stored is not None and bus.store is not None:
            bus.store.delete(log, deleted)
        bus.timeline.forget(log)
        bus.publisher.refuse_blocked(log, deleted)
        for reader in list(topic_readers.readers):
            reader.end(deleted)
        for reader in topic_readers.patterns:
            reader.part(log)

    def forget_unused(self, log: Log) -> None:
        """Forget a log that somebody only asked to read, once nobody does: names cost nothing when they are left.

        Whoever declared it or published to it has said what it is, and it stays. Patterns cover it, but nobody asked
        for it by them.
        """
        is_said = (
            log.options is not UNDECLARED or log.stored is not None or log.codec is not None or log.schema is not None
        )
        if is_said or log.end or log.ids is not None or log.name[0] == "$" or self.logs.get(log.name) is not log:
            return
        topic_readers = log.topic_readers
        if topic_readers is not None and (topic_readers.readers or topic_readers.blocked):
            return
        del self.logs[log.name]
        log.clear()
        for reader in () if topic_readers is None else topic_readers.patterns:
            reader.part(log)

    def has_readers(self, topic: str) -> bool:
        """Whether anybody is subscribed to `topic` now."""
        log = self.logs.get(topic)
        readers = self.patterns.covering(topic) if log is None else log.topic_readers or ()
        return any(reader.members for reader in readers)
