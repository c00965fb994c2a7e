"""What an executor does: read the ranges of one task, as record batches.

All that it needs came with the task. It reads what it was told to and nothing else: that all of a range was there, or
why not, is looked at here.
Below: reading, columns, losses. Above: batch_reader, stream_reader.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from runnel.journal.found import Lost
from runnel.spark.layout import PLAIN, Layout
from runnel.spark.losses import Losses
from runnel.spark.options import Place
from runnel.spark.portion import Portion
from runnel.spark.ranges import OffsetRange
from runnel.spark.reading import Reading, open_reading

if TYPE_CHECKING:
    import pyarrow as pa


def read_task(
    place: Place,
    journal: str,
    ranges: Sequence[OffsetRange],
    schema: pa.Schema,
    layout: Layout = PLAIN,
    *,
    fail: bool,
) -> Iterator[pa.RecordBatch]:
    """The record batches of a task. With `fail`, a record that is not there any more is an error."""
    from runnel.spark.columns import Columns, gathered

    losses, columns = Losses(fail=fail), Columns(schema, layout)
    reading = open_reading(place)
    try:
        if reading.journal != journal:
            for one in ranges:
                losses.tell(one.topic, one.first, one.end, "the journal is another one now")
            return
        for wanted in ranges:
            there, decoded = _there(reading, wanted, losses), layout.typed is not None
            for rows in gathered(there, wanted.topic, wanted.epoch, time.time, decoded=decoded):
                yield columns.batch(rows)
    finally:
        reading.close()


def _there(reading: Reading, wanted: OffsetRange, losses: Losses) -> Iterator[Portion]:
    """What can be read of a range; what cannot is told."""
    for found in reading.read(wanted):
        if not isinstance(found, Lost):
            yield found
        elif max(found.first, wanted.first) < min(found.end, wanted.end):
            losses.tell(wanted.topic, max(found.first, wanted.first), min(found.end, wanted.end), found.reason)
