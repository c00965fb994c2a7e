"""The parts of entries: their kinds, their fields, and their bodies to the byte."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from runnel.core.batch_format import pack
from runnel.core.checksum import crc_of
from runnel.journal.format.entry import Part, PartKind
from runnel.journal.format.ledger import (
    CursorState,
    GroupState,
    StageState,
    TopicState,
    compacted_part,
    confirmed_part,
    cursor_forgotten_part,
    cursor_part,
    group_part,
    ids_part,
    marker_part,
    progress_part,
    sequence_part,
    stage_commit_part,
    stage_dropped_part,
    stage_part,
    staged_part,
    topic_part,
    trim_part,
)
from runnel.journal.format.removed_offsets import RemovalReason

STAGE = StageState(7, "spark", 3, 1, 2, 4, 50, [10, 5], 900)
BATCH = pack([b"a", b"b"])

# what is made, its fields (kind, topic, base, last, sequence, time), and its body; None: none
PARTS: list[tuple[Callable[[], Part], tuple[int, ...], object]] = [
    (
        lambda: topic_part(TopicState(1, "a", 2, {"k": 1})),
        (PartKind.TOPIC, 0, 0, 0, 0, 0),
        [1, "a", 2, {"k": 1}, None, 0, 0, 0, 0, [], 0],
    ),
    (lambda: trim_part(4, 5, 9), (PartKind.TRIM, 4, 5, 9, 0, 0), None),
    (lambda: trim_part(4, 5, 9, RemovalReason.AGE, 80), (PartKind.TRIM, 4, 5, 9, 3, 80), None),
    (lambda: confirmed_part(4, 5), (PartKind.CONFIRMED, 4, 5, 0, 0, 0), None),
    (lambda: sequence_part(100, 7), (PartKind.SEQUENCE, 0, 100, 7, 0, 0), None),
    (lambda: cursor_part(CursorState("n", "a", 1, 2, True)), (PartKind.CURSOR, 0, 0, 0, 0, 0), ["n", "a", 1, 2, True]),
    (lambda: cursor_forgotten_part("n"), (PartKind.CURSOR_FORGOTTEN, 0, 0, 0, 0, 0), "n"),
    (lambda: marker_part("m", b"v"), (PartKind.MARK, 0, 0, 0, 0, 0), ["m", b"v"]),
    (lambda: marker_part("m", None), (PartKind.MARK, 0, 0, 0, 0, 0), ["m", None]),
    (lambda: ids_part(4, ["a", "b"], [5, 9], 80), (PartKind.MESSAGE_IDS, 4, 0, 0, 0, 80), [["a", "b"], [5, 9]]),
    (lambda: stage_part(STAGE), (PartKind.STAGE, 7, 0, 0, 0, 0), [7, "spark", 3, 1, 2, 4, 50, [10, 5], 900]),
    (lambda: stage_commit_part(STAGE, 20, 300, 80), (PartKind.STAGE_COMMIT, 4, 20, 34, 300, 80), [7, [10, 5], 900]),
    (lambda: stage_dropped_part(7), (PartKind.STAGE_DROPPED, 7, 0, 0, 0, 0), None),
    (lambda: group_part(GroupState(1, "g", "a", {}, 5)), (PartKind.GROUP, 0, 0, 0, 0, 0), [1, "g", "a", {}, 5, [], []]),
    (lambda: progress_part(3, [1, 2], []), (PartKind.PROGRESS, 3, 0, 0, 0, 0), [[1, 2], []]),
]


@pytest.mark.parametrize(("make", "fields", "body"), PARTS)
def test_parts_are_these(make: Callable[[], Part], fields: tuple[int, ...], body: object) -> None:
    part = make()
    assert (part.kind, part.topic, part.base, part.last, part.sequence, part.time) == fields
    assert part.body == b"" if body is None else msgspec.msgpack.decode(part.body) == body
    assert part.crc == crc_of(part.body)


def test_a_staged_batch_is_the_batch_itself_under_its_own_crc() -> None:
    part = staged_part(7, 2, BATCH, 80)
    assert (part.kind, part.topic, part.base, part.last, part.time) == (PartKind.STAGED, 7, 2, 2, 80)
    assert part.body == BATCH
    assert part.crc == int.from_bytes(BATCH[:4], "little")


def test_a_compaction_says_its_range_and_what_was_left() -> None:
    part = compacted_part(4, 5, 9, 3, 1, 80)
    assert (part.kind, part.topic, part.base, part.last, part.time) == (PartKind.COMPACTED, 4, 5, 9, 80)
    assert msgspec.msgpack.decode(part.body)[:2] == [3, 1]
    assert part.crc == crc_of(part.body)
