"""A small stage as a publish: its batches, remembered or read again, become one entry of its topic.

Below: open_stage, journal.history. Above: staging.
"""

from __future__ import annotations

from runnel.broker.gate import Entry
from runnel.broker.open_stage import INLINE, OpenStage
from runnel.core.errors import BadBatch
from runnel.core.packing import read_header, unpack
from runnel.core.record import Meta
from runnel.core.stage import name_of
from runnel.core.transaction_errors import StageEnded
from runnel.journal.entry import STAGE_TOPIC
from runnel.journal.found import Found
from runnel.journal.journal import Journal
from runnel.journal.stage_state import StageState

RAW = 4 * INLINE  # stages that compression made small are not written again: in memory they are not small


def entry_of(stage: OpenStage, room: int = RAW) -> Entry | None:
    """What is staged, as one publish appends it. None: it is not in memory, or larger there than `room`."""
    kept = stage.kept
    if not kept or len(kept) != len(stage.state.counts):
        return None
    values: list[bytes] = []
    metas: list[Meta | None] = []
    size = 0
    for body in kept:
        try:
            room -= read_header(body).raw_length
            if room < 0:
                return None
            batch = unpack(body, verify=False)  # it was checked when it was read, or never left memory
        except BadBatch as error:
            raise StageEnded(name_of(stage.key), f"its records cannot be read any more ({error.why})") from None
        values += batch.values
        metas += map(batch.metas.get, range(len(batch)))
        size += sum(map(len, batch.values))
    extra = sum(meta.weight for meta in metas if meta is not None)
    return Entry(values, metas if any(metas) else None, size, None, True, extra)


def read_back(journal: Journal, stage: StageState) -> list[bytes]:
    """The batches of a stage, from disk. For any thread; nobody may write to the stage meanwhile."""
    topic, wanted = STAGE_TOPIC | stage.id, len(stage.counts)
    found: list[bytes] = []
    history = journal.history
    plan = history.plan(topic, 0)
    while plan is not None and len(found) < wanted:
        parsed = history.parse(plan, history.fetch(plan), (topic,), by_sequence=False)
        for item in parsed.items:
            if isinstance(item, Found) and item.base == len(found):
                found.append(item.body)
        plan = history.plan(topic, parsed.place, plan, parsed.position)
    if len(found) < wanted:
        raise OSError(f"batch {len(found)} of {wanted} is missing or damaged")
    return found
