"""Every error names its facts, is on the right branch, and shows a way out."""

from __future__ import annotations

import pytest

from runnel.core import errors as e
from runnel.core.record import Gap

GAP = Gap("orders", 3, 8, 5, "the subscriber was too slow")

# error, its branch, the facts as fields, what the message must name, the way out
CASES: list[tuple[e.RunnelError, type[e.RunnelError], dict[str, object], list[str], str]] = [
    (e.InvalidName("a b", "it holds ' '"), e.UsageError, {"name": "a b"}, ["'a b'", "holds"], "tokens joined by dots"),
    (e.TimeLimitExceeded("pay", 2.0), e.NotNow, {"handler": "pay", "seconds": 2.0}, ["pay", "2 s"], "time limit"),
    (
        e.InvalidPattern(">.a", "no"),
        e.UsageError,
        {"pattern": ">.a"},
        ["'>.a'"],
        "'>' matches the rest and must be last",
    ),
    (
        e.InvalidValue("orders", "value", 5, "give it a type"),
        e.UsageError,
        {"topic": "orders", "what": "value", "got": "int"},
        ["orders", "value", "int"],
        "give it a type",
    ),
    (
        e.ValidationFailed("orders", "Order", "items[0].sku", "Expected `str`, got `int`"),
        e.UsageError,
        {"topic": "orders", "type_name": "Order", "field": "items[0].sku"},
        ["orders", "items[0].sku", "got `int`"],
        "takes Order",
    ),
    (
        e.InvalidOption("buffer", -1, "expected a whole number above 0"),
        e.UsageError,
        {"option": "buffer", "value": -1},
        ["buffer=-1"],
        "above 0",
    ),
    (
        e.TopicConflict("orders", "retention_count", 5, 7),
        e.UsageError,
        {"topic": "orders", "option": "retention_count", "has": 5, "asked": 7},
        ["orders", "retention_count=5", "7"],
        "`runnel topic set`",
    ),
    (e.SchemaConflict("orders", "field 'id' is gone"), e.UsageError, {"topic": "orders"}, ["'id'"], "only gain fields"),
    (e.UnknownTopic("orders"), e.UsageError, {"topic": "orders"}, ["orders"], "declare()"),
    (e.NameInUse("billing"), e.UsageError, {"name": "billing"}, ["billing"], "choose another name"),
    (
        e.OffsetOutOfRange("orders", 9, 2, 5),
        e.UsageError,
        {"topic": "orders", "asked": 9, "first": 2, "end": 5},
        ["orders", "[2, 5)", "9"],
        "'earliest' or 'latest'",
    ),
    (
        e.TooLarge("a record", 2000, "max_record_bytes", 1000),
        e.UsageError,
        {"what": "a record", "size": 2000, "limit_name": "max_record_bytes", "limit": 1000},
        ["2,000", "max_record_bytes=1,000"],
        "split it",
    ),
    (e.NotSupported("compact=True", "memory only"), e.UsageError, {"what": "compact=True"}, ["compact"], "memory only"),
    (
        e.NotArchived("t", 1000, 900, "the source ends there; archive it from there on"),
        e.NotNow,
        {"topic": "t", "asked": 1000, "archived": 900},
        ["'t'", "1,000"],
        "archive it",
    ),
    (
        e.ArchiveBehind(1024, 2048, 4096, ["t"]),
        e.NotNow,
        {"free": 1024, "needed": 2048, "unconfirmed": 4096, "topics": ["t"]},
        ["1,024", "2,048", "4,096", "'t'"],
        "let the archive run",
    ),
    (
        e.HistoryUnavailable("t", "timed out"),
        e.NotNow,
        {"topic": "t", "why": "timed out"},
        ["'t'", "timed out"],
        "try again",
    ),
    (
        e.WouldDeadlock("orders", "billing"),
        e.UsageError,
        {"topic": "orders", "subscriber": "billing"},
        ["orders", "billing"],
        "publish from another task",
    ),
    (e.SubscriptionMisused("billing", "enter it first"), e.UsageError, {"subscriber": "billing"}, ["billing"], "enter"),
    (
        e.Full("orders", "billing", 1024),
        e.NotNow,
        {"topic": "orders", "subscriber": "billing", "buffer": 1024},
        ["orders", "billing", "1,024"],
        "give it a larger buffer or a dropping policy",
    ),
    (
        e.PublishTimeout("orders", "billing", 1.5),
        e.NotNow,
        {"topic": "orders", "subscriber": "billing", "seconds": 1.5},
        ["orders", "billing", "1.5 s"],
        "nothing was published",
    ),
    (
        e.Stalled("orders", 7, ["a", "b"], 2),
        e.NotNow,
        {"topic": "orders", "offset": 7, "subscribers": ("a", "b"), "seconds": 2},
        ["orders", "offset 7", "'a', 'b'", "2 s"],
        "was published",
    ),
    (e.NoResponders("orders"), e.NotNow, {"topic": "orders"}, ["orders"], "start the responder first"),
    (
        e.RequestFailed("orders", "overdrawn", "by 3 EUR"),
        e.NotNow,
        {"topic": "orders", "error": "overdrawn", "why": "by 3 EUR"},
        ["'orders'", "overdrawn"],
        "the responder",
    ),
    (
        e.RequestTimeout("orders", 0.5),
        e.NotNow,
        {"topic": "orders", "seconds": 0.5},
        ["orders", "0.5 s"],
        "may still act on it",
    ),
    (
        e.BrokerClosed("publishing"),
        e.Ended,
        {"doing": "publishing"},
        ["publishing", "closed"],
        "keep inside `async with",
    ),
    (e.Forked(), e.Ended, {}, ["fork"], "open a new one in the child"),
    (e.TopicDeleted("orders", 3), e.Ended, {"topic": "orders", "epoch": 3}, ["orders", "3"], "subscribe again"),
    (
        e.Disconnected("billing", 1500, 1024),
        e.Ended,
        {"subscriber": "billing", "drops": 1500, "after": 1024},
        ["billing", "1,500", "1,024"],
        "read faster",
    ),
    (e.AlreadySettled("g", 7), e.UsageError, {"group": "g", "place": 7}, ["'g'", "at 7"], "each delivery once"),
    (
        e.UnknownGroup("g", "t"),
        e.UsageError,
        {"group": "g", "pattern": "t"},
        ["'g'", "'t'"],
        "subscribe with group='g'",
    ),
    (e.UnknownMember("g", "m"), e.UsageError, {"group": "g", "member": "m"}, ["'g'", "'m'"], "where it was received"),
    (
        e.LeaseEnded("g", 7, 2),
        e.Ended,
        {"group": "g", "place": 7, "attempt": 2},
        ["'g'", "attempt 2", "at 7"],
        "call extend() in time",
    ),
    (e.SubscriptionEnded("billing"), e.Ended, {"subscriber": "billing"}, ["billing"], "subscribe again"),
    (e.BadBatch("its count is 0"), e.Damaged, {"why": "its count is 0"}, ["its count is 0"], "read or send it again"),
    (
        e.RecordsMissed("billing", GAP),
        e.RunnelError,
        {"gap": GAP},
        ["billing", "missed 5 records"],
        "without strict=True",
    ),
    (
        e.DataLost("t", 3, 9, "retention"),
        e.RunnelError,
        {"topic": "t", "first": 3, "end": 9, "why": "retention"},
        ["'t'", "[3, 9)", "retention"],
        "failOnDataLoss=false",
    ),
    # -- logins, lakes, pipelines, clusters, standbys
    (e.AccessRevoked("ann"), e.Ended, {"principal": "ann"}, ["'ann'"], "log in with a valid token"),
    (e.AuditFailed("trim", "disk"), e.NotNow, {"action": "trim", "why": "disk"}, ["trim", "disk"], "fix that first"),
    (
        e.ClusterRefused("a publish", 503, 10008, "no leader"),
        e.NotNow,
        {"asked": "a publish", "status": 503, "number": 10008, "why": "no leader"},
        ["a publish", "no leader", "10008"],
        "log of its servers",
    ),
    (
        e.LakeBusy("lake", 5, "conflict"),
        e.NotNow,
        {"location": "lake", "attempts": 5, "why": "conflict"},
        ["'lake'", "5"],
        "Commit again",
    ),
    (
        e.LakeDamaged("a.parquet", "short"),
        e.Damaged,
        {"path": "a.parquet", "why": "short"},
        ["a.parquet"],
        "restore it",
    ),
    (
        e.LakeFileExpired("a.parquet", 24.0),
        e.UsageError,
        {"path": "a.parquet", "hours": 24.0},
        ["a.parquet", "24 hours"],
        "Write its rows again",
    ),
    (e.LakeMismatch("lake", "no"), e.UsageError, {"location": "lake", "why": "no"}, ["'lake'"], "name another folder"),
    (
        e.NameOwned("group", "g", "ann"),
        e.UsageError,
        {"kind": "group", "name": "g", "principal": "ann"},
        ["group", "'g'", "'ann'"],
        "use another name",
    ),
    (e.NotAuthenticated("no token"), e.UsageError, {"why": "no token"}, ["no token"], "RUNNEL_TOKEN"),
    (
        e.NotAuthorized("ann", "publish", "orders", ["mails.>"]),
        e.UsageError,
        {"principal": "ann", "action": "publish", "topic": "orders", "allowed": ["mails.>"]},
        ["'ann'", "'orders'", "'mails.>'"],
        "--allow 'publish:orders'",
    ),
    (
        e.PipelineFailed("archive", "q", "boom"),
        e.Ended,
        {"pipeline": "archive", "query": "q", "why": "boom"},
        ["'archive'", "'q'", "boom"],
        "the next start continues",
    ),
    (
        e.PipelineNotRunning("archive", "lake"),
        e.UsageError,
        {"pipeline": "archive", "folder": "lake"},
        ["'archive'", "'lake'"],
        "--state",
    ),
    (
        e.PipelineRunning("archive", 7),
        e.NotNow,
        {"pipeline": "archive", "pid": 7},
        ["7", "'archive'"],
        "runnel pipeline stop",
    ),
    (
        e.PromotionRefused("its lease holds"),
        e.UsageError,
        {"why": "its lease holds"},
        ["its lease holds"],
        "not promoted",
    ),
    (
        e.FolderIsStandby("b", "runnel://a"),
        e.UsageError,
        {"folder": "b", "primary": "runnel://a"},
        ["'b'", "runnel://a"],
        "runnel promote --data b",
    ),
    (
        e.Superseded(1, 2),
        e.NotNow,
        {"generation": 1, "newer": 2},
        ["generation 1", "generation 2"],
        "runnel standby --from NEW-PRIMARY --rejoin",
    ),
    (e.StandbyMissing("b"), e.NotNow, {"standby": "b"}, ["'b'"], "runnel standby release"),
    (e.NotPrimary("runnel://a"), e.NotNow, {"primary": "runnel://a"}, ["runnel://a"], "runnel promote"),
    (
        e.ReplicaDamaged("1.seg", 64, "a crc"),
        e.Damaged,
        {"file": "1.seg", "position": 64, "why": "a crc"},
        ["1.seg", "64", "a crc"],
        "runnel log verify",
    ),
    (e.UnknownFile("1.seg"), e.NotNow, {"name": "1.seg"}, ["'1.seg'"], "ask for its manifest again"),
    (
        e.StandbyRefused("another journal"),
        e.UsageError,
        {"why": "another journal"},
        ["another journal"],
        "cannot follow",
    ),
    (e.TokenExpired(), e.NotNow, {}, ["expired"], "log in with a new one"),
    (e.UnknownLake("lake"), e.UsageError, {"location": "lake"}, ["'lake'"], "Lake.create()"),
    # -- the journal, archives, and what is kept
    (
        e.FolderInUse("data", 17),
        e.NotNow,
        {"folder": "data", "pid": 17},
        ["'data'", "process 17"],
        "close the other one",
    ),
    (e.NoArchive("kept"), e.UsageError, {"folder": "kept"}, ["'kept'", "not an archive"], "runnel backup"),
    (
        e.ArchiveMismatch("kept", "of journal x"),
        e.UsageError,
        {"archive": "kept", "why": "of journal x"},
        ["'kept'", "of journal x"],
        "start a new archive",
    ),
    (
        e.ArchiveDamaged("1.seg", 64, "a crc"),
        e.Damaged,
        {"file": "1.seg", "position": 64, "why": "a crc"},
        ["1.seg", "64", "a crc"],
        "put the file back",
    ),
    (
        e.PointNotArchived("12:00", "it is missing"),
        e.UsageError,
        {"point": "12:00", "why": "it is missing"},
        ["12:00", "it is missing"],
        "--list",
    ),
    (
        e.BackupStoreFailed("s3://bucket/kept", "no such bucket"),
        e.NotNow,
        {"url": "s3://bucket/kept", "why": "no such bucket"},
        ["s3://bucket/kept", "no such bucket"],
        "check the address",
    ),
    (e.ArchiveBusy("kept", 7), e.NotNow, {"archive": "kept", "pid": 7}, ["'kept'", "process 7"], "wait for it"),
    (e.FolderUnusable("data", "no"), e.UsageError, {"folder": "data", "why": "no"}, ["'data'", "no"], "cannot hold"),
    (
        e.FormatUnknown("MANIFEST", 3, 1),
        e.UsageError,
        {"file": "MANIFEST", "version": 3, "known": 1},
        ["MANIFEST", "format 3", "up to 1"],
        "open it with the version that wrote it",
    ),
    (
        e.JournalDamaged("1.seg", 64, "a crc"),
        e.Damaged,
        {"file": "1.seg", "position": 64, "why": "a crc"},
        ["1.seg", "at 64", "a crc"],
        "`runnel log repair`",
    ),
    (e.JournalFailed("bad disk"), e.Ended, {"why": "bad disk"}, ["bad disk"], "open the broker again"),
    (
        e.DiskFull(1000, 2000),
        e.NotNow,
        {"free": 1000, "needed": 2000},
        ["1,000", "2,000", "segment_bytes", "min_free"],
        "make room",
    ),
    (
        e.TopicHeld("t", 9, {"archive": 4}),
        e.NotNow,
        {"topic": "t", "before": 9, "holders": {"archive": 4}},
        ["'t'", "'archive' (from offset 4 on)", "before 9"],
        "forget it",
    ),
    (e.UnknownName("n"), e.UsageError, {"name": "n"}, ["'n'"], "`runnel cursor list`"),
    (
        e.GroupInUse("g", "t", 2),
        e.UsageError,
        {"group": "g", "pattern": "t", "members": 2},
        ["'g'", "'t'", "2 members"],
        "end their subscriptions first",
    ),
    (e.NotWritten("bad disk"), e.NotNow, {"why": "bad disk"}, ["nothing was written", "bad disk"], "publish again"),
    (e.OutcomeUnknown("bad disk"), e.NotNow, {"why": "bad disk"}, ["may or may not"], "if a duplicate does no harm"),
    # -- between client and server
    (
        e.WrongListener("the JSON lines listener", "the native one is at port 7788"),
        e.UsageError,
        {"here": "the JSON lines listener", "instead": "the native one is at port 7788"},
        ["the JSON lines listener"],
        "the native one is at port 7788",
    ),
    (
        e.BadAddress("http://x", "no such scheme"),
        e.UsageError,
        {"url": "http://x", "why": "no such scheme"},
        ["'http://x'", "no such scheme"],
        "use 'runnel://host:7788'",
    ),
    (
        e.Unreachable("host:7788", "refused"),
        e.NotNow,
        {"address": "host:7788", "why": "refused"},
        ["host:7788", "refused"],
        "check the address, and that a server runs there",
    ),
    (
        e.ConnectionLost("host:7788", "it was reset"),
        e.NotNow,
        {"address": "host:7788", "why": "it was reset"},
        ["host:7788", "it was reset", "may have executed the call or not"],
        "check before you repeat it",
    ),
    (
        e.NoAnswer("publishing", 30, "connected"),
        e.NotNow,
        {"what": "publishing", "seconds": 30, "state": "connected"},
        ["publishing", "30 s", "connected"],
        "check before you repeat it",
    ),
    (
        e.PublishCancelled(),
        e.NotNow,
        {},
        ["was cancelled while it waited", "nothing was stored"],
        "Publish it again",
    ),
    (
        e.OriginRefused("https://elsewhere.example"),
        e.UsageError,
        {"origin": "https://elsewhere.example"},
        ["https://elsewhere.example"],
        "name the origin with --http-cors",
    ),
    (
        e.HostRefused("evil.example:7780"),
        e.UsageError,
        {"host": "evil.example:7780"},
        ["'evil.example:7780'", "localhost"],
        "add the name to http_hosts",
    ),
    (
        e.BadCommand("it is empty", field="topic"),
        e.UsageError,
        {"why": "it is empty", "field": "topic"},
        ["it is empty"],
        "send a line such as",
    ),
    (
        e.ProtocolError("a frame of kind 99 came"),
        e.RunnelError,
        {"why": "a frame of kind 99 came"},
        ["a frame of kind 99 came"],
        "check that both sides use the same protocol",
    ),
    (
        e.LimitExceeded("max_frame", 5000, 4096),
        e.UsageError,
        {"limit": "max_frame", "value": 5000, "allowed": 4096},
        ["5,000", "max_frame=4,096"],
        "raise max_frame in the server's configuration",
    ),
    (
        e.AddressInUse("127.0.0.1:7788"),
        e.UsageError,
        {"address": "127.0.0.1:7788"},
        ["127.0.0.1:7788 is in use"],
        "choose another port",
    ),
    (
        e.PublicBindRefused("0.0.0.0"),
        e.UsageError,
        {"host": "0.0.0.0"},
        ["0.0.0.0 can be reached from other machines"],
        "listen on 127.0.0.1, or use --insecure-public",
    ),
    # -- publishing exactly once
    (
        e.Fenced("spark:q", 4, 6),
        e.Ended,
        {"mark": "spark:q", "batch": 4, "ahead": 6},
        ["batch 4", "'spark:q'", "batch 6"],
        "new checkpoint",
    ),
    (
        e.StagingFull("bytes", 11, "max_staged_bytes", 10, "take less at a time"),
        e.NotNow,
        {"what": "bytes", "amount": 11, "limit_name": "max_staged_bytes", "limit": 10},
        ["11 bytes", "max_staged_bytes is 10"],
        "take less at a time",
    ),
    (
        e.SequenceGap(0xAB, 5, 7),
        e.UsageError,
        {"producer": 0xAB, "expected": 5, "got": 7},
        ["0xab", "number 7", "5 is next"],
        "publish the numbers in between first",
    ),
    (
        e.SequenceOverlap(0xAB, 5, 15, 10),
        e.UsageError,
        {"producer": 0xAB, "sequence": 5, "end": 15, "stored": 10},
        ["0xab", "numbers 5 to 14", "before 10 are stored"],
        "publish from 10 on",
    ),
    (
        e.SequenceForgotten(0xAB, 5, 90),
        e.UsageError,
        {"producer": 0xAB, "sequence": 5, "oldest": 90},
        ["0xab", "number 5", "from 90 on"],
        "continue with the next number",
    ),
    (
        e.OffsetConflict("t", 5, 7),
        e.NotNow,
        {"topic": "t", "expected": 5, "actual": 7},
        ["'t'", "is 7", "not 5"],
        "decide again, and retry",
    ),
    (
        e.KeyConflict("settings", "k", 1, 7),
        e.NotNow,
        {"table": "settings", "key": "k", "expected": 1, "actual": 7},
        ["'k'", "'settings'", "at offset 7", "not 1"],
        "table.update()",
    ),
    (
        e.MarkConflict("m", 1, "x"),
        e.NotNow,
        {"mark": "m", "expected": 1, "actual": "x"},
        ["'m'", "is 'x'", "not 1"],
        "read it again",
    ),
    (e.TransactionEnded(), e.Ended, {}, ["has ended"], "open another"),
    (
        e.StageEnded("s", "it expired"),
        e.Ended,
        {"stage": "s", "why": "it expired"},
        ["s", "it expired"],
        "a new attempt",
    ),
    (e.UnknownStage("s"), e.UsageError, {"stage": "s"}, ["no stage s"], "a marker in the same transaction"),
    (
        e.StagingFull("bytes", 3000, "max_staged_bytes", 2000),
        e.NotNow,
        {"what": "bytes", "amount": 3000, "limit_name": "max_staged_bytes", "limit": 2000},
        ["3,000 bytes", "max_staged_bytes is 2,000"],
        "commit or drop some first",
    ),
]


