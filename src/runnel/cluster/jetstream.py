"""JetStream's API: the stream that holds everything, its messages and consumers, publishes with a known outcome.

A publish carries a message id and is repeated with the same id until the cluster has answered: the cluster stores it
once. An atomic batch has no such id; a fence message in it, written only if it is not there yet, shows whether an
earlier attempt was committed. Reads that decide something go to the leader of the stream.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar

import msgspec

from runnel.cluster.layout import MAX_BATCH, MESSAGE_ID, TTL, Subjects
from runnel.cluster.link import NatsLink
from runnel.core.errors import (
    ClusterRefused,
    ConnectionLost,
    NoAnswer,
    NoResponders,
    NotSupported,
    OutcomeUnknown,
    RunnelError,
    TooLarge,
    Unreachable,
)
from runnel.wire import nats

T = TypeVar("T")

ATTEMPT = 3.0  # seconds that one attempt of a request may take
WATCH = 5.0  # seconds between questions whether JetStream can be reached through this server
PAUSE = 0.02  # seconds before the next one, at first
WINDOW = 120  # seconds that the stream knows message ids
FENCE_TTL = "600s"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_OF = "Nats-Expected-Last-Subject-Sequence-Subject"
ROLLUP = "Nats-Rollup"  # the message replaces all earlier ones of its subject
NOT_FOUND, WRONG_LAST, IN_FLIGHT = 10037, 10071, 10164
UNDER_WAY = 10158  # an earlier attempt with the same message id is not decided yet
_TEMPORARY = {10008, 10009, 10013, 10075, 10076, 10077, 10118, 10150, UNDER_WAY, 10167, 10176, 10210}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def _is_temporary(error: ClusterRefused) -> bool:
    """Whether the cluster may do later what it refused now: it has no leader, say."""
    return error.number in _TEMPORARY or error.status == 503


class StoredCopy(NamedTuple):
    """A message that was looked up."""

    subject: str
    sequence: int
    head: bytes | None
    payload: bytes
    nanoseconds: int


class Outgoing(NamedTuple):
    """A message of an atomic batch."""

    subject: str
    payload: bytes
    headers: Mapping[str, str]
    is_expiring: bool = False  # all its records expire by themselves


class JetStream:
    """One stream, over one link."""

    def __init__(self, link: NatsLink, stream: str, timeout: float) -> None:
        self.link, self.stream, self.timeout = link, stream, timeout
        self.subjects = Subjects(stream)

    def __repr__(self) -> str:
        return f"<JetStream {self.stream!r}>"

    async def watch(self) -> None:
        """Find out when JetStream cannot be reached, also where this process only reads.

        A consumer on a server that is cut off from the others still sends heartbeats, but no records.
        """
        while True:
            await asyncio.sleep(WATCH)
            try:
                answer = await self.link.request(f"$JS.API.STREAM.INFO.{self.stream}", b"", ATTEMPT)
                cluster = _decode(answer.payload).get("cluster")
            except (NoAnswer, NoResponders):
                self.link.unanswered("watch")
            except RunnelError:
                continue  # there is no connection
            else:
                has_leader = cluster is None or cluster.get("leader")
                (self.link.answered if has_leader else self.link.unanswered)("watch")

    # -- the API ------------------------------------------------------------------------------------------------

    async def api(self, subject: str, said: Any = None, *, timeout: float | None = None) -> dict[str, Any]:
        """The answer to one request of the API that may be repeated, or `ClusterRefused`."""
        payload = b"" if said is None else _encode(said)

        async def ask() -> dict[str, Any]:
            answer = await self.link.request(f"$JS.API.{subject}", payload, ATTEMPT)
            found: dict[str, Any] = _decode(answer.payload)
            if (error := found.get("error")) is not None:
                raise ClusterRefused(
                    subject, error.get("code", 0), error.get("err_code", 0), error.get("description", "")
                )
            return found

        return await self.repeated(ask, subject, timeout)

    async def repeated(self, ask: Callable[[], Awaitable[T]], what: str, timeout: float | None = None) -> T:
        """The result of `ask`, which is called again while the cluster has no leader or no connection."""
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + (timeout or self.timeout), PAUSE
        while True:
            try:
                return await ask()
            except (NoAnswer, NoResponders, ConnectionLost, Unreachable) as error:
                last: RunnelError = error
            except ClusterRefused as error:
                if not _is_temporary(error):
                    raise
                last = error
            if loop.time() >= end:
                raise NoAnswer(f"{what} of the cluster", timeout or self.timeout, self.link.state) from last
            await self._pause(pause, end)
            pause = min(pause * 2, 0.5)

    async def _pause(self, pause: float, end: float) -> None:
        loop = asyncio.get_running_loop()
        if self.link.state == "connected":
            await asyncio.sleep(min(pause, max(0.0, end - loop.time())))
        else:
            try:
                await self.link.connected(max(0.01, end - loop.time()))
            except NoAnswer:
                pass

    # -- messages -----------------------------------------------------------------------------------------------

    async def last(self, subject: str) -> StoredCopy | None:
        """The last message of a subject, as the leader has it; wildcards are allowed."""
        return await self._message({"last_by_subj": subject})

    async def next(self, subject: str, sequence: int = 1, time: datetime | None = None) -> StoredCopy | None:
        """The first message of a subject from a sequence, or a time, on."""
        if time is not None:
            return await self._message({"start_time": time.isoformat(), "next_by_subj": subject})
        return await self._message({"seq": max(1, sequence), "next_by_subj": subject})

    async def _message(self, said: dict[str, Any]) -> StoredCopy | None:
        try:
            found = (await self.api(f"STREAM.MSG.GET.{self.stream}", said))["message"]
        except ClusterRefused as error:
            if error.number == NOT_FOUND:
                return None
            raise
        head = b64decode(found["hdrs"]) if found.get("hdrs") else None
        payload = b64decode(found["data"]) if found.get("data") else b""
        return StoredCopy(found["subject"], found["seq"], head, payload, nanoseconds(found["time"]))

    async def get_many(self, subject: str, sequence: int, count: int, max_bytes: int) -> list[StoredCopy]:
        """Up to `count` messages of a subject from a sequence on, as some replica has them: it may lag behind."""
        said = _encode({"next_by_subj": subject, "seq": max(1, sequence), "batch": count, "max_bytes": max_bytes})
        link = self.link

        async def ask() -> list[StoredCopy]:
            found: list[StoredCopy] = []
            over: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
            connections = link.connection.connections

            def arrived(message: nats.Message) -> None:
                status = None if message.head is None or message.payload else nats.read_status(message.head)
                if status is None:
                    found.append(_direct_copy(message))
                elif not over.done():
                    over.set_result(status)

            inbox = link.new_inbox()
            sid = link.subscribe(inbox, arrived)
            try:
                if not link.publish(f"$JS.API.DIRECT.GET.{self.stream}", said, inbox):
                    raise Unreachable(link.connection.address or "", "not connected now")
                async with asyncio.timeout(ATTEMPT):
                    code, why = await over
            except TimeoutError:
                raise NoAnswer("a direct get", ATTEMPT, link.state) from None
            finally:
                link.unsubscribe(sid)
            if link.connection.connections != connections:
                raise ConnectionLost(link.connection.address or "", "messages may have been lost with the connection")
            if code == 503:
                raise NoResponders(subject)
            if code not in (204, 404):
                raise ClusterRefused("a direct get", code, 0, why)
            return found

        return await self.repeated(ask, "a direct get")

    async def message_counts(self, filter: str) -> dict[str, int]:
        """How many messages each subject has that matches a filter."""
        found: dict[str, int] = {}
        while True:
            said = {"subjects_filter": filter, "offset": len(found)}
            page = await self.api(f"STREAM.INFO.{self.stream}", said)
            counts: dict[str, int] = page["state"].get("subjects") or {}
            found |= counts
            if not counts or len(found) >= page.get("total", 0):
                return found

    async def last_sequence(self) -> int:
        """The stream sequence of the last message."""
        info = await self.api(f"STREAM.INFO.{self.stream}")
        return int(info["state"]["last_seq"])

    async def purge(self, subject: str, *, before: int | None = None) -> None:
        """Remove the messages of a subject, or those before a stream sequence."""
        said: dict[str, Any] = {"filter": subject}
        if before is not None:
            said["seq"] = before
        await self.api(f"STREAM.PURGE.{self.stream}", said)

    # -- publishing ---------------------------------------------------------------------------------------------

    async def store(self, subject: str, payload: bytes, headers: dict[str, str]) -> tuple[int, bool]:
        """Store one message: its stream sequence, and whether it was stored before, as its message id says.

        It is sent again with the same id until the cluster has answered; `OutcomeUnknown` if it does not in time.
        """
        headers.setdefault(MESSAGE_ID, token_hex(12))
        head = nats.headers(headers)
        if len(head) + len(payload) > self.link.max_payload:
            size = len(head) + len(payload)
            raise TooLarge(
                "a record with its key and headers", size, "max_payload of the cluster", self.link.max_payload
            )
        loop = asyncio.get_running_loop()
        end, pause, was_sent = loop.time() + self.timeout, PAUSE, False
        error: RunnelError
        while True:
            sent = self.link.start_request(subject, payload, head)
            was_sent = was_sent or not sent.done()
            try:
                async with asyncio.timeout(min(ATTEMPT, max(0.05, end - loop.time()))):
                    answer = await sent
                found = _decode(answer.payload)
                if (refused := found.get("error")) is None:
                    self.link.answered("publish")
                    return int(found["seq"]), bool(found.get("duplicate"))
                error = ClusterRefused(
                    "a publish", refused.get("code", 0), refused.get("err_code", 0), refused["description"]
                )
                if not _is_temporary(error) and error.number != IN_FLIGHT:
                    raise error
            except TimeoutError:
                error = NoAnswer("a publish", ATTEMPT, self.link.state)
            except (NoResponders, ConnectionLost, Unreachable) as found_error:
                error = found_error
            self.link.unanswered("publish")
            if loop.time() >= end:
                if was_sent:
                    raise OutcomeUnknown(f"no answer for {self.timeout:g} s", unanswered=True) from error
                raise Unreachable(self.link.connection.address or "", "it could not be sent") from error
            await self._pause(pause, end)
            pause = min(pause * 2, 0.5)

    async def store_all(self, messages: Sequence[Outgoing], id: str | None = None) -> int:
        """Store messages as one atomic batch with consecutive sequences, all or none; the sequence of the first.

        A batch whose `id` was stored within ten minutes is not stored again. `ClusterRefused` with the number
        WRONG_LAST if an expected sequence is wrong: then nothing was stored.
        """
        if len(messages) + 1 > MAX_BATCH:
            raise TooLarge("a transaction in messages", len(messages) + 1, "messages of an atomic batch", MAX_BATCH)
        fence = self.subjects.fence(id or token_hex(12))
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + self.timeout, PAUSE
        error: RunnelError
        while True:
            try:
                return await self._attempt_all(messages, fence, min(ATTEMPT, max(0.05, end - loop.time())))
            except ClusterRefused as found:
                error = found
                if found.number == WRONG_LAST or found.number == IN_FLIGHT:
                    if (stored := await self._fenced(fence, len(messages))) is not None:
                        return stored
                    if found.number == WRONG_LAST:
                        raise
                elif not _is_temporary(found):
                    raise
            except (TimeoutError, NoResponders, ConnectionLost, Unreachable, NoAnswer) as found:
                error = found if isinstance(found, RunnelError) else NoAnswer("a batch", ATTEMPT, self.link.state)
            self.link.unanswered("publish")
            if loop.time() >= end:
                raise OutcomeUnknown(f"the cluster did not answer for {self.timeout:g} s", committing=True) from error
            await self._pause(pause, end)
            pause = min(pause * 2, 0.5)

    async def _fenced(self, fence: str, count: int) -> int | None:
        """The sequence of the first message, if an earlier attempt was committed."""
        found = await self.last(fence)
        return None if found is None else found.sequence - count

    async def _attempt_all(self, messages: Sequence[Outgoing], fence: str, timeout: float) -> int:
        batch, count = token_hex(8), len(messages)
        for number, one in enumerate(messages, 1):
            head = nats.headers({**one.headers, "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)})
            if len(head) + len(one.payload) > self.link.max_payload:
                size = len(head) + len(one.payload)
                raise TooLarge(
                    "a record with its key and headers", size, "max_payload of the cluster", self.link.max_payload
                )
            if not self.link.publish(one.subject, one.payload, None, head):
                raise Unreachable(self.link.connection.address or "", "not connected now")
        head = nats.headers(
            {
                EXPECTED: "0",
                TTL: FENCE_TTL,
                "Nats-Batch-Id": batch,
                "Nats-Batch-Sequence": str(count + 1),
                "Nats-Batch-Commit": "1",
            }
        )
        async with asyncio.timeout(timeout):
            answer = await self.link.start_request(fence, b"", head)
        found = _decode(answer.payload)
        if (refused := found.get("error")) is None:
            self.link.answered("publish")
        else:
            raise ClusterRefused(
                "a transaction", refused.get("code", 0), refused.get("err_code", 0), refused["description"]
            )
        return int(found["seq"]) - count

    # -- consumers ----------------------------------------------------------------------------------------------

    async def create_consumer(self, name: str, config: dict[str, Any], action: str = "") -> dict[str, Any]:
        """Make a consumer; with the action "create", one with other options is an error."""
        said = {"stream_name": self.stream, "config": {**config, "name": name}, "action": action}
        return await self.api(f"CONSUMER.CREATE.{self.stream}.{name}", said)

    def delete_consumer(self, name: str) -> None:
        """Delete a consumer, without waiting for the answer."""
        self.link.publish(f"$JS.API.CONSUMER.DELETE.{self.stream}.{name}", b"", self.link.new_inbox())

    async def consumers(self) -> list[dict[str, Any]]:
        """All consumers."""
        found: list[dict[str, Any]] = []
        while True:
            page = await self.api(f"CONSUMER.LIST.{self.stream}", {"offset": len(found)})
            found += page.get("consumers") or ()
            if not page.get("consumers") or len(found) >= page.get("total", 0):
                return found


_new = tuple.__new__  # half the time of the constructor that a NamedTuple has


class Acknowledged(NamedTuple):
    """The fields of the reply subject of a delivered message."""

    delivered: int  # how often
    sequence: int  # in the stream
    number: int  # in the consumer
    nanoseconds: int
    pending: int


def read_reply(reply: str) -> Acknowledged:
    """The numbers in `$JS.ACK.…`: of nine tokens, or of eleven or twelve with a domain and an account."""
    if reply.count(".") == 8:
        _, delivered, sequence, number, time, pending = reply.rsplit(".", 5)
    else:
        delivered, sequence, number, time, pending = reply.split(".")[6:11]
    return _new(Acknowledged, (int(delivered), int(sequence), int(number), int(time), int(pending)))


def _direct_copy(message: nats.Message) -> StoredCopy:
    """A message that came as the answer to a direct get."""
    said = nats.read_headers(message.head or b"")
    time = nanoseconds(said["Nats-Time-Stamp"])
    return StoredCopy(said["Nats-Subject"], int(said["Nats-Sequence"]), message.head, message.payload, time)


def nanoseconds(text: str) -> int:
    """A time as JetStream writes it, in nanoseconds since 1970."""
    whole, _, rest = text.rstrip("Z").partition(".")
    seconds = int(datetime.fromisoformat(whole + "+00:00").timestamp())
    return seconds * 10**9 + int(rest.ljust(9, "0")[:9] or 0)


# -- the stream ------------------------------------------------------------------------------------------


def stream_config(stream: str, replicas: int) -> dict[str, Any]:
    """How the stream is made."""
    return {
        "name": stream,
        "subjects": [Subjects(stream).everything],
        "storage": "file",
        "num_replicas": replicas,
        "max_consumers": 100_000,
        "duplicate_window": WINDOW * 10**9,
        "allow_direct": True,
        "allow_atomic": True,
        "allow_msg_ttl": True,
        "allow_msg_schedules": True,
        "allow_rollup_hdrs": True,
    }


_NEEDED = ("allow_atomic", "allow_msg_ttl", "allow_msg_schedules", "allow_direct")


def check_stream(config: Mapping[str, Any]) -> None:
    """Raise unless the stream that is there can hold topics."""
    name = config["name"]
    for option in _NEEDED:
        if not config.get(option):
            raise NotSupported(f"the stream {name!r}", f"it was made without {option}; choose another with stream=")
    if config.get("duplicate_window", 0) < WINDOW * 10**9:
        why = f"its duplicate_window is below {WINDOW} s, so a repeated publish could be stored twice"
        raise NotSupported(f"the stream {name!r}", why)


def check_version(version: str) -> None:
    """Raise unless the server is 2.12 or later."""
    try:
        found = tuple(int(one) for one in version.split("-")[0].split(".")[:2])
    except ValueError:
        found = (0, 0)
    if found < (2, 12):
        why = "atomic batches, schedules and time limits of messages came with 2.12; upgrade the servers"
        raise NotSupported(f"nats-server {version}", why)
