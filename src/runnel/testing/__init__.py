"""What tests of programs that use runnel, and runnel's own, stand on.

history          what clients did and saw, and whether the promises were kept (`History`)
history_events   the lines a history is made of
judge            holds each reader against what the others say: places (which id stands where),
                 judge_subscribers (order, holes, gaps), judge_groups (leases and acks)
verdict          what was found, each violation a value and a sentence (`Verdict`)
clock            time that a test moves (`JumpingClock`)
power            a folder in memory that loses power (`MemoryStorage`, `PowerLost`)
fates            what a disk may hold after that
faults           a storage whose calls fail (`FaultyStorage`)
plugin           pytest fixtures: `runnel_broker`, `runnel_clock`

Nothing is imported before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runnel.testing.clock import JumpingClock as JumpingClock
    from runnel.testing.faults import FaultyStorage as FaultyStorage
    from runnel.testing.history import History as History
    from runnel.testing.power import MemoryStorage as MemoryStorage
    from runnel.testing.power import PowerLost as PowerLost
    from runnel.testing.verdict import HistoryViolated as HistoryViolated
    from runnel.testing.verdict import Verdict as Verdict
    from runnel.testing.verdict import Violation as Violation

_HOME = {
    "FaultyStorage": "runnel.testing.faults",
    "History": "runnel.testing.history",
    "HistoryViolated": "runnel.testing.verdict",
    "JumpingClock": "runnel.testing.clock",
    "MemoryStorage": "runnel.testing.power",
    "PowerLost": "runnel.testing.power",
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
