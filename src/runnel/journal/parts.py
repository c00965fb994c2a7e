"""The parts of entries that a broker writes besides batches: one function each.

What they do to the state is in ledger, which reads them again.
Below: entry, ledger. Above: broker.
"""

from __future__ import annotations

import msgspec

from runnel.core.checksum import crc_of
from runnel.core.mark import MarkValue
from runnel.journal.entry import Kind, Part, state
from runnel.journal.gone import Reason
from runnel.journal.group_state import GroupState
from runnel.journal.ledger import CursorState, TopicState
from runnel.journal.stage_state import StageState

_encode = msgspec.msgpack.Encoder().encode


def topic_part(topic: TopicState) -> Part:
    """A topic was made, or its options changed."""
    return state(Kind.TOPIC, _encode(topic))


def trim_part(topic: int, first: int, end: int, reason: Reason = Reason.UNKNOWN, time: int = 0) -> Part:
    """A topic begins at `first` now, for this reason, and goes on at `end` at the earliest."""
    return Part(Kind.TRIM, b"", 0, topic, first, end, reason, time)


def compacted_part(
    topic: int, first: int, end: int, kept: int, removed: int, time: int, up_to: int | None = None
) -> Part:
    """In [first, end) of a topic older records of keys were taken; below `up_to` none is left (None: below `end`)."""
    body = _encode([kept, removed, end if up_to is None else up_to])
    return Part(Kind.COMPACTED, body, crc_of(body), topic, first, end, 0, time)


def sequence_part(reserved: int, epoch: int) -> Part:
    """Sequences below `reserved`, and epochs up to `epoch`, may have been given."""
    return Part(Kind.SEQUENCE, b"", 0, 0, reserved, epoch)


def cursor_part(cursor: CursorState) -> Part:
    """A named subscription moved."""
    return state(Kind.CURSOR, _encode(cursor))


def cursor_forgotten_part(name: str) -> Part:
    """The name of a subscription is given up, and its position with it."""
    return state(Kind.CURSOR_FORGOTTEN, _encode(name))


def mark_part(name: str, value: MarkValue | None) -> Part:
    """A mark has another value, or (None) is forgotten."""
    return state(Kind.MARK, _encode([name, value]))


def ids_part(topic: int, ids: list[str], offsets: list[int], time: int) -> Part:
    """Records were published with these message ids."""
    body = _encode([ids, offsets])
    return Part(Kind.MESSAGE_IDS, body, crc_of(body), topic, 0, 0, 0, time)


def stage_part(stage: StageState) -> Part:
    """A stage was opened."""
    return state(Kind.STAGE, _encode(stage), stage.id)


def staged_part(stage: int, ordinal: int, batch: bytes, time: int) -> Part:
    """A packed batch is staged: it is the `ordinal`th of its stage."""
    return Part(Kind.STAGED, batch, int.from_bytes(batch[:4], "little"), stage, ordinal, ordinal, 0, time)


def stage_commit_part(stage: StageState, base: int, sequence: int, time: int) -> Part:
    """All that was staged is visible from `base` on."""
    body = _encode([stage.id, stage.counts, stage.bytes])
    last = base + stage.records - 1
    return Part(Kind.STAGE_COMMIT, body, crc_of(body), stage.topic, base, last, sequence, time)


def stage_dropped_part(stage: int) -> Part:
    """Nobody will commit a stage."""
    return state(Kind.STAGE_DROPPED, topic=stage)


def group_part(group: GroupState) -> Part:
    """A group was made, or set back."""
    return state(Kind.GROUP, _encode(group.encode()))


def progress_part(group: int, settled: list[int], failed: list[tuple[int, int, float, str]]) -> Part:
    """A group settled places (flat ranges), and failed at others."""
    return state(Kind.PROGRESS, _encode([settled, failed]), group)
