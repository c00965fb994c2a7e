"""Every error of runnel: a stable code, the facts as fields, and what to do about it.

The base class says which side has to act:

- `UsageError`: the call was wrong; change the program.
- `NotNow`: the call was right, the moment was not; retry or wait longer.
- `Ended`: what was used is over; open or subscribe again.
- `Damaged`: corrupt bytes; they are reported and never delivered.
- `RecordsMissed`: raised instead of a reported gap when `strict=True`.

`code` is the same in logs, metrics, documents and on every protocol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

if TYPE_CHECKING:
    from runnel.core.record import Gap


THE_JOURNAL = "the journal"  # where it, and no subscriber, is the one that publishers have to wait for


_TOKEN = re.compile(r"\brnl_[\w-]+")


def without_tokens(text: str) -> str:
    """The text of an error, without tokens that were given where a name or a file belongs."""
    return _TOKEN.sub("rnl_…", text) if "rnl_" in text else text


@dataclass_transform()
class RunnelError(Exception):
    """The root of every error that runnel raises on purpose.

    A class declares its facts as annotated fields, which are the arguments of its constructor in that order, and
    `_says`, the sentence over them. One whose sentence needs more than that has a constructor of its own.
    """

    code: ClassVar[str] = "runnel_error"
    _says: ClassVar[str] = ""

    _facts: ClassVar[tuple[str, ...] | None] = None  # None: it declares nothing, and takes a message

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" not in vars(cls) and "_says" in vars(cls):
            facts = vars(cls).get("__annotations__", {})
            cls._facts = tuple(facts)
            shown = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind) for name, kind in facts.items()]
            cls.__signature__ = Signature(shown, return_annotation="None")  # type: ignore[attr-defined]

    def __init__(self, *facts: Any, **named: Any) -> None:
        kind = type(self)
        if kind._facts is None:
            super().__init__(*facts, **named)
            return
        if named or len(facts) != len(kind._facts):
            bound: Signature = kind.__signature__  # type: ignore[attr-defined]
            self.__dict__.update(bound.bind(*facts, **named).arguments)
        else:
            self.__dict__.update(zip(kind._facts, facts, strict=True))
        super().__init__(without_tokens(kind._says.format_map(self.__dict__)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[RunnelError], args: tuple[Any, ...], facts: dict[str, Any]) -> RunnelError:
    """An error that was pickled: what it says is not worked out again."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


# -- the call was wrong -----------------------------------------------------------------------------------------


class UsageError(RunnelError):
    """The call can never succeed unchanged: change the program."""

    code = "usage_error"


class InvalidName(UsageError):
    """A topic name that breaks the rules of names."""

    code = "invalid_name"
    name: object
    why: str
    _says = "{name!r} is not a topic name: {why}; use tokens joined by dots, such as 'orders.eu.paid'"


class InvalidPattern(UsageError):
    """A subscription pattern that breaks the rules of patterns."""

    code = "invalid_pattern"
    pattern: object
    why: str
    _says = "{pattern!r} is not a pattern: {why}; '*' matches one whole token, '>' matches the rest and must be last"


class InvalidValue(UsageError):
    """A value, key or header of a type that the topic cannot carry."""

    code = "invalid_value"

    def __init__(self, topic: str, what: str, got: object, advice: str) -> None:
        self.topic, self.what, self.got, self.advice = topic, what, type(got).__name__, advice
        super().__init__(f"topic {topic!r} cannot carry a {what} of type {self.got}; {advice}")


class ValidationFailed(UsageError):
    """A value that does not fit the type of its topic; `field` says where."""

    code = "validation_failed"
    topic: str
    type_name: str
    field: str
    why: str
    _says = "topic {topic!r} takes {type_name}; refused at {field}: {why}"


class InvalidOption(UsageError):
    """An unknown option, or an option with an invalid value."""

    code = "invalid_option"
    option: str
    value: object
    why: str
    _says = "{option}={value!r}: {why}"


class TopicConflict(UsageError):
    """A topic declared with options other than those it already has."""

    code = "topic_conflict"
    topic: str
    option: str
    has: object
    asked: object
    _says = (
        "topic {topic!r} has {option}={has!r}, not {asked!r}; use the same options everywhere, or change them: "
        "with `runnel topic set` or `topic.configure()`"
    )


class SchemaConflict(UsageError):
    """A topic type that is not compatible with the registered one."""

    code = "schema_conflict"
    topic: str
    why: str
    _says = "topic {topic!r} already has a type: {why}; a type may only gain fields that have defaults"


