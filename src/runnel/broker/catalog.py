"""The topics of a broker: made, found, agreed upon and deleted.

Below: log, timeline. Above: broker, topic, attachment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runnel.broker.gate import Gate, GateReader
from runnel.broker.log import Log
from runnel.core.codec import Codec
from runnel.core.errors import NotSupported, TopicConflict, TopicDeleted, UnknownTopic
from runnel.core.options import TopicOptions
from runnel.core.pattern import PatternTable, check_name

if TYPE_CHECKING:
    from runnel.broker.bus import Bus

UNSAID = TopicOptions()  # of a topic that has only been subscribed to: whoever publishes first says what it is

_DURABLE_ONLY = ("durable", "compact", "compression")


class Catalog:
    """Logs by name, and the patterns that new ones are held against."""

    def __init__(self, bus: Bus, *, auto_create: bool) -> None:
        self.logs: dict[str, Log] = {}
        self.patterns: PatternTable[GateReader] = PatternTable()
        self._bus = bus
        self._auto_create = auto_create
        self._epoch = 0

    def names(self) -> list[str]:
        """The topics that users see, sorted."""
        return sorted(name for name in self.logs if name[0] != "$")

    @staticmethod
    def check(options: TopicOptions) -> TopicOptions:
        """`options`, when a topic in memory can have them."""
        for option in _DURABLE_ONLY:
            if value := getattr(options, option):
                raise NotSupported(f"{option}={value!r}", "this broker lives in memory only")
        return options

    def find(
        self, name: str, options: TopicOptions | None = None, codec: Codec[Any] | None = None, *, declared: bool = False
    ) -> Log:
        """The log of a topic, made when it may be; its options and type must agree with what is asked."""
        self._bus.home.check_usable("publishing")
        log = self.logs.get(name)
        if log is None:
            if not self._auto_create and not declared:
                raise UnknownTopic(name)
            log = self.make(check_name(name), options)
        elif options is not None and log.options is not options:
            if log.options is UNSAID:
                log.options = options
                self._bus.timeline.cool()
            self._agree(log, options)
        if codec is not None and log.codec is not codec:
            if log.codec is not None:
                codec.succeed(name, log.codec)
            log.codec = codec
            self._bus.timeline.cool()  # from now on every publish is checked
        return log

    @staticmethod
    def _agree(log: Log, options: TopicOptions) -> None:
        has = log.options.given()
        for option, asked in options.given().items():
            if has.get(option) != asked:
                raise TopicConflict(log.name, option, has.get(option), asked)

    def make(self, name: str, options: TopicOptions | None = None) -> Log:
        """A new log, joined by the readers whose patterns cover it."""
        # Milliseconds and a counter: epochs rise, and no two lives of a topic ever share one.
        self._epoch = max(self._epoch + 1, int(self._bus.clock.time() * 1000) << 11)
        log = self.logs[name] = Log(name, self._epoch, options or UNSAID)
        for reader in self.patterns.covering(name):
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
        gate = log.gate or Gate()
        if name[0] != "$":
            bus.ended.published += log.end
            bus.ended.published_bytes += log.count_bytes()
        bus.settle_readers()
        for reader in gate.readers:
            reader.flow.settle()  # while what it drops can still be counted
        bus.timeline.forget(log)
        bus.publisher.refuse_blocked(log, deleted)
        for reader in list(gate.readers):
            reader.end(deleted)
        for reader in gate.patterns:
            reader.part(log)

    def has_readers(self, topic: str) -> bool:
        """Whether anybody is subscribed to `topic` now."""
        log = self.logs.get(topic)
        readers = self.patterns.covering(topic) if log is None else log.gate or ()
        return any(reader.members for reader in readers)
