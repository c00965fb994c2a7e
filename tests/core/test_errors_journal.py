"""Every error of the journal names its facts, is on the right branch, and shows a way out."""

from __future__ import annotations

import pytest

from runnel.core.errors import (
    ArchiveBusy,
    ArchiveDamaged,
    ArchiveMismatch,
    BackupStoreFailed,
    Damaged,
    DiskFull,
    Ended,
    FolderInUse,
    FolderUnusable,
    FormatUnknown,
    GroupInUse,
    JournalDamaged,
    JournalFailed,
    NoArchive,
    NotNow,
    NotWritten,
    OutcomeUnknown,
    PointNotArchived,
    RunnelError,
    TopicHeld,
    UnknownName,
    UsageError,
)

# error, its branch, the facts as fields, what the message must name, the way out
CASES: list[tuple[RunnelError, type[RunnelError], dict[str, object], list[str], str]] = [
    (FolderInUse("data", 17), NotNow, {"folder": "data", "pid": 17}, ["'data'", "process 17"], "close that one"),
    (NoArchive("kept"), UsageError, {"folder": "kept"}, ["'kept'", "no archive"], "runnel backup"),
    (
        ArchiveMismatch("kept", "of journal x"),
        UsageError,
        {"archive": "kept", "why": "of journal x"},
        ["'kept'", "of journal x"],
        "begin another archive",
    ),
    (
        ArchiveDamaged("1.seg", 64, "a crc"),
        Damaged,
        {"file": "1.seg", "position": 64, "why": "a crc"},
        ["1.seg", "64", "a crc"],
        "put the file back",
    ),
    (
        PointNotArchived("12:00", "it is missing"),
        UsageError,
        {"point": "12:00", "why": "it is missing"},
        ["12:00", "it is missing"],
        "--list",
    ),
    (
        BackupStoreFailed("s3://bucket/kept", "no such bucket"),
        NotNow,
        {"url": "s3://bucket/kept", "why": "no such bucket"},
        ["s3://bucket/kept", "no such bucket"],
        "check the address",
    ),
    (ArchiveBusy("kept", 7), NotNow, {"archive": "kept", "pid": 7}, ["'kept'", "process 7"], "wait for it"),
    (FolderUnusable("data", "no"), UsageError, {"folder": "data", "why": "no"}, ["'data'", "no"], "cannot hold"),
    (
        FormatUnknown("MANIFEST", 3, 1),
        UsageError,
        {"file": "MANIFEST", "version": 3, "known": 1},
        ["MANIFEST", "format 3", "up to 1"],
        "open it with the version that wrote it",
    ),
    (
        JournalDamaged("1.seg", 64, "a crc"),
        Damaged,
        {"file": "1.seg", "position": 64, "why": "a crc"},
        ["1.seg", "at 64", "a crc"],
        "`runnel log repair`",
    ),
    (JournalFailed("bad disk"), Ended, {"why": "bad disk"}, ["bad disk"], "open the broker again"),
    (
        DiskFull(1000, 2000),
        NotNow,
        {"free": 1000, "needed": 2000},
        ["1,000", "2,000", "segment_bytes", "min_free"],
        "make room",
    ),
    (
        TopicHeld("t", 9, {"archive": 4}),
        NotNow,
        {"topic": "t", "before": 9, "holders": {"archive": 4}},
        ["'t'", "'archive' (from offset 4 on)", "before 9"],
        "forget it",
    ),
    (UnknownName("n"), UsageError, {"name": "n"}, ["'n'"], "`runnel cursor list`"),
    (
        GroupInUse("g", "t", 2),
        UsageError,
        {"group": "g", "pattern": "t", "members": 2},
        ["'g'", "'t'", "2 members"],
        "end their subscriptions first",
    ),
    (NotWritten("bad disk"), NotNow, {"why": "bad disk"}, ["nothing was written", "bad disk"], "publish again"),
    (OutcomeUnknown("bad disk"), NotNow, {"why": "bad disk"}, ["may or may not"], "if twice does no harm"),
]


@pytest.mark.parametrize(("error", "branch", "facts", "named", "way_out"), CASES, ids=[case[0].code for case in CASES])
def test_an_error_carries_its_facts_and_a_way_out(
    error: RunnelError, branch: type[RunnelError], facts: dict[str, object], named: list[str], way_out: str
) -> None:
    assert isinstance(error, branch)
    assert {name: getattr(error, name) for name in facts} == facts
    assert [text for text in [*named, way_out] if text not in str(error)] == []


def test_a_folder_in_use_by_nobody_who_says_so_is_told_too() -> None:
    assert "another broker in this process or another" in str(FolderInUse("data", None))
