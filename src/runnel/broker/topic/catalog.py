"""The topics of a broker: create, find, check options and type, delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from runnel.broker.topic.log import Log
from runnel.broker.topic.readers import AttachedReaders, TopicReaders
from runnel.broker.topic.timeline import Timeline
from runnel.core.clock import Clock
from runnel.core.compression import compress
from runnel.core.errors import NotSupported, TopicConflict, TopicDeleted, UnknownTopic
from runnel.core.options import NO_TOPIC_OPTIONS, TopicOptions, changed_options
from runnel.core.pattern import SECURITY_LOG_TOPICS, check_name, is_kept_when_internal
from runnel.core.schema import Codec, Schema, SchemaValidator, check_schema_evolution
from runnel.core.telemetry import ANALYTICS_OPTIONS

UNDECLARED = TopicOptions()  # of a topic that was only subscribed to: the first publish decides its options

_DURABLE_ONLY = ("durable", "compact", "compression", "retention_until")


class DurableTopics(Protocol):
    """The store, as the catalog needs it."""

    def adopt(self, log: Log) -> None:
        """Make `log` a durable topic."""

    def describe(self, log: Log) -> None:
        """Have the options and the type of a topic written."""

    def configured(self, log: Log) -> None:
        """Have the new options of a topic written, and what they keep looked at again."""

    def delete(self, log: Log, why: TopicDeleted) -> None:
        """Delete a topic on disk, with its pending writes."""


class CatalogEvents(Protocol):
    """Callbacks of other parts of the broker for a change in the catalog."""

    def topic_removed(self, log: Log) -> None:
        """A topic leaves the catalog: its counts go into the totals."""

    def publishes_refused(self, log: Log, why: TopicDeleted) -> None:
        """Publishers that wait for room in a deleted topic are refused."""

    def memory_only(self, topic: str) -> None:
        """A topic that groups have joined turns out not to be durable."""


class TopicCatalog:
    """Logs by name."""

    def __init__(
        self,
        timeline: Timeline,
        readers: AttachedReaders,
        clock: Clock,
        check_usable: Callable[[str], None],
        events: CatalogEvents,
        *,
        is_durable: bool,
        auto_create: bool,
    ) -> None:
        self.logs: dict[str, Log] = {}
        self.durable: DurableTopics | None = None  # set when the folder is open
        self._timeline, self._patterns, self._clock = timeline, readers.patterns, clock
        self._check_usable, self._events = check_usable, events
        self._is_durable, self._auto_create = is_durable, auto_create
        self.epoch = 0  # the highest ever given

    def names(self) -> list[str]:
        """The topics that users see, sorted."""
        return sorted(name for name in self.logs if name[0] != "$")

    def check(self, options: TopicOptions) -> TopicOptions:
        """`options`, when a topic here can have them."""
        if options is NO_TOPIC_OPTIONS:
            return options
        in_memory = not self._is_durable
        for option in _DURABLE_ONLY if in_memory else ():
            if value := getattr(options, option):
                raise NotSupported(f"{option}={value!r}", "this broker lives in memory only")
        if options.compression:
            compress(options.compression, b"")  # raises now, and not when the first record is written
        for option in _DURABLE_ONLY[1:] if options.durable is False else ():
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
        """The log of a topic, created if allowed; the given options and type must agree with its own."""
        self._check_usable("publishing")
        log = self.logs.get(name)
        if isinstance(codec, Schema) and (log is None or log.type is None):
            codec.check()
        if log is None:
            if not self._auto_create and not declared:
                raise UnknownTopic(name)
            if options is None and is_kept_when_internal(name) and name not in SECURITY_LOG_TOPICS:
                return self.make(name)  # it is read before there is something in it
            if name in SECURITY_LOG_TOPICS:
                log = self.make(name, options)
            else:
                check_name(name)
                # Topics of pipelines' metrics are bounded, even if the pipelines set no bound.
                is_unsaid = name[0] == "$" and (options is None or not options.retains)
                log = self.make(name, ANALYTICS_OPTIONS if is_unsaid else options)
        elif options is not None and log.options is not options:
            if name[0] == "$" and name not in SECURITY_LOG_TOPICS:
                check_name(name)  # it is there, but not for everyone to publish to
            if log.options is UNDECLARED:
                log.options = options if options.retains or name[0] != "$" else ANALYTICS_OPTIONS
                self._timeline.cool()
                if options.durable is False:
                    self._events.memory_only(name)
            self._agree(log, options)
        if options is not None and log.stored is None and self._is_to_be_stored(log):
            self._store(log)
        if codec is not None and log.type is not codec:
            self._type(log, codec)
        return log

    def find_own(self, name: str, options: TopicOptions) -> Log:
        """The log of an internal topic that the broker publishes to, created if needed. Its stored options hold."""
        log = self.logs.get(name)
        if log is None:
            log = self.make(name, options)
        elif log.options is UNDECLARED:  # it was only subscribed to
            log.options = options
            self._timeline.cool()
        if log.stored is None and self._is_to_be_stored(log):
            self._store(log)
        return log

    def _type(self, log: Log, codec: Codec[Any] | Schema) -> None:
        """Set the type of `log`, if it is compatible with the type it has. A remote publisher sends only the schema."""
        earlier = log.type
        is_new = earlier is None or (earlier.encoding, earlier.schema) != (codec.encoding, codec.schema)
        if not is_new and isinstance(codec, Schema):
            return
        if is_new and earlier is not None:
            check_schema_evolution(log.name, codec, earlier)
        log.type = SchemaValidator(*codec) if isinstance(codec, Schema) else codec
        self._timeline.cool()  # from now on every publish is checked
        if is_new and log.stored is not None and self.durable is not None:
            self.durable.describe(log)

    def _is_to_be_stored(self, log: Log) -> bool:
        """Whether a topic that is published to or declared belongs on disk."""
        if self.durable is None or log.options.durable is False or log.end:
            return False
        return log.name[0] != "$" or is_kept_when_internal(log.name)

    def _store(self, log: Log) -> None:
        assert self.durable is not None
        self._timeline.cool()
        self.durable.adopt(log)

    @staticmethod
    def _agree(log: Log, options: TopicOptions) -> None:
        has = log.options.given()
        for option, asked in options.given().items():
            if option in log.configured or (option == "durable" and asked == (log.stored is not None)):
                continue  # an operator's choice wins; or the given value is the current one
            if has.get(option) != asked:
                raise TopicConflict(log.name, option, has.get(option), asked)

    def configure(self, name: str, changes: Mapping[str, Any]) -> Log:
        """Change options of a topic that exists; None takes one back to its default. They apply from now on."""
        log = self.logs.get(name)
        if log is None or (log.options is UNDECLARED and log.stored is None and not log.end):
            raise UnknownTopic(name)
        wanted = self.check(changed_options(log.options, changes))
        if log.stored is None:
            for option in _DURABLE_ONLY[1:]:
                if changes.get(option):
                    raise NotSupported(option, "the topic is kept in memory")
        self._timeline.cool()
        log.begin_at(self._timeline.first(log), log.reason)  # where it begins never goes back
        log.options, log.configured = wanted, log.configured | changes.keys()
        if log.stored is not None and self.durable is not None:
            self.durable.configured(log)
        else:
            self._timeline.first(log)
        return log

    def make(self, name: str, options: TopicOptions | None = None) -> Log:
        """A new log; the readers whose patterns cover it are notified."""
        # Milliseconds and a counter: epochs rise, and no two topics of one name ever share one.
        self.epoch = max(self.epoch + 1, int(self._clock.time() * 1000) << 11)
        log = self.logs[name] = self.new_log(name, self.epoch, options or UNDECLARED)
        for reader in self._patterns.covering(name):
            reader.join(log)
        return log

    def new_log(self, name: str, epoch: int, options: TopicOptions) -> Log:
        """A log that is not in the catalog yet."""
        return Log(name, epoch, options, self._patterns)

    def delete(self, name: str) -> None:
        """Delete a log and notify its readers."""
        if name not in self.logs:
            raise UnknownTopic(name)
        self._timeline.cool()
        log = self.logs.pop(name)
        deleted = TopicDeleted(name, log.epoch)
        topic_readers = log.topic_readers or TopicReaders()
        self._events.topic_removed(log)
        for reader in topic_readers:
            reader.settle()  # while what it drops can still be counted
        if log.stored is not None and self.durable is not None:
            self.durable.delete(log, deleted)
        self._timeline.forget(log)
        self._events.publishes_refused(log, deleted)
        for reader in list(topic_readers.readers):
            reader.end(deleted)
        self._parted(log)

    def _parted(self, log: Log) -> None:
        self._patterns.forget(log)
        for reader in self._patterns.covering(log.name):
            reader.part(log)

    def forget_unused(self, log: Log) -> None:
        """Remove a log that was only subscribed to, once its last reader has left, so that names cost nothing.

        A topic that was declared or published to stays. A pattern that matches the topic does not keep it.
        """
        is_said = log.options is not UNDECLARED or log.stored is not None or log.type is not None
        if is_said or log.end or log.ids is not None or log.name[0] == "$" or self.logs.get(log.name) is not log:
            return
        topic_readers = log.topic_readers
        if topic_readers is not None and (topic_readers.readers or topic_readers.blocked):
            return
        del self.logs[log.name]
        log.clear()
        self._parted(log)

    def reclaim(self, name: str) -> bool:
        """Delete a topic in memory that no reader has subscribed to by its name, and no type was declared for.

        A reader of a pattern that has not read it all gets no more of it.
        """
        log = self.logs.get(name)
        if log is None:
            return True
        readers = log.topic_readers
        if log.stored is not None or log.type is not None or name[0] == "$":
            return False
        if readers is not None and (readers.readers or readers.blocked):
            return False
        self.delete(name)
        return True

    def has_readers(self, topic: str) -> bool:
        """Whether `topic` has a subscriber now."""
        log = self.logs.get(topic)
        readers = self._patterns.covering(topic) if log is None else log.topic_readers or ()
        return any(reader.members for reader in readers)
