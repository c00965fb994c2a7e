"""Every error of publishing exactly once names its facts, is on the right branch, and shows a way out."""

from __future__ import annotations

import pytest

from runnel.core.errors import (
    Ended,
    Fenced,
    KeyConflict,
    MarkConflict,
    NotNow,
    OffsetConflict,
    RunnelError,
    SequenceForgotten,
    SequenceGap,
    SequenceOverlap,
    StageEnded,
    StagingFull,
    TransactionEnded,
    UnknownStage,
    UsageError,
)

# error, its branch, the facts as fields, what the message must name, the way out
CASES: list[tuple[RunnelError, type[RunnelError], dict[str, object], list[str], str]] = [
    (
        Fenced("spark:q", 4, 6),
        Ended,
        {"mark": "spark:q", "batch": 4, "ahead": 6},
        ["batch 4", "'spark:q'", "batch 6"],
        "new checkpoint",
    ),
    (
        StagingFull("bytes", 11, "max_staged_bytes", 10, "take less at a time"),
        NotNow,
        {"what": "bytes", "amount": 11, "limit_name": "max_staged_bytes", "limit": 10},
        ["11 bytes", "max_staged_bytes is 10"],
        "take less at a time",
    ),
    (
        SequenceGap(0xAB, 5, 7),
        UsageError,
        {"producer": 0xAB, "expected": 5, "got": 7},
        ["0xab", "number 7", "5 is next"],
        "publish what lies between first",
    ),
    (
        SequenceOverlap(0xAB, 5, 15, 10),
        UsageError,
        {"producer": 0xAB, "sequence": 5, "end": 15, "stored": 10},
        ["0xab", "numbers 5 to 14", "before 10 are stored"],
        "publish from 10 on",
    ),
    (
        SequenceForgotten(0xAB, 5, 90),
        UsageError,
        {"producer": 0xAB, "sequence": 5, "oldest": 90},
        ["0xab", "number 5", "stored before, or left out", "from 90 on"],
        "go on behind",
    ),
    (
        OffsetConflict("t", 5, 7),
        NotNow,
        {"topic": "t", "expected": 5, "actual": 7},
        ["'t'", "is 7", "not 5"],
        "decide again, and retry",
    ),
    (
        KeyConflict("settings", "k", 1, 7),
        NotNow,
        {"table": "settings", "key": "k", "expected": 1, "actual": 7},
        ["'k'", "'settings'", "at offset 7", "not 1"],
        "table.update()",
    ),
    (
        MarkConflict("m", 1, "x"),
        NotNow,
        {"mark": "m", "expected": 1, "actual": "x"},
        ["'m'", "is 'x'", "not 1"],
        "read it again",
    ),
    (TransactionEnded(), Ended, {}, ["is over"], "open another"),
    (StageEnded("s", "it expired"), Ended, {"stage": "s", "why": "it expired"}, ["s", "it expired"], "a new attempt"),
    (UnknownStage("s"), UsageError, {"stage": "s"}, ["no stage s"], "a mark in the same transaction"),
    (
        StagingFull("bytes", 3000, "max_staged_bytes", 2000),
        NotNow,
        {"what": "bytes", "amount": 3000, "limit_name": "max_staged_bytes", "limit": 2000},
        ["3,000 bytes", "max_staged_bytes is 2,000"],
        "commit or drop some first",
    ),
]


@pytest.mark.parametrize(("error", "branch", "facts", "named", "way_out"), CASES, ids=[case[0].code for case in CASES])
def test_an_error_carries_its_facts_and_a_way_out(
    error: RunnelError, branch: type[RunnelError], facts: dict[str, object], named: list[str], way_out: str
) -> None:
    assert isinstance(error, branch)
    assert {name: getattr(error, name) for name in facts} == facts
    assert [text for text in [*named, way_out] if text not in str(error)] == []
