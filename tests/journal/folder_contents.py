"""What the tests of archives and of restoring share: what a folder holds, told so that it can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runnel.core.record import Gap, Record
from runnel.journal.format.ledger import Ledger
from runnel.journal.read.inspection import Inspection
from tests.journal.folders import BEGAN, SECOND


def state_of(ledger: Ledger) -> dict[str, Any]:
    """Everything durable but records, and but the ends, that go on higher after a restore."""
    return {
        "topics": {one.name: (one.epoch, one.options, one.first) for one in ledger.topics.values()},
        "cursors": {one.name: (one.pattern, one.epoch, one.place) for one in ledger.cursors.values()},
        "groups": {
            (one.name, one.pattern): (one.floor, one.settled.flat(), dict(one.failed)) for one in ledger.groups.values()
        },
        "marks": dict(ledger.marks),
        "stages": {one.id: (one.key, one.topic, list(one.counts)) for one in ledger.stages.values()},
    }


def held(folder: Path) -> tuple[dict[str, Any], list[tuple[str, int, int, bytes]]]:
    """The state in a folder, and its records as (topic, offset, sequence, value)."""
    with Inspection(folder) as seen:
        found = []
        for one in seen.read():
            assert not isinstance(one, Gap), one
            assert isinstance(one, Record)
            found.append((one.topic, one.offset, one.sequence, one.value))
        return state_of(seen.ledger), found


def sequences(folder: Path) -> list[int]:
    """The sequences of all records in a folder."""
    return [one[2] for one in held(folder)[1]]


def time_of(batch: int) -> int:
    """When `publish_numbered` wrote a batch, in a journal that nothing else was written to."""
    return BEGAN + batch * SECOND
