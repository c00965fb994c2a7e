"""A tiny model of a broker's run that is correct by construction, and faults to plant in it.

Publishers hand over ids, some fail, some have an unknown outcome; subscribers read the log from
somewhere, drop some records and are told so, stop early or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import assume
from hypothesis import strategies as st

from runnel.testing import History
from runnel.testing import history_events as events
from runnel.testing.history_events import Event


@dataclass(frozen=True)
class Reader:
    start: int | None  # None: latest, from the beginning of the run
    drops: frozenset[int]
    stops: int | None  # after how many records of the log
    told_end: bool


@dataclass(frozen=True)
class Run:
    outcomes: tuple[tuple[str, str], ...]  # (publisher, outcome) in the order of handing over
    readers: tuple[Reader, ...]

    @classmethod
    def strategy(cls, minimal: bool = False) -> st.SearchStrategy[Run]:
        """Any run; a minimal one has enough acknowledged records and a faithful reader to spoil."""
        outcome = st.sampled_from(["acknowledged"] * 5 + ["failed", "unknown and written", "unknown and not"])
        outcomes = st.lists(st.tuples(st.sampled_from(["p1", "p2"]), outcome), max_size=25)
        reader = st.builds(
            Reader,
            st.none() | st.integers(0, 10),
            st.frozensets(st.integers(0, 25), max_size=8),
            st.none() | st.integers(0, 25),
            st.booleans(),
        )
        readers = st.lists(reader, max_size=4)
        if minimal:
            sure = [("p1", "acknowledged"), ("p1", "failed"), ("p1", "acknowledged"), ("p1", "acknowledged")]
            faithful = [Reader(0, frozenset(), None, False), Reader(0, frozenset({1}), None, False)]
            outcomes = outcomes.map(lambda rest: [*sure, *rest])
            readers = readers.map(lambda rest: [*faithful, *rest])
        return st.builds(cls, outcomes.map(tuple), readers.map(tuple))

    def history(self) -> History:
        history = History()
        for n, reader in enumerate(self.readers):
            history.subscribed(f"s{n}", "t", reader.start)
        log: list[str] = []
        for n, (publisher, outcome) in enumerate(self.outcomes):
            id = f"{publisher}-{n}"
            history.intend("t", id, publisher)
            if outcome in ("acknowledged", "unknown and written"):
                log.append(id)
            if outcome == "acknowledged":
                history.acknowledged("t", id, 1, len(log) - 1)
            elif outcome == "failed":
                history.failed("t", id)
            elif n % 2:  # silence means the same
                history.unknown("t", id)
        for n, reader in enumerate(self.readers):
            self._read(history, f"s{n}", reader, log)
        return history

    @staticmethod
    def _read(history: History, name: str, reader: Reader, log: list[str]) -> None:
        end = len(log) if reader.stops is None else min(reader.stops, len(log))
        first = reader.start or 0
        gap: int | None = None
        for offset in range(first, end):
            if offset in reader.drops:
                gap = offset if gap is None else gap
                continue
            if gap is not None:
                history.gap(name, "t", 1, gap, offset, offset - gap)
                gap = None
            history.delivered(name, "t", 1, offset, log[offset], offset)
        if gap is not None:
            history.gap(name, "t", 1, gap, end, end - gap)
        if reader.stops is not None:
            history.ended(name, "t" if reader.told_end else None, end if reader.told_end else None)


Plant = Callable[[list[Event], st.DataObject], set[str]]


def _at(told: list[Event], kind: type, **facts: object) -> list[int]:
    return [n for n, e in enumerate(told) if type(e) is kind and all(getattr(e, f) == v for f, v in facts.items())]


def _faithful(told: list[Event], data: st.DataObject) -> int:
    return data.draw(st.sampled_from(_at(told, events.Delivered, subscriber="s0")))


def _change(event: Event, **facts: Any) -> Event:
    return msgspec.structs.replace(event, **facts)


def lose(told: list[Event], data: st.DataObject) -> set[str]:
    """Nobody ever gets one acknowledged record, and nobody is told."""
    acked: list[events.Acknowledged] = [e for e in told if type(e) is events.Acknowledged]
    gone = data.draw(st.sampled_from(acked)).offset
    assume(not any(type(e) is events.GapTold and e.first <= gone < e.end for e in told))
    told[:] = [e for e in told if not (type(e) is events.Delivered and e.offset == gone)]
    return {"lost"}


def miss(told: list[Event], data: st.DataObject) -> set[str]:
    """A faithful subscriber silently skips a record that another got."""
    n = _faithful(told, data)
    event = told[n]
    assert type(event) is events.Delivered
    others = [m for m in _at(told, events.Delivered, offset=event.offset) if m != n]
    later = [e for e in told if type(e) is events.Delivered and e.subscriber == "s0" and e.offset > event.offset]
    assume(others and later)
    del told[n]
    return {"missed"}


def deliver_twice(told: list[Event], data: st.DataObject) -> set[str]:
    n = _faithful(told, data)
    later = [m for m in _at(told, events.Delivered, subscriber="s0") if m >= n]
    told.insert(data.draw(st.sampled_from(later)) + 1, told[n])
    return {"duplicated"}


def write_twice(told: list[Event], data: st.DataObject) -> set[str]:
    """An id of unknown or known outcome turns up once more at the log's end."""
    event = told[_faithful(told, data)]
    assert type(event) is events.Delivered
    end = max(e.offset for e in told if type(e) is events.Delivered or type(e) is events.Acknowledged) + 100
    told.append(_change(event, offset=end, sequence=end, subscriber="late"))
    told.append(events.Ended(0.0, "late", None, None))
    others = {e.subscriber for e in told if type(e) is events.Subscribed}
    told.extend(events.Ended(0.0, name, None, end) for name in sorted(others))
    assume(not _at(told[: -len(others) - 1], events.Ended))
    return {"duplicated"}


