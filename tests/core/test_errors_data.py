"""The errors of logins, of the lake, of pipelines and of clusters: their facts and their way out."""

from __future__ import annotations

import pytest

from runnel.core.errors import (
    AccessRevoked,
    AuditFailed,
    ClusterRefused,
    Damaged,
    Ended,
    FolderIsStandby,
    LakeBusy,
    LakeDamaged,
    LakeFileExpired,
    LakeMismatch,
    NameOwned,
    NotAuthenticated,
    NotAuthorized,
    NotNow,
    NotPrimary,
    PipelineFailed,
    PipelineNotRunning,
    PipelineRunning,
    PromotionRefused,
    ReplicaDamaged,
    RunnelError,
    StandbyMissing,
    StandbyRefused,
    Superseded,
    TokenExpired,
    UnknownFile,
    UnknownLake,
    UsageError,
)

CASES: list[tuple[RunnelError, type[RunnelError], dict[str, object], list[str], str]] = [
    (AccessRevoked("ann"), Ended, {"principal": "ann"}, ["'ann'"], "log in with a token"),
    (AuditFailed("trim", "disk"), NotNow, {"action": "trim", "why": "disk"}, ["trim", "disk"], "mend that first"),
    (
        ClusterRefused("a publish", 503, 10008, "no leader"),
        NotNow,
        {"asked": "a publish", "status": 503, "number": 10008, "why": "no leader"},
        ["a publish", "no leader", "10008"],
        "log of its servers",
    ),
    (
        LakeBusy("lake", 5, "conflict"),
        NotNow,
        {"location": "lake", "attempts": 5, "why": "conflict"},
        ["'lake'", "5"],
        "Commit again",
    ),
    (LakeDamaged("a.parquet", "short"), Damaged, {"path": "a.parquet", "why": "short"}, ["a.parquet"], "restore it"),
    (
        LakeFileExpired("a.parquet", 24.0),
        UsageError,
        {"path": "a.parquet", "hours": 24.0},
        ["a.parquet", "24 hours"],
        "Write its rows again",
    ),
    (LakeMismatch("lake", "no"), UsageError, {"location": "lake", "why": "no"}, ["'lake'"], "name another folder"),
    (
        NameOwned("group", "g", "ann"),
        UsageError,
        {"kind": "group", "name": "g", "principal": "ann"},
        ["group", "'g'", "'ann'"],
        "use another name",
    ),
    (NotAuthenticated("no token"), UsageError, {"why": "no token"}, ["no token"], "RUNNEL_TOKEN"),
    (
        NotAuthorized("ann", "publish", "orders", ["mails.>"]),
        UsageError,
        {"principal": "ann", "action": "publish", "topic": "orders", "allowed": ["mails.>"]},
        ["'ann'", "'orders'", "'mails.>'"],
        "--allow publish:orders",
    ),
    (
        PipelineFailed("archive", "q", "boom"),
        Ended,
        {"pipeline": "archive", "query": "q", "why": "boom"},
        ["'archive'", "'q'", "boom"],
        "the next start goes on",
    ),
    (
        PipelineNotRunning("archive", "lake"),
        UsageError,
        {"pipeline": "archive", "folder": "lake"},
        ["'archive'", "'lake'"],
        "--state",
    ),
    (
        PipelineRunning("archive", 7),
        NotNow,
        {"pipeline": "archive", "pid": 7},
        ["7", "'archive'"],
        "runnel pipeline stop",
    ),
    (PromotionRefused("its lease holds"), UsageError, {"why": "its lease holds"}, ["its lease holds"], "not promoted"),
    (
        FolderIsStandby("b", "runnel://a"),
        UsageError,
        {"folder": "b", "primary": "runnel://a"},
        ["'b'", "runnel://a"],
        "runnel promote --data b",
    ),
    (
        Superseded(1, 2),
        NotNow,
        {"generation": 1, "newer": 2},
        ["generation 1", "generation 2"],
        "runnel standby --from NEW-PRIMARY --rejoin",
    ),
    (StandbyMissing("b"), NotNow, {"standby": "b"}, ["'b'"], "runnel standby release"),
    (NotPrimary("runnel://a"), NotNow, {"primary": "runnel://a"}, ["runnel://a"], "runnel promote"),
    (
        ReplicaDamaged("1.seg", 64, "a crc"),
        Damaged,
        {"file": "1.seg", "position": 64, "why": "a crc"},
        ["1.seg", "64", "a crc"],
        "runnel log verify",
    ),
    (UnknownFile("1.seg"), NotNow, {"name": "1.seg"}, ["'1.seg'"], "ask for its manifest again"),
    (StandbyRefused("another journal"), UsageError, {"why": "another journal"}, ["another journal"], "cannot follow"),
    (TokenExpired(), NotNow, {}, ["expired"], "log in with a new one"),
    (UnknownLake("lake"), UsageError, {"location": "lake"}, ["'lake'"], "Lake.create()"),
]


@pytest.mark.parametrize(("error", "branch", "facts", "named", "way_out"), CASES, ids=[case[0].code for case in CASES])
def test_an_error_carries_its_facts_and_a_way_out(
    error: RunnelError, branch: type[RunnelError], facts: dict[str, object], named: list[str], way_out: str
) -> None:
    assert isinstance(error, branch)
    assert {name: getattr(error, name) for name in facts} == facts
    assert [text for text in [*named, way_out] if text not in str(error)] == []