class UnknownTopic(UsageError):
    """A topic that does not exist, and is not created by this call."""

    code = "unknown_topic"
    topic: str
    _says = (
        "there is no topic {topic!r}, and this call does not create topics, or auto_create is off; "
        "declare it first: await broker.topic({topic!r}).declare()"
    )


class UnknownGroup(UsageError):
    """A group that was never joined."""

    code = "unknown_group"
    group: str
    pattern: str
    _says = "there is no group {group!r} on {pattern!r}; subscribe with group={group!r} to create it"


class NameInUse(UsageError):
    """A second live subscription under one durable name."""

    code = "name_in_use"
    name: str
    _says = (
        "a subscription named {name!r} is open already; one name is one position: "
        "close the other one, choose another name, or share the work with group="
    )


class OffsetOutOfRange(UsageError):
    """A start that lies beyond the end of the topic."""

    code = "offset_out_of_range"
    topic: str
    asked: int
    first: int
    end: int
    _says = (
        "topic {topic!r} holds offsets [{first}, {end}), not {asked}; "
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
    """Something that this backend cannot do."""

    code = "not_supported"
    what: str
    why: str
    _says = "{what} is not supported here: {why}"


class WouldDeadlock(UsageError):
    """A publish that would wait for its own task."""

    code = "would_deadlock"
    topic: str
    subscriber: str
    _says = (
        "publishing to {topic!r} waits for subscriber {subscriber!r} (policy 'block'), whose own task publishes; "
        "publish from another task, give it a larger buffer, or another policy"
    )


class SubscriptionMisused(UsageError):
    """A subscription read outside its block, or in two ways at once."""

    code = "subscription_misused"
    subscriber: str
    why: str
    _says = "subscription {subscriber!r}: {why}"


class AlreadySettled(UsageError):
    """A delivery acked, nacked or rejected a second time. Nothing changed."""

    code = "already_settled"
    group: str
    place: int
    _says = (
        "group {group!r}: the record at {place} was settled already by this delivery; "
        "ack, nack or reject each delivery once"
    )


class UnknownMember(UsageError):
    """A delivery that does not belong to a member of this group. Nothing changed."""

    code = "unknown_member"
    group: str
    member: str
    _says = "group {group!r} has no member {member!r}; settle a delivery where it was received"


# -- not now ----------------------------------------------------------------------------------------------------


class NotNow(RunnelError):
    """The call is valid, but cannot succeed now: retry, or wait longer."""

    code = "not_now"


class Full(NotNow):
    """A publish that must not wait, while there is no room."""

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
    topic: str
    subscriber: str
    seconds: float
    _says = "subscriber {subscriber!r} made no room on {topic!r} within {seconds:g} s; nothing was published"


class Stalled(NotNow, TimeoutError):
    """`publish_and_wait` ran out of time; `subscribers` have not processed the record."""

    code = "stalled"

    def __init__(self, topic: str, offset: int, subscribers: Sequence[str], seconds: float) -> None:
        self.topic, self.offset, self.subscribers, self.seconds = topic, offset, tuple(subscribers), seconds
        names = ", ".join(map(repr, self.subscribers))
        super().__init__(f"{topic!r} offset {offset} was published, but after {seconds:g} s not processed by {names}")


class NoResponders(NotNow):
    """A request without a responder."""

    code = "no_responders"
    topic: str
    _says = "{topic!r} has no subscriber, so no reply can come; start the responder first"


class RequestTimeout(NotNow, TimeoutError):
    """A request whose reply did not come in time."""

    code = "request_timeout"
    topic: str
    seconds: float
    _says = "no reply to the request on {topic!r} within {seconds:g} s; the responder may still act on it"


class TimeLimitExceeded(NotNow, TimeoutError):
    """A handler that ran longer than its `time_limit`. The record is tried again, as after any other failure."""

    code = "time_limit_exceeded"
    handler: str
    seconds: float
    _says = "handler {handler} took longer than its time limit of {seconds:g} s"


class RequestFailed(NotNow):
    """A request whose responder raised or could not decode it, or, in a group, rejected it.

    `error` is the code of what it raised or, of a plain exception, its class; `given_up` if a group had another reason.
    """

    code = "request_failed"
    topic: str
    error: str
    why: str
    _says = "the responder of {topic!r} failed: {error}: {why}"


# -- the end ----------------------------------------------------------------------------------------------------


class Ended(RunnelError):
    """A broker, subscription or transaction that has ended: open or subscribe again."""

    code = "ended"


class BrokerClosed(Ended):
    """The broker was closed before or during the call."""

    code = "broker_closed"
    doing: str
    _says = "the broker is closed, so {doing} is not possible; keep inside `async with runnel.open(...)`"


class Forked(Ended):
    """The process forked; the broker works in the parent only."""

    code = "forked"
    _says = (
        "this broker was opened before a fork and works in the parent process only; "
        "open a new one in the child, or use the 'spawn' start method"
    )


class LeaseEnded(Ended):
    """A delivery settled too late: the record went back to the group. Nothing changed."""

    code = "lease_ended"
    group: str
    place: int
    attempt: int
    _says = (
        "group {group!r}: the lease of the record at {place} (attempt {attempt}) has ended, and the record went back "
        "to the group; make the work idempotent, call extend() in time, or give the group a longer ack_wait"
    )


class TopicDeleted(Ended):
    """The topic under a subscription was deleted."""

    code = "topic_deleted"
    topic: str
    epoch: int
    _says = "topic {topic!r} (epoch {epoch}) was deleted; subscribe again to follow a new one of that name"


class SubscriptionEnded(Ended):
    """There is no next record: the subscription or its broker was closed."""

    code = "subscription_ended"
    subscriber: str
    _says = "subscription {subscriber!r} has ended and gives no more records; subscribe again"


class Disconnected(Ended):
    """The `disconnect` policy ended a subscription that was too slow."""

    code = "disconnected"
    subscriber: str
    drops: int
    after: int
    _says = (
        "subscriber {subscriber!r} was disconnected: {drops:,} records in a row dropped, the limit is {after:,}; "
        "read faster, give it a larger buffer, or subscribe again from a position"
    )


# -- damaged ----------------------------------------------------------------------------------------------------


class Damaged(RunnelError):
    """Corrupt bytes: they are reported and never delivered."""

    code = "damaged"


class BadBatch(Damaged):
    """Bytes that are not a record batch, or one with wrong checksum or counts."""

    code = "bad_batch"
    why: str
    _says = "a record batch is damaged: {why}; none of its records are used: read or send it again"


# -- missed -----------------------------------------------------------------------------------------------------


class RecordsMissed(RunnelError):
    """A gap, raised because the subscription is `strict=True`."""

    code = "records_missed"
    subscriber: str
    gap: Gap
    _says = "subscriber {subscriber!r}: {gap}; without strict=True a subscription continues after gaps"


class DataLost(RunnelError):
    """Records that a Spark query had not read are missing, and its option `failOnDataLoss` is on."""

    code = "data_lost"
    topic: str
    first: int
    end: int
    why: str

    def __init__(self, topic: str, first: int, end: int, why: str) -> None:
        self.topic, self.first, self.end, self.why = topic, first, end, why
        lost = f"the query has to read offsets [{first}, {end}) of topic {topic!r}, which are lost: {why}"
        if end <= first:
            lost = f"the records after offset {first} of topic {topic!r} cannot be determined: {why}"
        super().__init__(
            f"{lost}; with the option failOnDataLoss=false the query skips them and reports how many were lost"
        )


# -- Errors of the journal: the folder, the disk, the bytes on it ----------------------------------------


class FolderInUse(NotNow):
    """Another process, or another broker in this one, owns the folder. `shares`: it lets other processes connect."""

    code = "folder_in_use"

    def __init__(
        self, folder: str, pid: int | None, *, shares: bool = False, command: str | None = None, answers: bool = True
    ) -> None:
        self.folder, self.pid, self.shares, self.command = folder, pid, shares, command
        self.owner = "another broker in this process or another" if pid is None else f"process {pid}"
        if command is not None:
            self.owner += f" ({command})"
        why = "which does not share it: close the other one, or open it with share=True there"
        if not answers:
            why = "which shares it and does not answer: wait until it does, or end that process"
        elif shares:
            why = "which shares it, but this program opens it with share=False: leave that out, or close the other one"
        super().__init__(f"{folder!r} is open in {self.owner}, {why}. `runnel log` and `topic list` work meanwhile")


class FolderUnusable(UsageError):
    """A folder that cannot hold a journal."""

    code = "folder_unusable"
    folder: str
    why: str
    _says = "{folder!r} cannot hold a journal: {why}"


class FormatUnknown(UsageError):
    """Files written in a format that this version does not know."""

    code = "format_unknown"
    file: str
    version: int
    known: int
    _says = (
        "{file} is written in format {version}, and this version of runnel knows up to {known}; "
        "open it with the version that wrote it, or a later one"
    )


class JournalDamaged(Damaged):
    """Bytes on disk that were durable and have changed. They are never delivered."""

    code = "journal_damaged"
    file: str
    position: int
    why: str
    _says = (
        "{file} is damaged at {position}: {why}; run `runnel log verify`, then restore the file from a "
        "snapshot, or run `runnel log repair`, which removes what cannot be read and reports it"
    )


class JournalFailed(Ended):
    """Writing failed, so the journal refuses writes until it is reopened. Reading works."""

    code = "journal_failed"
    why: str
    _says = (
        "the journal failed and takes no more writes: {why}; check the disk and the folder, then close and open the "
        "broker again"
    )


class DiskFull(NotNow):
    """There is no room for more records; nothing was written. Reading, acks and deletes work."""

    code = "disk_full"
    free: int
    needed: int
    _says = (
        "the disk has {free:,} bytes free and the journal needs {needed:,} for a new segment "
        "(segment_bytes and min_free); make room, delete topics or shorten their retention, "
        "and publish again"
    )


class ArchiveBehind(DiskFull):
    """There is no room for more records, since topics wait for the archive; nothing was written.

    `unconfirmed` bytes of `topics`, the largest first, stay until the archive has confirmed them.
    """

    code = "archive_behind"
    free: int
    needed: int
    unconfirmed: int
    topics: Sequence[str]
    _says = (
        "the disk has {free:,} bytes free and the journal needs {needed:,}; about {unconfirmed:,} bytes of "
        "{topics} are kept because they are not archived yet (retention_until='archived'): let the "
        "archive run and confirm them, or make room, and publish again"
    )


class HistoryUnavailable(NotNow):
    """The source that keeps the old records of a topic failed. A subscription waits and tries again instead."""

    code = "history_unavailable"
    topic: str
    why: str
    _says = "the source of history of {topic!r} failed: {why}; try again when it works"


class NotArchived(NotNow):
    """A confirmation of records that the topic's source of history does not have. Nothing was confirmed.

    `asked` is the offset that was to be confirmed, `archived` where the source ends; None: the topic has no source.
    """

    code = "not_archived"
    topic: str
    asked: int
    archived: int | None
    why: str
    _says = "topic {topic!r} cannot be confirmed as archived up to offset {asked:,}: {why}"


class TopicHeld(NotNow):
    """A trim of records that a subscription holds."""

    code = "topic_held"

    def __init__(self, topic: str, before: int, holders: Mapping[str, int]) -> None:
        self.topic, self.before, self.holders = topic, before, dict(holders)
        names = ", ".join(f"{name!r} (from offset {offset:,} on)" for name, offset in sorted(holders.items()))
        super().__init__(
            f"topic {topic!r} is held by {names}, so nothing was removed: let that subscription read on, forget it "
            f"(`broker.forget`, `runnel cursor forget`), or remove the records before {before:,} anyway "
            "(force=True, --force)"
        )


class UnknownName(UsageError):
    """There is no named subscription with this name."""

    code = "unknown_name"
    name: str
    _says = "there is no subscription with the name {name!r}; `runnel cursor list` shows all"


class GroupInUse(UsageError):
    """A group that has members cannot be forgotten."""

    code = "group_in_use"
    group: str
    pattern: str
    members: int
    _says = "group {group!r} on {pattern!r} has {members} members; end their subscriptions first, then forget it"


class NotWritten(NotNow):
    """A publish that was not written when the journal failed. It is safe to publish again."""

    code = "not_written"
    why: str
    _says = "nothing was written: {why}; reopen the broker and publish again"


class OutcomeUnknown(NotNow):
    """A write was in progress when the journal failed or the connection was lost: it may be stored or not."""

    code = "outcome_unknown"

    def __init__(self, why: str, *, committing: bool = False, repeated: bool = False, unanswered: bool = False) -> None:
        self.why = why
        if unanswered:
            super().__init__(
                f"it was sent, and the cluster did not confirm that it is stored: {why}; publish it again with "
                "the same message_id, which stores it once, or look at the end of the topic"
            )
            return
        if repeated:
            super().__init__(
                "the publish was sent again after the connection was lost, and the server no longer knows whether "
                f"it stored it the first time: {why}; "
                "look at the end of the topic, or publish it again if a duplicate does no harm"
            )
            return
        if committing:
            super().__init__(
                f"it is unknown whether the server committed the transaction: {why}; "
                "repeat it if it has a marker, which makes sure that it is committed once, or look at what it publishes"
            )
        else:
            super().__init__(
                f"the journal failed during the write, so the record may or may not be there after reopening: {why}; "
                "look at the end of the topic then, or publish it again if a duplicate does no harm"
            )


class NoArchive(UsageError):
    """A folder to restore from that is not an archive."""

    code = "no_archive"
    folder: str
    _says = "{folder!r} is not an archive; name the one that `runnel backup` writes to"


class ArchiveMismatch(UsageError):
    """An archive of another journal, or of another life of this one. Nothing was added to it."""

    code = "archive_mismatch"
    archive: str
    why: str
    _says = "{archive!r} is an archive of another journal: {why}; start a new archive in another folder"


class ArchiveDamaged(Damaged):
    """Bytes of an archive that have changed or are missing. Nothing was restored."""

    code = "archive_damaged"
    file: str
    position: int
    why: str
    _says = (
        "{file} is damaged at {position}: {why}; put the file back from a copy of the archive, restore "
        "another point (--until) or from another base (--base): `runnel restore ARCHIVE --list` shows them"
    )


class PointNotArchived(UsageError):
    """A point in time that an archive cannot restore: before it, after it, or where data is missing."""

    code = "point_not_archived"
    point: str
    why: str
    _says = "{point} cannot be restored: {why}; `runnel restore ARCHIVE --list` shows which points can"


class BackupStoreFailed(NotNow):
    """Object storage refused or lost something of a backup, or could not be reached. The backup is as it was."""

    code = "backup_store_failed"
    url: str
    why: str
    _says = "{url} failed: {why}; check the address, the credentials in the environment and the network, and try again"


class ArchiveBusy(NotNow):
    """Another run is writing to the archive."""

    code = "archive_busy"

    def __init__(self, archive: str, pid: int | None) -> None:
        self.archive, self.pid = archive, pid
        who = "another process" if pid is None else f"process {pid}"
        super().__init__(f"{who} is writing to {archive!r}; wait for it, or let it continue alone (--follow)")


# -- Errors between client and server: addresses, connections, limits, protocol --------------------------


class BadAddress(UsageError):
    """An invalid address of a server."""

    code = "bad_address"
    url: object
    why: str
    _says = (
        "{url!r} is not the address of a server: {why}; "
        "use 'runnel://host:7788', 'runnels://host:7788' (TLS) or 'runnel+unix:///path/to/socket'"
    )


class Unreachable(NotNow):
    """No answer at the address, or not in time."""

    code = "unreachable"
    address: str
    why: str
    _says = "cannot reach {address}: {why}; check the address, and that a server runs there (`runnel serve`)"


class ClusterRefused(NotNow):
    """A NATS cluster refused a request; `number` is JetStream's own code."""

    code = "cluster_refused"
    asked: str
    status: int
    number: int
    why: str
    _says = "the cluster refused {asked}: {why} ({number}); see the log of its servers, or try again"


class ConnectionLost(NotNow):
    """The connection ended during a call that must not be sent twice."""

    code = "connection_lost"
    address: str
    why: str
    _says = (
        "the connection to {address} was lost: {why}; the server may have executed the call or not: "
        "check before you repeat it. The client reconnects by itself"
    )


class NoAnswer(NotNow, TimeoutError):
    """A server did not answer within the time that its client waits."""

    code = "no_answer"
    what: str
    seconds: float
    state: str
    _says = (
        "no answer to {what} within {seconds:g} s ({state}); the server may have executed it, or may do so later: "
        "check before you repeat it, or open the broker with a longer timeout"
    )


class PublishCancelled(NotNow):
    """The publisher gave up before the server had stored the record."""

    code = "publish_cancelled"
    _says = (
        "the publish was cancelled while it waited; nothing was stored, unless it was being written already. "
        "Publish it again, with its number or message_id if it must be stored only once"
    )


class ProtocolError(RunnelError):
    """A peer sent something that the protocol does not know. The connection ends."""

    code = "protocol_error"
    why: str
    _says = "protocol error: {why}; check that both sides use the same protocol and version on this port"


class WrongListener(UsageError):
    """A client connected to a listener that speaks another protocol."""

    code = "wrong_listener"
    here: str
    instead: str
    _says = "this is {here}; {instead}"


class BadCommand(UsageError):
    """A line that is not a valid command. The connection continues."""

    code = "bad_command"

    def __init__(self, why: str, *, field: str | None = None, form: str | None = None) -> None:
        self.why, self.field = why, field
        self.form = form or '{"command": "SUB", "topic": "test"}'
        super().__init__(f'{why}; send a line such as {self.form}, or {{"command": "HELP"}}')


class LimitExceeded(UsageError):
    """A client exceeded a limit of the server; `limit` names it."""

    code = "limit_exceeded"
    limit: str
    value: float
    allowed: float
    _says = (
        "{value:,} exceeds {limit}={allowed:,}; ask for less at once, or raise {limit} in the server's configuration"
    )


class OriginRefused(UsageError):
    """A page of an origin that is not allowed sent a request to the HTTP listener."""

    code = "origin_refused"
    origin: str
    _says = "pages of {origin} may not use this server; to allow them, name the origin with --http-cors (http_cors)"


class HostRefused(UsageError):
    """A request with a host name that the HTTP listener does not accept: see DNS rebinding."""

    code = "host_refused"
    host: str
    _says = (
        "this server does not accept the host name {host!r}; use localhost or its address, or add the name to "
        "http_hosts"
    )


class NotAuthenticated(UsageError):
    """A peer has not logged in: no token, or an unknown one."""

    code = "not_authenticated"
    why: str
    _says = (
        "{why}; give a token that this server knows: runnel.open(url, token=...), --token-file, RUNNEL_TOKEN, "
        "or `Authorization: Bearer`"
    )


class TokenExpired(NotNow):
    """The token of the peer has expired. With a callable as `token`, a client gets a new one."""

    code = "token_expired"
    _says = "the token has expired; log in with a new one (token= of runnel.open may be a callable that fetches it)"


_DOING = {"subscribe": "subscribe to", "publish": "publish to", "group": "join groups on", "admin": "administer"}


class NotAuthorized(UsageError):
    """A principal may not do this. `allowed` are the patterns with which it may do it; `topic`: "" if it is of none."""

    code = "not_authorized"
    principal: str
    action: str
    topic: str
    allowed: list[str]

    def __init__(
        self,
        principal: str,
        action: str,
        topic: str,
        allowed: Sequence[str] = (),
        advice: str | None = None,
        *,
        partial: bool = False,
    ) -> None:
        self.principal, self.action, self.topic, self.allowed = principal, action, topic, list(allowed)
        doing = _DOING.get(action, action)
        advice = advice or self._advice(doing, partial=partial)
        super().__init__(f"{principal!r} may not {doing}{f' {topic!r}' if topic else ''}; {advice}")

    def _advice(self, doing: str, *, partial: bool) -> str:
        """What it may do, and how it gets to do this."""
        said = [f"it may {doing} {', '.join(map(repr, self.allowed)) or 'nothing'}"]
        if (below := f"{self.topic}.>") in self.allowed:
            said.append(f" ({below!r} does not cover {self.topic!r} itself)")
        if partial:
            said.append("; with partial=True a subscription without a name reads the allowed part of a pattern")
        rule = f"{self.action}:{self.topic}"
        said.append(f". An administrator grants more: {rule!r} in a role of {self.principal!r} in the file of --auth")
        said.append(f", or in another token: `runnel token create NAME --allow {rule!r}`")
        return "".join(said)


class NameOwned(UsageError):
    """The name of a subscription, group, producer or marker belongs to another principal."""

    code = "name_owned"
    kind: str
    name: str
    principal: str
    _says = "the {kind} {name!r} belongs to another principal than {principal!r}; use another name"


class AccessRevoked(Ended):
    """The token or the rights of the principal were revoked while it was connected."""

    code = "access_revoked"
    principal: str
    _says = "the access of {principal!r} was revoked; log in with a valid token"


class AuditFailed(NotNow):
    """An admin action was refused, because the security log could not be written."""

    code = "audit_failed"
    action: str
    why: str
    _says = "{action} was refused, because the security log cannot be written: {why}; fix that first"


class AddressInUse(UsageError):
    """Another program listens on the address."""

    code = "address_in_use"
    address: str
    _says = "{address} is in use by another program; stop it, or choose another port (0: any free one)"


class PublicBindRefused(UsageError):
    """A server without authentication must not listen on an address that other machines can reach."""

    code = "public_bind_refused"
    host: str
    _says = (
        "{host} can be reached from other machines, and this server has no authentication; give it --auth FILE, "
        "listen on 127.0.0.1, or use --insecure-public (insecure_public=True) if the network itself is trusted"
    )


# -- Errors of publishing exactly once: sequences, markers, expectations, stages -------------------------


class SequenceGap(UsageError):
    """A producer skipped numbers: an earlier publish is missing."""

    code = "sequence_gap"
    producer: int
    expected: int
    got: int
    _says = (
        "producer {producer:#x} published number {got}, but {expected} is next; "
        "publish the numbers in between first, in order"
    )


class SequenceOverlap(UsageError):
    """A list of records of which only the first ones were published before."""

    code = "sequence_overlap"

    def __init__(self, producer: int, sequence: int, end: int, stored: int) -> None:
        self.producer, self.sequence, self.end, self.stored = producer, sequence, end, stored
        super().__init__(
            f"producer {producer:#x} published numbers {sequence} to {end - 1}, and those before {stored} are stored "
            f"already; publish from {stored} on"
        )


class SequenceForgotten(UsageError):
    """Numbers that were stored before, at positions that are no longer remembered."""

    code = "sequence_forgotten"
    producer: int
    sequence: int
    oldest: int
    _says = (
        "producer {producer:#x} published number {sequence}, but the broker remembers the positions of its last "
        "publishes only, from {oldest} on; continue with the next number"
    )


class OffsetConflict(NotNow):
    """Another publish came first: the topic does not end where the publisher expected."""

    code = "offset_conflict"
    topic: str
    expected: int
    actual: int
    _says = (
        "the next offset of {topic!r} is {actual}, not {expected} as expected; "
        "read what is new, decide again, and retry"
    )


class MarkConflict(NotNow):
    """A marker has another value than the transaction expected: another program moved it."""

    code = "mark_conflict"
    mark: str
    expected: object
    actual: object
    _says = (
        "marker {mark!r} is {actual!r}, not {expected!r} as expected; "
        "another program moved it: read it again, and stop if that program continues the work"
    )


class KeyConflict(NotNow):
    """Another writer put or deleted this key of a table in the meantime."""

    code = "key_conflict"
    table: str
    key: str
    expected: int | None
    actual: int | None
    _says = (
        "the last put of {key!r} in the table {table!r} is at offset {actual}, not {expected} as expected; "
        "read the entry, decide again, and retry; table.update() does this"
    )


class TransactionEnded(Ended):
    """The transaction was committed or rolled back already."""

    code = "transaction_ended"
    _says = "the transaction has ended; open another with `async with broker.transaction()`"


class StageEnded(Ended):
    """A stage that was committed, dropped or superseded, or that expired."""

    code = "stage_ended"

    def __init__(self, stage: str, why: str) -> None:
        self.stage, self.why = stage, why
        done = "its records are in their topic: continue with the next batch"
        way_out = done if "commit" in why else "stage the records again as a new attempt"
        super().__init__(f"the stage {stage} has ended: {why}; {way_out}")


class UnknownStage(UsageError):
    """A stage to commit that does not exist."""

    code = "unknown_stage"
    stage: str
    _says = (
        "there is no stage {stage}: nothing was written to it, or it was committed or dropped before the broker "
        "restarted; a marker in the same transaction shows which"
    )


class StagingFull(NotNow):
    """The limit of staged, uncommitted data is reached."""

    code = "staging_full"

    def __init__(self, what: str, amount: int, limit_name: str, limit: int, advice: str = "") -> None:
        self.what, self.amount, self.limit_name, self.limit = what, amount, limit_name, limit
        usual = "commit or drop some first (`broker.stages()` and `runnel log staged` list them), or raise the limit"
        super().__init__(f"{amount:,} {what} would be staged, but {limit_name} is {limit:,}; {advice or usual}")


class Fenced(Ended):
    """A Spark query that is behind another one of the same name: its batch was written already."""

    code = "fenced"
    mark: str
    batch: int
    ahead: object
    _says = (
        "batch {batch} of {mark!r} cannot be committed, because batch {ahead} is committed: another driver runs this "
        "query, or its checkpoint is an old copy; nothing was written. Stop the query that is behind; to write "
        "everything again, start with a new checkpoint"
    )


# -- warm standby -----------------------------------------------------------------------------------------------


class NotPrimary(NotNow):
    """The server is a standby: it serves no clients until it is promoted."""

    code = "not_primary"
    primary: str
    _says = (
        "this server is a standby of {primary} and serves no topics; connect to the primary, or name both servers "
        "in one address (runnel://primary,standby); if the primary is gone, `runnel promote`"
    )


class StandbyMissing(NotNow):
    """A primary that acknowledges nothing without its standby, and has no lease from it."""

    code = "standby_missing"
    standby: str
    _says = (
        "this primary acknowledges nothing without its synchronous standby {standby!r}, which is not connected; start "
        "the standby again, or promote it; if its folder is lost, use `runnel standby release`"
    )


class Superseded(NotNow):
    """A standby of this server was promoted: the server stopped, and keeps what was not replicated."""

    code = "superseded"
    generation: int
    newer: int
    _says = (
        "this journal is of generation {generation}, and generation {newer} was promoted: connect to that server; to "
        "make a standby of this one, start it with `runnel standby --from NEW-PRIMARY --rejoin`"
    )


class FolderIsStandby(UsageError):
    """The folder belongs to a standby: only the process that follows the primary may write to it."""

    code = "folder_is_standby"
    folder: str
    primary: str
    _says = (
        "{folder!r} is the folder of a standby of {primary}; continue with `runnel standby`, or make it a "
        "primary with `runnel promote --data {folder}`"
    )


class PromotionRefused(UsageError):
    """A standby that cannot be promoted this way."""

    code = "promotion_refused"
    why: str
    _says = "the standby was not promoted: {why}"


class StandbyRefused(UsageError):
    """The standby cannot follow the primary, or its folder cannot become a standby."""

    code = "standby_refused"
    why: str
    _says = "the standby cannot follow: {why}"


class UnknownFile(NotNow):
    """A standby asks for a file that the primary's journal no longer has."""

    code = "unknown_file"
    name: str
    _says = "the journal has no file {name!r} any more: ask for its manifest again"


class ReplicaDamaged(Damaged):
    """Bytes that arrived from the primary are corrupt; they were not stored."""

    code = "replica_damaged"
    file: str
    position: int
    why: str
    _says = (
        "{file}, as the primary sent it, is damaged at {position}: {why}; nothing of it was stored, and the standby "
        "asks for it again; if this repeats, run `runnel log verify` at the primary"
    )


# -- the lake ---------------------------------------------------------------------------------------------------


class UnknownLake(UsageError):
    """There is no lake at the location."""

    code = "unknown_lake"
    location: str
    _says = "there is no lake at {location!r}; `runnel pipeline run archive` creates one, and so does Lake.create()"


class LakeMismatch(UsageError):
    """A Delta table that is not a lake of runnel."""

    code = "lake_mismatch"
    location: str
    why: str
    _says = "the table at {location!r} is not a lake of runnel: {why}; name another folder"


class LakeBusy(NotNow):
    """A commit to a lake that failed because other processes committed first, several times."""

    code = "lake_busy"
    location: str
    attempts: int
    why: str
    _says = (
        "a commit to the lake {location!r} failed {attempts} times ({why}); nothing of it was added. "
        "Commit again; run one archive for a topic at a time"
    )


class LakeFileExpired(UsageError):
    """A file that was written too long ago to be committed."""

    code = "lake_file_expired"
    path: str
    hours: float
    _says = (
        "{path!r} was written more than {hours:g} hours ago, and maintenance may remove it; nothing was added. "
        "Write its rows again"
    )


class LakeDamaged(Damaged):
    """A file of a lake with wrong or missing contents."""

    code = "lake_damaged"
    path: str
    why: str
    _says = "{path!r} in the lake is damaged: {why}; restore it, or archive its records again from the journal"


# -- pipelines --------------------------------------------------------------------------------------------------


class PipelineFailed(Ended):
    """A query of a pipeline that ended with an error."""

    code = "pipeline_failed"
    pipeline: str
    query: str
    why: str
    _says = (
        "query {query!r} of pipeline {pipeline!r} failed: {why}; what was committed stays, and the next start "
        "continues after it"
    )


class PipelineRunning(NotNow):
    """A pipeline that another process runs with the same state."""

    code = "pipeline_running"
    pipeline: str
    pid: int
    _says = (
        "process {pid} runs the pipeline {pipeline!r} with this state; stop it (`runnel pipeline stop {pipeline}`), or "
        "give this run its own state (--state)"
    )


class PipelineNotRunning(UsageError):
    """A pipeline that no process runs with this state."""

    code = "pipeline_not_running"
    pipeline: str
    folder: str
    _says = "no process runs the pipeline {pipeline!r} with the state in {folder!r}; --lake or --state name another one"
