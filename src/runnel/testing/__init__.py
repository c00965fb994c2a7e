"""Tools for tests of programs that use runnel, and for runnel's own.

history          what clients did and saw, and whether the guarantees held (`History`)
history_events   the events of a history, one JSON line each
checker          checks a history: lost, duplicated, reordered, missed and invented records, leases and acks
verdict          the result: violations as values and sentences (`Verdict`)
clock            a clock that a test moves (`JumpingClock`)
memory_history   a source of history in memory (`MemoryHistory`)
memory_storage   a folder in memory that loses power (`MemoryStorage`, `PowerLost`)
power_loss       which unsynced changes survive that
faulty_storage   a storage whose calls fail (`FaultyStorage`)
plugin           pytest fixtures: `runnel_broker`, `runnel_clock`

Nothing is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runnel.testing.clock import JumpingClock as JumpingClock
    from runnel.testing.faulty_storage import FaultyStorage as FaultyStorage
    from runnel.testing.history import History as History
    from runnel.testing.memory_history import MemoryHistory as MemoryHistory
    from runnel.testing.memory_storage import MemoryStorage as MemoryStorage
    from runnel.testing.memory_storage import PowerLost as PowerLost
    from runnel.testing.verdict import HistoryViolated as HistoryViolated
    from runnel.testing.verdict import Verdict as Verdict
    from runnel.testing.verdict import Violation as Violation

_HOME = {
    "FaultyStorage": "runnel.testing.faulty_storage",
    "History": "runnel.testing.history",
    "HistoryViolated": "runnel.testing.verdict",
    "JumpingClock": "runnel.testing.clock",
    "MemoryHistory": "runnel.testing.memory_history",
    "MemoryStorage": "runnel.testing.memory_storage",
    "PowerLost": "runnel.testing.memory_storage",
    "Verdict": "runnel.testing.verdict",
    "Violation": "runnel.testing.verdict",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
