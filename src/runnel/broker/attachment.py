"""A reader's hold on the logs that its pattern covers: those there are, and those made later.

Below: gate, timeline. Above: reader (subscriptions), group_reader (groups).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runnel.broker.cursor import Cursor
from runnel.broker.gate import Gate, GateReader
from runnel.broker.log import Log
from runnel.broker.start import open_cursor
from runnel.core.missed import Missed
from runnel.core.pattern import check_pattern, is_pattern, matches
from runnel.core.start import Start, check_start

if TYPE_CHECKING:
    from runnel.broker.bus import Bus


class Attachment:
    """Which logs a reader reads, where it starts, and how it is woken."""

    def __init__(self, bus: Bus, pattern: str, start: Start) -> None:
        self.pattern = check_pattern(pattern)
        self.is_pattern = is_pattern(pattern)
        check_start(start, pattern, is_pattern=self.is_pattern)
        self.logs: set[Log] = set()
        self._bus = bus

    def cover(self) -> None:
        """Find the logs there are."""
        if self.is_pattern:
            self.logs = {log for log in self._bus.catalog.logs.values() if matches(self.pattern, log.name)}
        else:
            self.logs = {self._bus.catalog.find(self.pattern)}

    def cursor(self, start: Start) -> tuple[Cursor, Missed | None]:
        """A cursor on the logs, at `start`."""
        bus = self._bus
        return open_cursor(bus.timeline, self.logs, start, is_pattern=self.is_pattern, store=bus.store)

    def encoding_of(self, topic: str) -> str | None:
        """How the values of a typed topic are written; None where nobody has said."""
        log = self._bus.catalog.logs.get(topic)
        known = None if log is None else log.codec or log.schema
        return None if known is None else known.encoding

    def attach(self, reader: GateReader) -> None:
        """Have `reader` told of what is published from now on."""
        if self.is_pattern:
            self._bus.catalog.patterns.add(self.pattern, reader)
        for log in self.logs:
            self.join(log, reader)
        self._bus.readers[reader] = None

    def join(self, log: Log, reader: GateReader) -> None:
        """Read `log` too."""
        self.logs.add(log)
        if log.gate is None:
            log.gate = Gate()
        log.gate.attach(reader, pattern=self.is_pattern)
        self._bus.timeline.cool()

    def detach(self, reader: GateReader) -> bool:
        """Have `reader` told of nothing more; whether it was attached at all."""
        if reader not in self._bus.readers:
            return False
        del self._bus.readers[reader]
        if self.is_pattern:
            self._bus.catalog.patterns.remove(self.pattern, reader)
        for log in self.logs:
            if log.gate is not None:
                log.gate.detach(reader)
        return True

    def park(self, reader: GateReader) -> None:
        """`reader` sleeps: the next publish must take the long way, and wake it."""
        timeline = self._bus.timeline
        if self.is_pattern:
            timeline.cool()  # the gates of a pattern wake its readers always
            return
        for log in self.logs:
            if log.gate is not None:
                log.gate.parked[reader] = None
            if timeline.hot is log:
                timeline.cool()
