"""runnel: durable, real-time pub/sub for Python, without a cluster.

The map of the house, from the ground up:

- `runnel.core`: records, batches, positions, patterns, policies, errors. No I/O, no clock.
- `runnel.journal`: everything durable, on disk, one entry after another; and looking at it.
- `runnel.broker`: topics as logs, subscribers as cursors on them, in this process.
- `runnel.observe`: statistics for Prometheus and OpenTelemetry.
- `runnel.blocking`: the same broker without asyncio.
- `runnel.testing`: a pytest plugin, a clock that jumps, a checker of histories.
- `runnel.cli`: the `runnel` command.

Start with `runnel.open`. Importing this module imports none of the rooms: each is
loaded when one of its names is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
    from runnel.broker.delivery import Delivery, DeliveryBatch
    from runnel.broker.group_subscription import GroupSubscription
    from runnel.broker.handler import Reject
    from runnel.broker.place import open
    from runnel.broker.statistics import Statistics
    from runnel.broker.subscription import Subscription
    from runnel.broker.topic import Topic
    from runnel.core.batch import Batch
    from runnel.core.errors import (
        AlreadySettled,
        BadBatch,
        BrokerClosed,
        Damaged,
        Disconnected,
        Ended,
        Forked,
        Full,
        InvalidName,
        InvalidOption,
        InvalidPattern,
        InvalidValue,
        LeaseEnded,
        NameInUse,
        NoResponders,
        NotNow,
        NotSupported,
        OffsetOutOfRange,
        PublishTimeout,
        RecordsMissed,
        RequestTimeout,
        RunnelError,
        SchemaConflict,
        Stalled,
        SubscriptionEnded,
        SubscriptionMisused,
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
    from runnel.core.journal_errors import (
        DiskFull,
        FolderInUse,
        FolderUnusable,
        FormatUnknown,
        JournalDamaged,
        JournalFailed,
        NotWritten,
        OutcomeUnknown,
    )
    from runnel.core.policy import Policy
    from runnel.core.position import Position, Span
    from runnel.core.record import Gap, Record
    from runnel.journal.inspection import NoJournal

__all__ = [
    "AlreadySettled",
    "BadBatch",
    "Batch",
    "Broker",
    "BrokerClosed",
    "Damaged",
    "Delivery",
    "DeliveryBatch",
    "Disconnected",
    "DiskFull",
    "Ended",
    "FolderInUse",
    "FolderUnusable",
    "Forked",
    "FormatUnknown",
    "Full",
    "Gap",
    "GroupSubscription",
    "InvalidName",
    "InvalidOption",
    "InvalidPattern",
    "InvalidValue",
    "JournalDamaged",
    "JournalFailed",
    "LeaseEnded",
    "NameInUse",
    "NoJournal",
    "NoResponders",
    "NotNow",
    "NotSupported",
    "NotWritten",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "Policy",
    "Position",
    "PublishTimeout",
    "Record",
    "RecordsMissed",
    "Reject",
    "RequestTimeout",
    "RunnelError",
    "SchemaConflict",
    "Span",
    "Stalled",
    "Statistics",
    "Subscription",
    "SubscriptionEnded",
    "SubscriptionMisused",
    "TooLarge",
    "Topic",
    "TopicConflict",
    "TopicDeleted",
    "UnknownGroup",
    "UnknownMember",
    "UnknownTopic",
    "UsageError",
    "ValidationFailed",
    "WouldDeadlock",
    "open",
]

_HOME = {
    "Reject": "runnel.broker.handler",
    "Delivery": "runnel.broker.delivery",
    "DeliveryBatch": "runnel.broker.delivery",
    "GroupSubscription": "runnel.broker.group_subscription",
    "Batch": "runnel.core.batch",
    "Broker": "runnel.broker.broker",
    "Gap": "runnel.core.record",
    "Policy": "runnel.core.policy",
    "Position": "runnel.core.position",
    "Record": "runnel.core.record",
    "Span": "runnel.core.position",
    "Statistics": "runnel.broker.statistics",
    "Subscription": "runnel.broker.subscription",
    "Topic": "runnel.broker.topic",
    "open": "runnel.broker.place",
    "DiskFull": "runnel.core.journal_errors",
    "FolderInUse": "runnel.core.journal_errors",
    "FolderUnusable": "runnel.core.journal_errors",
    "FormatUnknown": "runnel.core.journal_errors",
    "JournalDamaged": "runnel.core.journal_errors",
    "JournalFailed": "runnel.core.journal_errors",
    "NoJournal": "runnel.journal.inspection",
    "NotWritten": "runnel.core.journal_errors",
    "OutcomeUnknown": "runnel.core.journal_errors",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("runnel")
    if name in ("blocking", "testing", "observe"):
        return import_module(f"runnel.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'runnel' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME.get(name, "runnel.core.errors")), name)
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__", "blocking", "observe", "testing"]
