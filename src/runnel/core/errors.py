"""Every error of runnel: a stable code, the facts as fields, and a way out.

The branch says whose turn it is to act:

- `UsageError`: the call was wrong; change the program.
- `NotNow`: the call was right, the moment was not; retry or wait longer.
- `Ended`: what was used is over; open or subscribe again.
- `Damaged`: bytes that are not what was written; nothing of them is served.
- `RecordsMissed`: raised instead of a told gap when `strict=True`.

`code` is the same in logs, metrics, documents and on every wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from runnel.core.record import Gap

THE_JOURNAL = "the journal"  # where it, and no subscriber, is the one that publishers have to wait for


class RunnelError(Exception):
    """The root of every error that runnel raises on purpose."""

    code: ClassVar[str] = "runnel_error"


# -- the call was wrong -----------------------------------------------------------------------------------------


class UsageError(RunnelError):
    """The call can never succeed as it stands: change the program."""

    code = "usage_error"


class InvalidName(UsageError):
    """A topic name that breaks the rules of names."""

    code = "invalid_name"

    def __init__(self, name: object, why: str) -> None:
        self.name, self.why = name, why
        super().__init__(f"{name!r} is not a topic name: {why}; use tokens joined by dots, such as 'orders.eu.paid'")


class InvalidPattern(UsageError):
    """A subscription pattern that breaks the rules of patterns."""

    code = "invalid_pattern"

    def __init__(self, pattern: object, why: str) -> None:
        self.pattern, self.why = pattern, why
        super().__init__(
            f"{pattern!r} is not a pattern: {why}; '*' stands for one whole token, '>' for the rest and comes last"
        )


class InvalidValue(UsageError):
    """A value, key or header of a type that the topic cannot carry."""

    code = "invalid_value"

    def __init__(self, topic: str, what: str, got: object, advice: str) -> None:
        self.topic, self.what, self.got, self.advice = topic, what, type(got).__name__, advice
        super().__init__(f"topic {topic!r} cannot carry a {what} of type {self.got}; {advice}")


class ValidationFailed(UsageError):
    """A message that does not fit the type of its topic; `field` says where."""

    code = "validation_failed"

    def __init__(self, topic: str, type_name: str, field: str, why: str) -> None:
        self.topic, self.type_name, self.field, self.why = topic, type_name, field, why
        super().__init__(f"topic {topic!r} takes {type_name}; refused at {field}: {why}")


class InvalidOption(UsageError):
    """An option with a value that makes no sense."""

    code = "invalid_option"

    def __init__(self, option: str, value: object, why: str) -> None:
        self.option, self.value, self.why = option, value, why
        super().__init__(f"{option}={value!r}: {why}")


class TopicConflict(UsageError):
    """A topic declared with options other than those it already has."""

    code = "topic_conflict"

    def __init__(self, topic: str, option: str, has: object, asked: object) -> None:
        self.topic, self.option, self.has, self.asked = topic, option, has, asked
        super().__init__(
            f"topic {topic!r} has {option}={has!r}, not {asked!r}; use the same options everywhere, or change them: "
            "in a folder with `runnel topic config`, elsewhere delete the topic and declare it again"
        )


class SchemaConflict(UsageError):
    """A topic type that cannot follow the one already registered."""

    code = "schema_conflict"

    def __init__(self, topic: str, why: str) -> None:
        self.topic, self.why = topic, why
        super().__init__(f"topic {topic!r} already has a type: {why}; a type may only gain fields that have defaults")


class UnknownTopic(UsageError):
    """A topic that does not exist, where topics are not made on first use."""

    code = "unknown_topic"

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(
            f"there is no topic {topic!r}, and this does not make it (or auto_create is off); "
            f"declare it first: await broker.topic({topic!r}).declare()"
        )


class UnknownGroup(UsageError):
    """A group that nobody has joined yet."""

    code = "unknown_group"

    def __init__(self, group: str, pattern: str) -> None:
        self.group, self.pattern = group, pattern
        super().__init__(f"there is no group {group!r} on {pattern!r}; subscribe with group={group!r} to make it")


class NameInUse(UsageError):
    """A second live subscription under one durable name."""

    code = "name_in_use"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"a subscription named {name!r} is open already; one name is one position: "
            "close the other one, choose another name, or share the work with group="
        )


class OffsetOutOfRange(UsageError):
    """A start that lies beyond the end of the topic."""

    code = "offset_out_of_range"

    def __init__(self, topic: str, asked: int, first: int, end: int) -> None:
        self.topic, self.asked, self.first, self.end = topic, asked, first, end
        super().__init__(
            f"topic {topic!r} holds offsets [{first}, {end}), not {asked}; "
            "start at 'earliest' or 'latest', or keep history longer (retention)"
        )


class TooLarge(UsageError):
    """A record or batch beyond a limit."""

    code = "too_large"

    def __init__(
        self, what: str, size: int, limit_name: str, limit: int, advice: str = "split it, or make it smaller"
    ) -> None:
        self.what, self.size, self.limit_name, self.limit = what, size, limit_name, limit
        super().__init__(f"{what} is {size:,}, more than {limit_name}={limit:,}; {advice}")


class NotSupported(UsageError):
    """Something that this place of a broker cannot do. It never pretends."""

    code = "not_supported"

    def __init__(self, what: str, why: str) -> None:
        self.what, self.why = what, why
        super().__init__(f"{what} is not supported here: {why}")


class WouldDeadlock(UsageError):
    """A publish that would wait for the very task that publishes."""

    code = "would_deadlock"

    def __init__(self, topic: str, subscriber: str) -> None:
        self.topic, self.subscriber = topic, subscriber
        super().__init__(
            f"publishing to {topic!r} waits for subscriber {subscriber!r} (policy 'block'), whose own task publishes; "
            "publish from another task, give it a larger buffer, or another policy"
        )


class SubscriptionMisused(UsageError):
    """A subscription read outside its block, or in two ways at once."""

    code = "subscription_misused"

    def __init__(self, subscriber: str, why: str) -> None:
        self.subscriber, self.why = subscriber, why
        super().__init__(f"subscription {subscriber!r}: {why}")


class AlreadySettled(UsageError):
    """A delivery acked, nacked or rejected a second time. Nothing changed."""

    code = "already_settled"

    def __init__(self, group: str, place: int) -> None:
        self.group, self.place = group, place
        super().__init__(
            f"group {group!r}: the record at {place} was settled already by this delivery; "
            "ack, nack or reject each delivery once"
        )


class UnknownMember(UsageError):
    """A delivery that does not belong to a member of this group. Nothing changed."""

    code = "unknown_member"

    def __init__(self, group: str, member: str) -> None:
        self.group, self.member = group, member
        super().__init__(f"group {group!r} has no member {member!r}; settle a delivery where it was received")


# -- not now ----------------------------------------------------------------------------------------------------


class NotNow(RunnelError):
    """The call was right and the moment was not: retry, or wait longer."""

    code = "not_now"


class Full(NotNow):
    """A publish that may not wait found no room."""

    code = "full"

    def __init__(self, topic: str, subscriber: str, buffer: int) -> None:
        self.topic, self.subscriber, self.buffer = topic, subscriber, buffer
        if subscriber == THE_JOURNAL:
            way_out = "open the folder with a larger max_pending_bytes"
        else:
            way_out = "give it a larger buffer or a dropping policy"
        super().__init__(
            f"no room on {topic!r}: {subscriber!r} holds its bound of {buffer:,}; "
            f"await publish() to wait for room, or {way_out}"
        )


class PublishTimeout(NotNow, TimeoutError):
    """A `block` subscriber made no room within its time."""

    code = "publish_timeout"

    def __init__(self, topic: str, subscriber: str, seconds: float) -> None:
        self.topic, self.subscriber, self.seconds = topic, subscriber, seconds
        super().__init__(
            f"subscriber {subscriber!r} made no room on {topic!r} within {seconds:g} s; nothing was published"
        )


class Stalled(NotNow, TimeoutError):
    """`publish_and_wait` ran out of time; `subscribers` have not processed the record."""

    code = "stalled"

    def __init__(self, topic: str, offset: int, subscribers: Sequence[str], seconds: float) -> None:
        self.topic, self.offset, self.subscribers, self.seconds = topic, offset, tuple(subscribers), seconds
        names = ", ".join(map(repr, self.subscribers))
        super().__init__(f"{topic!r} offset {offset} was published, but after {seconds:g} s not processed by {names}")


class NoResponders(NotNow):
    """A request that nobody listens for."""

    code = "no_responders"

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"nobody is subscribed to {topic!r}, so no reply can come; start the responder first")


class RequestTimeout(NotNow, TimeoutError):
    """A request whose reply did not come in time."""

    code = "request_timeout"

    def __init__(self, topic: str, seconds: float) -> None:
        self.topic, self.seconds = topic, seconds
        super().__init__(
            f"no reply to the request on {topic!r} within {seconds:g} s; the responder may still act on it"
        )


# -- the end ----------------------------------------------------------------------------------------------------


class Ended(RunnelError):
    """What was used is over: open or subscribe again."""

    code = "ended"


class BrokerClosed(Ended):
    """The broker was closed before or during the call."""

    code = "broker_closed"

    def __init__(self, doing: str) -> None:
        self.doing = doing
        super().__init__(f"the broker is closed, so {doing} is not possible; keep inside `async with runnel.open(...)`")


class Forked(Ended):
    """The process forked; the child's copy of the broker is dead."""

    code = "forked"

    def __init__(self) -> None:
        super().__init__(
            "this broker was opened before a fork and lives on in the parent only; "
            "open a new one in the child, or use the 'spawn' start method"
        )


