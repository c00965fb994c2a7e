"""runnel: durable, real-time pub/sub for Python, without a cluster.

The map of the house, from the ground up:

- `runnel.core`: records, batches, positions, patterns, policies, errors. No I/O, no clock.
- `runnel.journal`: everything durable, on disk, one entry after another; and looking at it.
- `runnel.wire`: what goes over a connection, as bytes and as values. No sockets.
- `runnel.surface`: what a broker and a client have in common: reading, deliveries, handlers.
- `runnel.broker`: topics as logs, subscribers as cursors on them, in this process.
- `runnel.client`: the same broker, in another process.
- `runnel.observe`: statistics for Prometheus and OpenTelemetry.
- `runnel.blocking`: the same broker without asyncio.
- `runnel.testing`: a pytest plugin, a clock that jumps, a checker of histories.
- `runnel.server`: a broker that others reach: the doors.
- `runnel.place`: `runnel.open`, from a place to a broker.
- `runnel.spark`: Spark reads and writes topics.
- `runnel.config`: files, environment and flags, as settings.
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
    from runnel.broker.producer import Producer
    from runnel.broker.stage import Stage
    from runnel.broker.subscription import Subscription
    from runnel.broker.topic import Topic
    from runnel.broker.transaction import Transaction
    from runnel.client.broker import RemoteBroker
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
        GroupInUse,
        JournalDamaged,
        JournalFailed,
        NotWritten,
        OutcomeUnknown,
        TopicHeld,
        UnknownName,
    )
    from runnel.core.network_errors import (
        AddressInUse,
        BadAddress,
        BadCommand,
        ConnectionLost,
        LimitExceeded,
        NoAnswer,
        ProtocolError,
        PublicBindRefused,
        PublishCancelled,
        Unreachable,
    )
    from runnel.core.policy import Policy
    from runnel.core.position import Position, Span
    from runnel.core.publication import Publication
    from runnel.core.record import Gap, Record
    from runnel.core.stage import StageInfo
    from runnel.core.statistics import Statistics
    from runnel.core.transaction_errors import (
        Fenced,
        MarkConflict,
        OffsetConflict,
        SequenceForgotten,
        SequenceGap,
        SequenceOverlap,
        StageEnded,
        StagingFull,
        TransactionEnded,
        UnknownStage,
    )
    from runnel.journal.inspection import NoJournal
    from runnel.place import open
    from runnel.surface.handler import Reject

__all__ = [
    "AddressInUse",
    "AlreadySettled",
    "BadAddress",
    "BadBatch",
    "BadCommand",
    "Batch",
    "Broker",
    "BrokerClosed",
    "ConnectionLost",
    "Damaged",
    "Delivery",
    "DeliveryBatch",
    "Disconnected",
    "DiskFull",
    "Ended",
    "Fenced",
    "FolderInUse",
    "FolderUnusable",
    "Forked",
    "FormatUnknown",
    "Full",
    "Gap",
    "GroupInUse",
    "GroupSubscription",
    "InvalidName",
    "InvalidOption",
    "InvalidPattern",
    "InvalidValue",
    "JournalDamaged",
    "JournalFailed",
    "LeaseEnded",
    "LimitExceeded",
    "MarkConflict",
    "NameInUse",
    "NoAnswer",
    "NoJournal",
    "NoResponders",
    "NotNow",
    "NotSupported",
    "NotWritten",
    "OffsetConflict",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "Policy",
    "Position",
    "Producer",
    "ProtocolError",
    "PublicBindRefused",
    "Publication",
    "PublishCancelled",
    "PublishTimeout",
    "Record",
    "RecordsMissed",
    "Reject",
    "RemoteBroker",
    "RequestTimeout",
    "RunnelError",
    "SchemaConflict",
    "SequenceForgotten",
    "SequenceGap",
    "SequenceOverlap",
    "Span",
    "Stage",
    "StageEnded",
    "StageInfo",
    "StagingFull",
    "Stalled",
    "Statistics",
    "Subscription",
    "SubscriptionEnded",
    "SubscriptionMisused",
    "TooLarge",
    "Topic",
    "TopicConflict",
    "TopicDeleted",
    "TopicHeld",
    "Transaction",
    "TransactionEnded",
    "UnknownGroup",
    "UnknownMember",
    "UnknownName",
    "UnknownStage",
    "UnknownTopic",
    "Unreachable",
    "UsageError",
    "ValidationFailed",
    "WouldDeadlock",
    "open",
]

_HOME = {
    "TransactionEnded": "runnel.core.transaction_errors",
    "OffsetConflict": "runnel.core.transaction_errors",
    "MarkConflict": "runnel.core.transaction_errors",
    "Fenced": "runnel.core.transaction_errors",
    "Publication": "runnel.core.publication",
    "Transaction": "runnel.broker.transaction",
    "Reject": "runnel.surface.handler",
    "Delivery": "runnel.broker.delivery",
    "DeliveryBatch": "runnel.broker.delivery",
    "GroupSubscription": "runnel.broker.group_subscription",
    "Batch": "runnel.core.batch",
    "Broker": "runnel.broker.broker",
    "Gap": "runnel.core.record",
    "Policy": "runnel.core.policy",
    "Position": "runnel.core.position",
    "Producer": "runnel.broker.producer",
    "Record": "runnel.core.record",
    "RemoteBroker": "runnel.client.broker",
    "SequenceForgotten": "runnel.core.transaction_errors",
    "SequenceGap": "runnel.core.transaction_errors",
    "SequenceOverlap": "runnel.core.transaction_errors",
    "Span": "runnel.core.position",
    "Stage": "runnel.broker.stage",
    "StageEnded": "runnel.core.transaction_errors",
    "StageInfo": "runnel.core.stage",
    "StagingFull": "runnel.core.transaction_errors",
    "UnknownStage": "runnel.core.transaction_errors",
    "Statistics": "runnel.core.statistics",
    "Subscription": "runnel.broker.subscription",
    "Topic": "runnel.broker.topic",
    "open": "runnel.place",
    "AddressInUse": "runnel.core.network_errors",
    "BadAddress": "runnel.core.network_errors",
    "ConnectionLost": "runnel.core.network_errors",
    "LimitExceeded": "runnel.core.network_errors",
    "ProtocolError": "runnel.core.network_errors",
    "PublicBindRefused": "runnel.core.network_errors",
    "PublishCancelled": "runnel.core.network_errors",
    "BadCommand": "runnel.core.network_errors",
    "NoAnswer": "runnel.core.network_errors",
    "Unreachable": "runnel.core.network_errors",
    "DiskFull": "runnel.core.journal_errors",
    "FolderInUse": "runnel.core.journal_errors",
    "FolderUnusable": "runnel.core.journal_errors",
    "FormatUnknown": "runnel.core.journal_errors",
    "JournalDamaged": "runnel.core.journal_errors",
    "JournalFailed": "runnel.core.journal_errors",
    "NoJournal": "runnel.journal.inspection",
    "NotWritten": "runnel.core.journal_errors",
    "OutcomeUnknown": "runnel.core.journal_errors",
    "GroupInUse": "runnel.core.journal_errors",
    "TopicHeld": "runnel.core.journal_errors",
    "UnknownName": "runnel.core.journal_errors",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("runnel")
    if name in ("blocking", "testing", "observe", "spark"):
        return import_module(f"runnel.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'runnel' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME.get(name, "runnel.core.errors")), name)
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__", "blocking", "observe", "spark", "testing"]
