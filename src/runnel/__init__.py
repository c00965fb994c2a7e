"""runnel: durable, real-time pub/sub for Python, without a cluster.

The packages, from the bottom layer up:

- `runnel.core`: records, batches, positions, patterns, options, errors. No I/O, no event loop, no clock.
- `runnel.journal`: durable storage: one journal on disk, its recovery, cleaning and inspection.
- `runnel.lake`: old history in a Delta table, each record once.
- `runnel.wire`: the protocols between clients and servers, as bytes and messages. No sockets.
- `runnel.runtime`: event loop ownership, waiting, the system clock, tracing.
- `runnel.api`: what users hold: the broker, subscriptions, deliveries, handlers, bridges, over a `Backend` port.
- `runnel.broker`: the broker in this process: topics are logs, subscribers are cursors on them.
- `runnel.client`: the topics of a server, in another process.
- `runnel.observe`: statistics for Prometheus and OpenTelemetry.
- `runnel.blocking`: the same broker without asyncio.
- `runnel.testing`: a pytest plugin, a clock that tests move, a checker of histories, failing disks.
- `runnel.arrow`: topics as Arrow tables, without Spark.
- `runnel.console`: the web console and `runnel.js`.
- `runnel.server`: a broker as a network service: native, JSON lines and HTTP listeners.
- `runnel.opening`: `runnel.open`: from a location to a broker; folders shared by several processes.
- `runnel.spark`: Spark reads and writes topics.
- `runnel.config`: settings from files, environment and flags.
- `runnel.cli`: the `runnel` command.

Start with `runnel.open`. Importing this module loads none of the packages: each is
loaded when one of its names is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runnel.api.broker import Broker
    from runnel.api.delivery import Delivery, DeliveryBatch
    from runnel.api.group import Group
    from runnel.api.group_subscription import GroupSubscription
    from runnel.api.handlers import Reject
    from runnel.api.producer import Producer
    from runnel.api.schedules import Firing
    from runnel.api.stage import MixedStage, Stage
    from runnel.api.subscription import Subscription
    from runnel.api.table import Table, TableEntry
    from runnel.api.topic import Topic
    from runnel.api.transaction import Transaction
    from runnel.core.batch import Batch
    from runnel.core.errors import (
        AddressInUse,
        AlreadySettled,
        BadAddress,
        BadBatch,
        BadCommand,
        BrokerClosed,
        ClusterRefused,
        ConnectionLost,
        Damaged,
        Disconnected,
        DiskFull,
        Ended,
        Fenced,
        FolderInUse,
        FolderUnusable,
        Forked,
        FormatUnknown,
        Full,
        GroupInUse,
        InvalidName,
        InvalidOption,
        InvalidPattern,
        InvalidValue,
        JournalDamaged,
        JournalFailed,
        KeyConflict,
        LeaseEnded,
        LimitExceeded,
        MarkConflict,
        NameInUse,
        NoAnswer,
        NoResponders,
        NotNow,
        NotSupported,
        NotWritten,
        OffsetConflict,
        OffsetOutOfRange,
        OutcomeUnknown,
        ProtocolError,
        PublicBindRefused,
        PublishCancelled,
        PublishTimeout,
        RecordsMissed,
        RequestFailed,
        RequestTimeout,
        RunnelError,
        SchemaConflict,
        SequenceForgotten,
        SequenceGap,
        SequenceOverlap,
        StageEnded,
        StagingFull,
        Stalled,
        SubscriptionEnded,
        SubscriptionMisused,
        TimeLimitExceeded,
        TooLarge,
        TopicConflict,
        TopicDeleted,
        TopicHeld,
        TransactionEnded,
        UnknownGroup,
        UnknownMember,
        UnknownName,
        UnknownStage,
        UnknownTopic,
        Unreachable,
        UsageError,
        ValidationFailed,
        WouldDeadlock,
    )
    from runnel.core.options import Policy
    from runnel.core.position import Position, Span
    from runnel.core.publishing import Publication
    from runnel.core.record import Gap, Record
    from runnel.core.replies import Replies
    from runnel.core.stages import StageInfo
    from runnel.core.statistics import Statistics
    from runnel.journal.read.inspection import NoJournal
    from runnel.opening import open

__all__ = [
    "AddressInUse",
    "AlreadySettled",
    "BadAddress",
    "BadBatch",
    "BadCommand",
    "Batch",
    "Broker",
    "BrokerClosed",
    "ClusterRefused",
    "ConnectionLost",
    "Damaged",
    "Delivery",
    "DeliveryBatch",
    "Disconnected",
    "DiskFull",
    "Ended",
    "Fenced",
    "Firing",
    "FolderInUse",
    "FolderUnusable",
    "Forked",
    "FormatUnknown",
    "Full",
    "Gap",
    "Group",
    "GroupInUse",
    "GroupSubscription",
    "InvalidName",
    "InvalidOption",
    "InvalidPattern",
    "InvalidValue",
    "JournalDamaged",
    "JournalFailed",
    "KeyConflict",
    "LeaseEnded",
    "LimitExceeded",
    "MarkConflict",
    "MixedStage",
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
    "Replies",
    "RequestFailed",
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
    "Table",
    "TableEntry",
    "TimeLimitExceeded",
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
    "Group": "runnel.api.group",
    "TransactionEnded": "runnel.core.errors",
    "OffsetConflict": "runnel.core.errors",
    "MarkConflict": "runnel.core.errors",
    "Fenced": "runnel.core.errors",
    "Publication": "runnel.core.publishing",
    "Transaction": "runnel.api.transaction",
    "Reject": "runnel.api.handlers",
    "Delivery": "runnel.api.delivery",
    "DeliveryBatch": "runnel.api.delivery",
    "GroupSubscription": "runnel.api.group_subscription",
    "Batch": "runnel.core.batch",
    "Broker": "runnel.api.broker",
    "Gap": "runnel.core.record",
    "Policy": "runnel.core.options",
    "Position": "runnel.core.position",
    "Producer": "runnel.api.producer",
    "Record": "runnel.core.record",
    "Replies": "runnel.core.replies",
    "SequenceForgotten": "runnel.core.errors",
    "SequenceGap": "runnel.core.errors",
    "SequenceOverlap": "runnel.core.errors",
    "Span": "runnel.core.position",
    "Firing": "runnel.api.schedules",
    "Stage": "runnel.api.stage",
    "MixedStage": "runnel.api.stage",
    "StageEnded": "runnel.core.errors",
    "StageInfo": "runnel.core.stages",
    "StagingFull": "runnel.core.errors",
    "UnknownStage": "runnel.core.errors",
    "Statistics": "runnel.core.statistics",
    "Subscription": "runnel.api.subscription",
    "Table": "runnel.api.table",
    "TableEntry": "runnel.api.table",
    "Topic": "runnel.api.topic",
    "open": "runnel.opening",
    "AddressInUse": "runnel.core.errors",
    "BadAddress": "runnel.core.errors",
    "ClusterRefused": "runnel.core.errors",
    "ConnectionLost": "runnel.core.errors",
    "LimitExceeded": "runnel.core.errors",
    "ProtocolError": "runnel.core.errors",
    "PublicBindRefused": "runnel.core.errors",
    "PublishCancelled": "runnel.core.errors",
    "BadCommand": "runnel.core.errors",
    "NoAnswer": "runnel.core.errors",
    "Unreachable": "runnel.core.errors",
    "DiskFull": "runnel.core.errors",
    "FolderInUse": "runnel.core.errors",
    "FolderUnusable": "runnel.core.errors",
    "FormatUnknown": "runnel.core.errors",
    "JournalDamaged": "runnel.core.errors",
    "JournalFailed": "runnel.core.errors",
    "NoJournal": "runnel.journal.read.inspection",
    "NotWritten": "runnel.core.errors",
    "OutcomeUnknown": "runnel.core.errors",
    "GroupInUse": "runnel.core.errors",
    "TopicHeld": "runnel.core.errors",
    "UnknownName": "runnel.core.errors",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("runnel-mq")
    if name in ("blocking", "testing", "observe", "spark"):
        return import_module(f"runnel.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'runnel' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME.get(name, "runnel.core.errors")), name)
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__", "blocking", "observe", "spark", "testing"]