class LeaseEnded(Ended):
    """A delivery settled too late: the record went back to the group. Nothing changed."""

    code = "lease_ended"

    def __init__(self, group: str, place: int, attempt: int) -> None:
        self.group, self.place, self.attempt = group, place, attempt
        super().__init__(
            f"group {group!r}: attempt {attempt} at the record at {place} has ended, and the record went back to the "
            "group; make the work idempotent, call extend() in time, or give the group a longer ack_wait"
        )


class TopicDeleted(Ended):
    """The topic under a subscription was deleted."""

    code = "topic_deleted"

    def __init__(self, topic: str, epoch: int) -> None:
        self.topic, self.epoch = topic, epoch
        super().__init__(
            f"topic {topic!r} (epoch {epoch}) was deleted; subscribe again to follow a new one of that name"
        )


class SubscriptionEnded(Ended):
    """There is no next record: the subscription or its broker was closed."""

    code = "subscription_ended"

    def __init__(self, subscriber: str) -> None:
        self.subscriber = subscriber
        super().__init__(f"subscription {subscriber!r} has ended, so no further record comes; subscribe again")


class Disconnected(Ended):
    """The `disconnect` policy ended a subscription that was too slow."""

    code = "disconnected"

    def __init__(self, subscriber: str, drops: int, after: int) -> None:
        self.subscriber, self.drops, self.after = subscriber, drops, after
        super().__init__(
            f"subscriber {subscriber!r} was disconnected: {drops:,} records in a row dropped, the limit is {after:,}; "
            "read faster, give it a larger buffer, or subscribe again from a position"
        )


