"""A reader's hold on the logs that its pattern covers: those there are, and those made later.

Below: gate, timeline. Above: reader (subscriptions), group_reader (groups).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

    def __init__(self, bus: Bus, pattern: str | Sequence[str], start: Start) -> None:
        several = isinstance(pattern, list | tuple)  # then it is read by sequence, whatever they are
        self.patterns = tuple(map(check_pattern, dict.fromkeys(pattern) if several else (pattern,)))
        self.pattern = " ".join(self.patterns)
        self.is_pattern = several or is_pattern(self.pattern)
        check_start(start, self.pattern, is_pattern=self.is_pattern)
        self.logs: set[Log] = set()
        self.changes = 0  # how often topics came or went
        self._bus = bus

    @contextmanager
    def covering(self) -> Iterator[None]:
        """Find the logs there are; what was made for it goes again if the reader comes to nothing."""
        self.cover()
        try:
            yield
        except BaseException:
            self._let_go()
            raise

    def cover(self) -> None:
        """Find the logs there are."""
        if self.is_pattern:
            logs = self._bus.catalog.logs
            self.logs = {logs[name] for name in self.patterns if name in logs}
            if wild := [one for one in self.patterns if is_pattern(one)]:
                self.logs |= {log for log in logs.values() if any(matches(one, log.name) for one in wild)}
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
            for one in self.patterns:
                self._bus.catalog.patterns.add(one, reader)
        for log in self.logs:
            self.join(log, reader)
        self._bus.readers[reader] = None

    def join(self, log: Log, reader: GateReader) -> None:
        """Read `log` too."""
        self.logs.add(log)
        self.changes += 1
        if log.gate is None:
            log.gate = Gate()
        log.gate.attach(reader, pattern=self.is_pattern)
        self._bus.timeline.cool()

    def part(self, log: Log) -> None:
        """`log` was deleted."""
        self.logs.discard(log)
        self.changes += 1

    def detach(self, reader: GateReader) -> bool:
        """Have `reader` told of nothing more; whether it was attached at all."""
        if reader not in self._bus.readers:
            return False
        del self._bus.readers[reader]
        if self.is_pattern:
            for one in self.patterns:
                self._bus.catalog.patterns.remove(one, reader)
        for log in self.logs:
            if log.gate is not None:
                log.gate.detach(reader)
        self._let_go()
        return True

    def _let_go(self) -> None:
        """A topic that was only made to be read need not stay. It is still known here: where its reader stood."""
        if not self.is_pattern:
            for log in self.logs:
                self._bus.catalog.forget_unused(log)

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
