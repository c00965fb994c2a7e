"""A decoded batch, and where its records belong: what readings give, and columns are made of.

Below: core.packing, journal.merged. Above: folder_reading, server_reading, columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from runnel.core.packing import Unpacked
from runnel.journal.merged import Run


class Portion(NamedTuple):
    """Records of one topic: those of `batch` from number `at` on, in order; `runs` say where they belong."""

    batch: Unpacked
    runs: Sequence[Run]
    at: int = 0

    def within(self, first: int, end: int) -> Portion | None:
        """What of it lies in [first, end); None: nothing does."""
        runs: list[Run] = []
        at = begins = self.at
        for offset, sequence, time, count in self.runs:
            if offset < end and offset + count > first:
                skip = max(0, first - offset)
                begins = begins if runs else at + skip
                runs.append(Run(offset + skip, sequence + skip, time, min(offset + count, end) - offset - skip))
            at += count
        return Portion(self.batch, runs, begins) if runs else None


def placed(batch: Unpacked, offset: int, sequence: int, time: int) -> Portion:
    """A whole batch whose first record lies there. One with offset deltas has holes."""
    if batch.deltas is None:
        return Portion(batch, (Run(offset, sequence, time, len(batch)),))
    runs: list[Run] = []
    begun, before = 0, -1
    for at, delta in enumerate(batch.deltas):
        if delta != before + 1:
            runs.append(Run(offset + batch.deltas[begun], sequence + batch.deltas[begun], time, at - begun))
            begun = at
        before = delta
    runs.append(Run(offset + batch.deltas[begun], sequence + batch.deltas[begun], time, len(batch.deltas) - begun))
    return Portion(batch, runs)