# -- damaged ----------------------------------------------------------------------------------------------------


class Damaged(RunnelError):
    """Bytes that are not what was written: nothing of them is served."""

    code = "damaged"


class BadBatch(Damaged):
    """Bytes that are not a record batch, or are one that lies about itself."""

    code = "bad_batch"

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"a record batch is damaged: {why}; nothing of it is served: read or send it again")


# -- missed -----------------------------------------------------------------------------------------------------


class RecordsMissed(RunnelError):
    """A gap, raised because the subscription is `strict=True`."""

    code = "records_missed"

    def __init__(self, subscriber: str, gap: Gap) -> None:
        self.subscriber, self.gap = subscriber, gap
        super().__init__(f"subscriber {subscriber!r}: {gap}; drop strict=True to go on after gaps")


class DataLost(RunnelError):
    """Records that a query had not read are not there any more, and it was told to fail then (`failOnDataLoss`)."""

    code = "data_lost"

    def __init__(self, topic: str, first: int, end: int, why: str) -> None:
        self.topic, self.first, self.end, self.why = topic, first, end, why
        super().__init__(
            f"offsets [{first}, {end}) of topic {topic!r} were to be read, and are lost: {why}; "
            "with the option failOnDataLoss=false the query goes on behind them, and tells how many were lost"
        )

    def __reduce__(self) -> tuple[type[DataLost], tuple[str, int, int, str]]:
        return DataLost, (self.topic, self.first, self.end, self.why)  # it travels from executors to the driver
