"""Every error names its facts, is on the right branch, and shows a way out."""

import pytest

from runnel.core import errors
from runnel.core.errors import (
    AlreadySettled,
    ArchiveBehind,
    BadBatch,
    BrokerClosed,
    Damaged,
    DataLost,
    Disconnected,
    Ended,
    Forked,
    Full,
    HistoryUnavailable,
    InvalidName,
    InvalidOption,
    InvalidPattern,
    InvalidValue,
    LeaseEnded,
    NameInUse,
    NoResponders,
    NotArchived,
    NotNow,
    NotSupported,
    OffsetOutOfRange,
    PublishTimeout,
    RecordsMissed,
    RequestFailed,
    RequestTimeout,
    RunnelError,
    SchemaConflict,
    Stalled,
    SubscriptionEnded,
    SubscriptionMisused,
    TimeLimitExceeded,
    TooLarge,
    TopicConflict,
    TopicDeleted,
    UnknownGroup,
    UnknownMember,
    UnknownTopic,
    UsageError,
    ValidationFailed,
    WouldDeadlock,
)
from runnel.core.record import Gap
from tests.core.test_errors_data import CASES as DATA_CASES
from tests.core.test_errors_journal import CASES as JOURNAL_CASES
from tests.core.test_errors_network import CASES as NETWORK_CASES
from tests.core.test_errors_transaction import CASES as TRANSACTION_CASES

GAP = Gap("orders", 3, 8, 5, "the subscriber was too slow")

# error, its branch, the facts as fields, what the message must name, the way out
CASES: list[tuple[RunnelError, type[RunnelError], dict[str, object], list[str], str]] = [
    (InvalidName("a b", "it holds ' '"), UsageError, {"name": "a b"}, ["'a b'", "holds"], "tokens joined by dots"),
    (TimeLimitExceeded("pay", 2.0), NotNow, {"handler": "pay", "seconds": 2.0}, ["pay", "2 s"], "time limit"),
    (InvalidPattern(">.a", "no"), UsageError, {"pattern": ">.a"}, ["'>.a'"], "'>' for the rest and comes last"),
    (
        InvalidValue("orders", "value", 5, "give it a type"),
        UsageError,
        {"topic": "orders", "what": "value", "got": "int"},
        ["orders", "value", "int"],
        "give it a type",
    ),
    (
        ValidationFailed("orders", "Order", "items[0].sku", "Expected `str`, got `int`"),
        UsageError,
        {"topic": "orders", "type_name": "Order", "field": "items[0].sku"},
        ["orders", "items[0].sku", "got `int`"],
        "takes Order",
    ),
    (
        InvalidOption("buffer", -1, "expected a whole number above 0"),
        UsageError,
        {"option": "buffer", "value": -1},
        ["buffer=-1"],
        "above 0",
    ),
    (
        TopicConflict("orders", "retention_count", 5, 7),
        UsageError,
        {"topic": "orders", "option": "retention_count", "has": 5, "asked": 7},
        ["orders", "retention_count=5", "7"],
        "`runnel topic set`",
    ),
    (SchemaConflict("orders", "field 'id' is gone"), UsageError, {"topic": "orders"}, ["'id'"], "only gain fields"),
    (UnknownTopic("orders"), UsageError, {"topic": "orders"}, ["orders"], "declare()"),
    (NameInUse("billing"), UsageError, {"name": "billing"}, ["billing"], "choose another name"),
    (
        OffsetOutOfRange("orders", 9, 2, 5),
        UsageError,
        {"topic": "orders", "asked": 9, "first": 2, "end": 5},
        ["orders", "[2, 5)", "9"],
        "'earliest' or 'latest'",
    ),
    (
        TooLarge("a record", 2000, "max_record_bytes", 1000),
        UsageError,
        {"what": "a record", "size": 2000, "limit_name": "max_record_bytes", "limit": 1000},
        ["2,000", "max_record_bytes=1,000"],
        "split it",
    ),
    (NotSupported("compact=True", "memory only"), UsageError, {"what": "compact=True"}, ["compact"], "memory only"),
    (
        NotArchived("t", 1000, 900, "the source ends there; archive it from there on"),
        NotNow,
        {"topic": "t", "asked": 1000, "archived": 900},
        ["'t'", "1,000"],
        "archive it",
    ),
    (
        ArchiveBehind(1024, 2048, 4096, ["t"]),
        NotNow,
        {"free": 1024, "needed": 2048, "unconfirmed": 4096, "topics": ["t"]},
        ["1,024", "2,048", "4,096", "'t'"],
        "let the archive run",
    ),
    (
        HistoryUnavailable("t", "timed out"),
        NotNow,
        {"topic": "t", "why": "timed out"},
        ["'t'", "timed out"],
        "try again",
    ),
    (
        WouldDeadlock("orders", "billing"),
        UsageError,
        {"topic": "orders", "subscriber": "billing"},
        ["orders", "billing"],
        "publish from another task",
    ),
    (SubscriptionMisused("billing", "enter it first"), UsageError, {"subscriber": "billing"}, ["billing"], "enter"),
    (
        Full("orders", "billing", 1024),
        NotNow,
        {"topic": "orders", "subscriber": "billing", "buffer": 1024},
        ["orders", "billing", "1,024"],
        "give it a larger buffer or a dropping policy",
    ),
    (
        PublishTimeout("orders", "billing", 1.5),
        NotNow,
        {"topic": "orders", "subscriber": "billing", "seconds": 1.5},
        ["orders", "billing", "1.5 s"],
        "nothing was published",
    ),
    (
        Stalled("orders", 7, ["a", "b"], 2),
        NotNow,
        {"topic": "orders", "offset": 7, "subscribers": ("a", "b"), "seconds": 2},
        ["orders", "offset 7", "'a', 'b'", "2 s"],
        "was published",
    ),
    (NoResponders("orders"), NotNow, {"topic": "orders"}, ["orders"], "start the responder first"),
    (
        RequestFailed("orders", "overdrawn", "by 3 EUR"),
        NotNow,
        {"topic": "orders", "error": "overdrawn", "why": "by 3 EUR"},
        ["'orders'", "overdrawn"],
        "the responder",
    ),
    (
        RequestTimeout("orders", 0.5),
        NotNow,
        {"topic": "orders", "seconds": 0.5},
        ["orders", "0.5 s"],
        "may still act on it",
    ),
    (BrokerClosed("publishing"), Ended, {"doing": "publishing"}, ["publishing", "closed"], "keep inside `async with"),
    (Forked(), Ended, {}, ["fork"], "open a new one in the child"),
    (TopicDeleted("orders", 3), Ended, {"topic": "orders", "epoch": 3}, ["orders", "3"], "subscribe again"),
    (
        Disconnected("billing", 1500, 1024),
        Ended,
        {"subscriber": "billing", "drops": 1500, "after": 1024},
        ["billing", "1,500", "1,024"],
        "read faster",
    ),
    (AlreadySettled("g", 7), UsageError, {"group": "g", "place": 7}, ["'g'", "at 7"], "each delivery once"),
    (UnknownGroup("g", "t"), UsageError, {"group": "g", "pattern": "t"}, ["'g'", "'t'"], "subscribe with group='g'"),
    (UnknownMember("g", "m"), UsageError, {"group": "g", "member": "m"}, ["'g'", "'m'"], "where it was received"),
    (
        LeaseEnded("g", 7, 2),
        Ended,
        {"group": "g", "place": 7, "attempt": 2},
        ["'g'", "attempt 2", "at 7"],
        "call extend() in time",
    ),
    (SubscriptionEnded("billing"), Ended, {"subscriber": "billing"}, ["billing"], "subscribe again"),
    (BadBatch("its count is 0"), Damaged, {"why": "its count is 0"}, ["its count is 0"], "read or send it again"),
    (RecordsMissed("billing", GAP), RunnelError, {"gap": GAP}, ["billing", "missed 5 records"], "drop strict=True"),
    (
        DataLost("t", 3, 9, "retention"),
        RunnelError,
        {"topic": "t", "first": 3, "end": 9, "why": "retention"},
        ["'t'", "[3, 9)", "retention"],
        "failOnDataLoss=false",
    ),
]