def take_a_place_twice(told: list[Event], data: st.DataObject) -> set[str]:
    """Two acknowledged publishes claim one place."""
    claimed = told[data.draw(st.sampled_from(_at(told, events.Acknowledged)))]
    assert type(claimed) is events.Acknowledged
    told.append(events.Intended(0.0, "t", "twin", "p9"))
    told.append(events.Acknowledged(0.0, "t", "twin", 1, claimed.offset))
    return {"duplicated"}


def deliver_out_of_order(told: list[Event], data: st.DataObject) -> set[str]:
    mine = _at(told, events.Delivered, subscriber="s0")
    n = data.draw(st.integers(0, len(mine) - 2))
    told[mine[n]], told[mine[n + 1]] = told[mine[n + 1]], told[mine[n]]
    return {"reordered"}


def write_out_of_order(told: list[Event], data: st.DataObject) -> set[str]:
    """A publisher's two publishes stand in the log the other way round, for everybody."""
    mine = [e for e in told if type(e) is events.Acknowledged and str(e.id).startswith("p1-")]
    n = data.draw(st.integers(0, len(mine) - 2))
    swap = {mine[n].id: mine[n + 1].id, mine[n + 1].id: mine[n].id}
    told[:] = [
        _change(e, id=swap.get(e.id, e.id)) if type(e) in (events.Delivered, events.Acknowledged) else e  # type: ignore[union-attr]
        for e in told
    ]
    return {"reordered"}


def invent(told: list[Event], data: st.DataObject) -> set[str]:
    n = _faithful(told, data)
    told[n] = _change(told[n], id="ghost")
    return {"invented"}


def deliver_what_failed(told: list[Event], data: st.DataObject) -> set[str]:
    failed: list[events.Failed] = [e for e in told if type(e) is events.Failed]
    id = data.draw(st.sampled_from(failed)).id
    told.append(events.Delivered(0.0, "s0", "t", 1, 999, id))
    return {"invented"}


def tell_too_wide_a_gap(told: list[Event], data: st.DataObject) -> set[str]:
    """The gap also covers the record before it, which the subscriber got."""
    n = _at(told, events.GapTold, subscriber="s1")[0]
    gap = told[n]
    assert type(gap) is events.GapTold
    assert gap.count is not None
    told[n] = _change(gap, first=gap.first - 1, count=gap.count + data.draw(st.integers(0, 1)))
    return {"gap wrong"}


def miscount_a_gap(told: list[Event], data: st.DataObject) -> set[str]:
    n = _at(told, events.GapTold, subscriber="s1")[0]
    gap = told[n]
    assert type(gap) is events.GapTold
    assert gap.count is not None
    told[n] = _change(gap, count=gap.count + data.draw(st.sampled_from([-1, 1, 5])))
    return {"gap wrong"}


FAULTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        lose,
        miss,
        deliver_twice,
        write_twice,
        take_a_place_twice,
        deliver_out_of_order,
        write_out_of_order,
        invent,
        deliver_what_failed,
        tell_too_wide_a_gap,
        miscount_a_gap,
    )
}
