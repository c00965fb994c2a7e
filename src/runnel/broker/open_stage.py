"""One stage as its broker knows it: what is durable of it, what is on its way, and how it ended.

Below: log, journal.stage_state. Above: staging, which keeps all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque

from runnel.broker.log import Log
from runnel.core.stage import StageKey, name_of
from runnel.core.transaction_errors import StageEnded
from runnel.journal.stage_state import StageState

INLINE = 1024 * 1024  # a stage below this is written once more when it is committed, and then leaves no trace


class Flight:
    """A batch of a stage on its way to the disk."""

    __slots__ = ("body", "count", "done", "error")

    def __init__(self, body: bytes, count: int, done: asyncio.Future[None]) -> None:
        self.body, self.count, self.done = body, count, done
        self.error: Exception | None = None  # beside the future: a writer that was cancelled asks neither

    def land(self, error: Exception | None = None) -> None:
        """It is durable, or it is not."""
        self.error = error
        if not self.done.done() and not self.done.get_loop().is_closed():
            self.done.set_result(None)


class OpenStage:
    """A stage from its first write to its end. `state` is what is durable; the journal has a copy of its own."""

    __slots__ = ("announced", "committing", "ended", "flights", "kept", "log", "records", "state", "turn")

    def __init__(self, state: StageState, log: Log, *, announced: bool) -> None:
        self.state, self.log = state, log
        self.records = state.records  # counted on: adding them up takes longer with every write
        self.announced = announced  # whether the journal knows of it, or is about to
        self.flights: deque[Flight] = deque()
        self.kept: list[bytes] | None = None if state.counts else []  # its batches, while they are few and small
        self.turn = asyncio.Lock()  # one write at a time: whoever comes second writes behind
        self.committing = False
        self.ended: str | None = None  # why

    def __repr__(self) -> str:
        return f"<Stage {name_of(self.key)} of {self.log.name!r}, {self.records} records>"

    @property
    def key(self) -> StageKey:
        """What its writer calls it."""
        return self.state.key

    @property
    def is_small(self) -> bool:
        """Whether it is better written again than remembered for good."""
        return self.state.bytes < INLINE

    @property
    def following(self) -> int:
        """Which of its batches the next one is."""
        return len(self.state.counts) + sum(1 for flight in self.flights if flight.body)

    def check(self) -> None:
        """Raise unless it can be written to and committed."""
        why = self.ended or ("it is being committed" if self.committing else None)
        if why is not None:
            raise StageEnded(name_of(self.key), why)

    async def settled(self) -> None:
        """Return when nothing of it is on its way."""
        while self.flights:
            await asyncio.wait([flight.done for flight in self.flights])

    def landed(self, flight: Flight, time: int) -> None:
        """The oldest batch on its way is durable."""
        self.flights.remove(flight)
        state = self.state
        state.counts.append(flight.count)
        self.records += flight.count
        state.bytes += len(flight.body)
        state.time = max(state.time, time)
        if self.kept is not None:
            self.kept.append(flight.body)

    def let_go(self) -> int:
        """Keep no batches in memory any more; how many bytes that were."""
        kept, self.kept = self.kept, None
        return sum(map(len, kept or ()))