@pytest.mark.parametrize(("error", "branch", "facts", "named", "way_out"), CASES, ids=[case[0].code for case in CASES])
def test_an_error_carries_its_facts_and_a_way_out(
    error: e.RunnelError, branch: type[e.RunnelError], facts: dict[str, object], named: list[str], way_out: str
) -> None:
    assert isinstance(error, branch)
    assert {name: getattr(error, name) for name in facts} == facts
    assert [text for text in [*named, way_out] if text not in str(error)] == []


def test_every_error_has_its_case() -> None:
    branches = {e.RunnelError, e.UsageError, e.NotNow, e.Ended, e.Damaged}
    defined = {one for one in vars(e).values() if isinstance(one, type) and issubclass(one, e.RunnelError)}
    assert defined - branches == {type(case[0]) for case in CASES}


def test_where_the_journal_is_in_the_way_its_own_bound_is_named() -> None:
    text = str(e.Full("orders", e.THE_JOURNAL, 1024))
    assert "max_pending_bytes" in text
    assert "policy" not in text


@pytest.mark.parametrize("error", [e.PublishTimeout, e.Stalled, e.RequestTimeout])
def test_what_ran_out_of_time_is_a_timeout_error_too(error: type[e.RunnelError]) -> None:
    assert issubclass(error, TimeoutError)


def test_the_branches_do_not_overlap() -> None:
    for error, branch, *_ in CASES:
        others = {e.UsageError, e.NotNow, e.Ended, e.Damaged, e.RecordsMissed} - {branch, type(error)}
        assert not any(isinstance(error, other) for other in others)


def test_a_folder_in_use_by_an_unnamed_process_is_reported_too() -> None:
    assert "another broker in this process or another" in str(e.FolderInUse("data", None))


def test_a_folder_in_use_names_the_command_and_the_one_of_two_reasons_that_holds() -> None:
    alone, shared = e.FolderInUse("data", 7, command="worker.py"), e.FolderInUse("data", 7, shares=True)
    assert "process 7 (worker.py), which does not share it" in str(alone)
    assert "share=False" not in str(alone)
    assert "this program opens it with share=False" in str(shared)
    assert "does not answer" in str(e.FolderInUse("data", 7, answers=False))


def test_a_limit_may_be_a_part_of_a_second() -> None:
    assert "0.5 exceeds hello_timeout=0.25" in str(e.LimitExceeded("hello_timeout", 0.5, 0.25))
