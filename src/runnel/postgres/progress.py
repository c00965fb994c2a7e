"""The position of a relay, and where it continues: markers in the broker against the facts of the PostgreSQL server.

Everything up to the stored place is published, and nothing behind it. `resume` decides; it neither reads nor writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from runnel.core.markers import MarkerValue
from runnel.wire.pgoutput import format_lsn

_PLACE = Struct("!QQ")
_LAST_ROW = 2**64 - 1


class RowPlace(NamedTuple):
    """A row of the stream: the LSN of its transaction's commit, and its number among the changes of that one."""

    lsn: int
    number: int

    def pack(self) -> bytes:
        """As bytes that sort as places do."""
        return _PLACE.pack(self.lsn, self.number)

    @classmethod
    def unpack(cls, data: bytes) -> RowPlace:
        """From `pack`."""
        return cls(*_PLACE.unpack(data))

    def __str__(self) -> str:
        return f"{format_lsn(self.lsn)} row {self.number}"


START = RowPlace(0, 0)
ENDED = RowPlace(
    _LAST_ROW, _LAST_ROW
)  # of a generation that is over: a relay that still publishes in it gets a conflict


class MarkerNames(NamedTuple):
    """The names of a relay's markers in its broker."""

    system: str  # the identifier of the PostgreSQL cluster
    relay: str  # its name: that of its slot, unless several relays share one

    @property
    def generation(self) -> str:
        """Holds the newest generation and its timeline."""
        return f"relay:{self.system}:{self.relay}"

    def place(self, generation: int) -> str:
        """Holds the last published place of a generation."""
        return f"{self.generation}:{generation}"

    def confirmed(self, generation: int) -> str:
        """Holds the LSN before which everything is stored: no higher one is confirmed to PostgreSQL."""
        return f"{self.generation}:{generation}:confirmed"

    def snapshot(self, generation: int, table: str) -> str:
        """The progress of a table's snapshot."""
        return f"{self.generation}:{generation}:snapshot:{table}"


class Stored(NamedTuple):
    """The state stored in markers."""

    generation: int
    timeline: int
    place: RowPlace
    confirmed: int  # LSN


class ServerFacts(NamedTuple):
    """The state of PostgreSQL when the relay connects."""

    timeline: int
    end: int  # LSN: the end of its log
    forks: Sequence[tuple[int, int]]  # (timeline, LSN at which it was left), of the timelines before this one
    slot_confirmed: int  # LSN


class Resume(NamedTuple):
    """Where to continue."""

    generation: int
    place: RowPlace  # rows up to here are published already
    start: int  # LSN to ask for
    gap: str | None  # why rows may be missing or repeated; None: neither


def pack_generation(generation: int, timeline: int) -> str:
    """The value of the marker of a generation: text that sorts as generations do."""
    return f"{generation:010d}:{timeline:010d}"


def read_stored(names: MarkerNames, marks: Mapping[str, MarkerValue]) -> Stored | None:
    """The state stored in markers; None: this relay never ran."""
    text = marks.get(names.generation)
    if not isinstance(text, str):
        return None
    generation, timeline = map(int, text.split(":"))
    place, confirmed = marks.get(names.place(generation)), marks.get(names.confirmed(generation))
    return Stored(
        generation,
        timeline,
        RowPlace.unpack(place) if isinstance(place, bytes) else START,
        confirmed if isinstance(confirmed, int) else 0,
    )


def other_systems(names: MarkerNames, marks: Iterable[str]) -> list[str]:
    """The other PostgreSQL clusters from which a relay of this name has published."""
    found = [name.split(":") for name in marks]
    return sorted(
        {parts[1] for parts in found if len(parts) == 3 and parts[2] == names.relay and parts[1] != names.system}
    )


def resume(stored: Stored | None, server: ServerFacts, others: Sequence[str] = ()) -> Resume:
    """Where a relay continues, and whether rows may be missing or repeated there.

    A marker never moves back. Where PostgreSQL's own log went back (a backup was restored, a standby that was behind
    was promoted), a new generation has markers of its own, so that rows written from then on are not taken for rows
    that were published before. `others` are clusters that this relay published from earlier.
    """
    if stored is None:
        gap = None
        if others:
            gap = f"this is another PostgreSQL cluster than before ({', '.join(others)})"
        return Resume(1, START, server.slot_confirmed, gap)
    generation, timeline, place, confirmed = stored
    if server.timeline != timeline:
        fork = dict(server.forks).get(timeline, 0)  # 0: it is no ancestor, so nothing is known to be shared
        if place.lsn >= fork or confirmed > fork:
            shared = min(place, RowPlace(fork - 1, _LAST_ROW)) if fork else START
            gap = None
            if shared != place:
                gap = (
                    f"the server left timeline {timeline} at {format_lsn(fork)}, before the last published row, "
                    f"{place}: it was restored, or a standby that was behind was promoted. Later rows are not in it"
                )
            elif server.slot_confirmed > confirmed:
                gap = _slot_is_ahead(server, confirmed)
            return Resume(generation + 1, shared, server.slot_confirmed, gap)
    elif server.end < (reached := max(place.lsn, confirmed)):
        why = (
            f"the server's log ends at {format_lsn(server.end)}, before {format_lsn(reached)}, on the same timeline: "
            "it was restored from a copy; rows may be missing, and rows since that copy may be repeated"
        )
        return Resume(generation + 1, START, server.slot_confirmed, why)
    if server.slot_confirmed > confirmed:
        return Resume(generation + 1, place, server.slot_confirmed, _slot_is_ahead(server, confirmed))
    return Resume(generation, place, confirmed, None)


def _slot_is_ahead(server: ServerFacts, confirmed: int) -> str:
    return (
        f"the slot is at {format_lsn(server.slot_confirmed)}, after {format_lsn(confirmed)}: "
        "it was created anew or moved, or this broker was restored"
    )