@pytest.mark.parametrize(("error", "branch", "facts", "named", "way_out"), CASES, ids=[case[0].code for case in CASES])
def test_an_error_carries_its_facts_and_a_way_out(
    error: RunnelError, branch: type[RunnelError], facts: dict[str, object], named: list[str], way_out: str
) -> None:
    assert isinstance(error, branch)
    assert {name: getattr(error, name) for name in facts} == facts
    assert [text for text in [*named, way_out] if text not in str(error)] == []


def test_every_error_has_its_case() -> None:
    branches = {RunnelError, UsageError, NotNow, Ended, Damaged}
    defined = {one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, RunnelError)}
    cases = [*CASES, *DATA_CASES, *JOURNAL_CASES, *NETWORK_CASES, *TRANSACTION_CASES]
    assert defined - branches == {type(case[0]) for case in cases}


def test_where_the_journal_is_in_the_way_its_own_bound_is_named() -> None:
    text = str(Full("orders", errors.THE_JOURNAL, 1024))
    assert "max_pending_bytes" in text
    assert "policy" not in text


@pytest.mark.parametrize("error", [PublishTimeout, Stalled, RequestTimeout])
def test_what_ran_out_of_time_is_a_timeout_error_too(error: type[RunnelError]) -> None:
    assert issubclass(error, TimeoutError)


def test_the_branches_do_not_overlap() -> None:
    for error, branch, *_ in CASES:
        others = {UsageError, NotNow, Ended, Damaged, RecordsMissed} - {branch, type(error)}
        assert not any(isinstance(error, other) for other in others)
