"""A group on a cluster: its durable consumers, one for each bucket of keys, and its options.

Options and start are stored with the consumers: members must agree on them. All members, in whatever process, pull from
the same consumers. JetStream stores the settlements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from runnel.cluster.catalog import ClusterCatalog
from runnel.cluster.counting import count_records
from runnel.cluster.jetstream import JetStream
from runnel.cluster.layout import BUCKETS, group_id, stream_sequence
from runnel.core.clock import Clock
from runnel.core.errors import ClusterRefused, GroupInUse, InvalidOption, UnknownGroup
from runnel.core.group_options import GroupOptions
from runnel.core.options import SubscribeOptions
from runnel.core.pattern import check_name, is_pattern
from runnel.core.position import Position, Start, check_start
from runnel.core.record import Record
from runnel.core.statistics import GroupStatistics, MemberStatistics
from runnel.runtime.dead_letter_log import DeadLetterLog

SECOND = 10**9
LEAST_WAIT = 1.0
CONSUMER_NOT_FOUND, CONSUMER_EXISTS = 10014, (10013, 10105, 10148)
FOR_EVER = "2200-01-01T00:00:00Z"

_OF_TOPICS = ("dead_letter", "max_deliver", "backoff")
_NAME, _PATTERN, _OPTIONS, _START = "runnel-group", "runnel-pattern", "runnel-options", "runnel-start"


class ClusterGroupOptions(GroupOptions, frozen=True):
    """The options of a group, as stored with its consumers."""

    def dead_letter_topic(self, group: str) -> str:
        """Where records go that fail for good."""
        return self.dead_letter or f"dead-letters.{group}"


class ClusterGroup:
    """One group, as this process knows it."""

    def __init__(self, js: JetStream, catalog: ClusterCatalog, clock: Clock, name: str, pattern: str) -> None:
        self.js, self._catalog, self._clock, self.name, self.pattern = js, catalog, clock, name, pattern
        self.id = group_id(name, pattern)
        self.options = ClusterGroupOptions()
        self.buckets = range(BUCKETS + 1)
        self.acked = self.redelivered = self.dead_lettered = self.expired = 0  # by members of this process
        self.members: list[Any] = []
        self.tell_requester: Callable[[Record[bytes], str], None] | None = None
        self.dead_letter_log = DeadLetterLog(clock, name)

    def __repr__(self) -> str:
        return f"<ClusterGroup {self.name!r} on {self.pattern!r}>"

    def consumer(self, bucket: int) -> str:
        """The name of the consumer of a bucket."""
        return f"g{self.id}-{bucket}"

    def note_subject(self, sequence: int) -> str:
        """Where it is noted which records of a message are settled."""
        return self.js.subjects.settled(self.id, sequence)

    @property
    def cluster_wait(self) -> float:
        """After how many seconds without a sign of life the cluster gives a message to another member."""
        return max(LEAST_WAIT, self.options.ack_wait)

    # -- consumers ----------------------------------------------------------------------------------------------

    async def info(self, bucket: int) -> dict[str, Any] | None:
        """The cluster's facts about the consumer of a bucket; None: there is none."""
        try:
            return await self.js.api(f"CONSUMER.INFO.{self.js.stream}.{self.consumer(bucket)}")
        except ClusterRefused as error:
            if error.number == CONSUMER_NOT_FOUND:
                return None
            raise

    async def find(self, bucket: int) -> None:
        """Return if the consumer of a bucket is there; a reset makes it again within a moment."""
        for _ in range(50):
            if await self.info(bucket) is not None:
                return
            await asyncio.sleep(0.1)
        raise UnknownGroup(self.name, self.pattern)

    async def join(self, asked: SubscribeOptions) -> None:
        """Find the group, or create it; the given options must agree with its own."""
        check_start(asked.start, self.pattern, is_pattern=is_pattern(self.pattern))
        said = {option: value for option, value in asked.given().items() if option in GroupOptions.__struct_fields__}
        known = await self.info(0)
        if known is None:
            entry = self._catalog.get(self.pattern)
            given = {} if entry is None else entry.options.given()
            of_topic = {option: given[option] for option in _OF_TOPICS if option in given}
            self.options = ClusterGroupOptions(**of_topic | said)
            if self.pattern == check_name(self.options.dead_letter_topic(self.name)):
                raise InvalidOption("dead_letter", self.pattern, f"the group itself reads {self.pattern!r}")
            await self.make(await self._start(asked.start))
            known = await self.info(0)
        await self.learn(known)
        for option, value in said.items():
            if (has := getattr(self.options, option)) != value:
                why = f"group {self.name!r} on {self.pattern!r} has {has!r}; members must agree"
                raise InvalidOption(option, value, why)

    async def learn(self, known: dict[str, Any] | None) -> None:
        """Take the options of a group that is there, and make consumers that are missing."""
        if known is None:
            raise UnknownGroup(self.name, self.pattern)
        about = known["config"].get("metadata") or {}
        self.options = msgspec.json.decode(about.get(_OPTIONS, "{}"), type=ClusterGroupOptions)
        found = await asyncio.gather(*(self.info(bucket) for bucket in self.buckets[1:]))
        if any(one is None for one in found):
            await self.make(msgspec.json.decode(about.get(_START, "{}")))

    async def _start(self, start: Start) -> dict[str, Any]:
        """Where the consumers begin."""
        if start is None or start == "earliest":
            return {"deliver_policy": "all"}
        if isinstance(start, datetime):
            return {"deliver_policy": "by_start_time", "opt_start_time": start.isoformat()}
        if isinstance(start, Position):
            start = start.offset
        if isinstance(start, int):
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, stream_sequence(start))}
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": await self.js.last_sequence() + 1}

    async def make(self, start: dict[str, Any]) -> None:
        """Make the consumers that are not there."""
        await asyncio.gather(*(self._make(bucket, start) for bucket in self.buckets))

    async def _make(self, bucket: int, start: dict[str, Any]) -> None:
        config = {
            "durable_name": self.consumer(bucket),
            "ack_policy": "explicit",
            "ack_wait": int(self.cluster_wait * SECOND),
            "max_deliver": -1,
            "max_ack_pending": 1 if bucket else self.options.max_ack_pending,
            "filter_subjects": [self.js.subjects.records(bucket, self.pattern)],
            "max_waiting": 4096,
            "metadata": {
                _NAME: self.name,
                _PATTERN: self.pattern,
                _OPTIONS: msgspec.json.encode(self.options).decode(),
                _START: msgspec.json.encode(start).decode(),
            },
            **start,
        }
        try:
            await self.js.create_consumer(self.consumer(bucket), config, "create")
        except ClusterRefused as error:
            if error.number not in CONSUMER_EXISTS:
                raise

    # -- administration -----------------------------------------------------------------------------------------

    async def known(self) -> dict[str, Any]:
        """The cluster's facts about its first consumer, or `UnknownGroup`."""
        found = await self.info(0)
        if found is None:
            raise UnknownGroup(self.name, self.pattern)
        return found

    async def pause(self, *, paused: bool) -> None:
        """Pause or continue delivery."""
        await self.known()
        said = {"pause_until": FOR_EVER} if paused else {}
        subject = f"CONSUMER.PAUSE.{self.js.stream}"
        await asyncio.gather(*(self.js.api(f"{subject}.{self.consumer(bucket)}", said) for bucket in self.buckets))

    async def reset(self, start: Start) -> None:
        """Continue from `start`, regardless of what was settled: the consumers are made again."""
        check_start(start, self.pattern, is_pattern=is_pattern(self.pattern))
        await self.learn(await self.known())
        begin = await self._start(start)
        await self._delete()
        await self.js.purge(f"{self.js.subjects.prefix}.g.{self.id}.>")  # earlier settlements no longer count
        for member in self.members:
            member.forget()
        await self.make(begin)

    async def forget(self) -> None:
        """Delete a group that has no members."""
        await self.known()
        found = await asyncio.gather(*(self.info(bucket) for bucket in self.buckets))
        waiting = max((one["num_waiting"] for one in found if one is not None), default=0)
        if self.members or waiting:
            raise GroupInUse(self.name, self.pattern, max(len(self.members), waiting))
        await self._delete()
        await self.js.purge(f"{self.js.subjects.prefix}.g.{self.id}.>")

    async def _delete(self) -> None:
        async def delete(bucket: int) -> None:
            try:
                await self.js.api(f"CONSUMER.DELETE.{self.js.stream}.{self.consumer(bucket)}")
            except ClusterRefused as error:
                if error.number != CONSUMER_NOT_FOUND:
                    raise

        await asyncio.gather(*map(delete, self.buckets))

    async def statistics(self) -> GroupStatistics:
        """Its progress, and the members of this process."""
        await self.known()
        return await self.shown([one for one in await asyncio.gather(*map(self.info, self.buckets)) if one is not None])

    async def shown(self, consumers: list[dict[str, Any]]) -> GroupStatistics:
        """The same, of what the cluster says of the consumers."""
        counted = await asyncio.gather(*map(self._counted, consumers))
        oldest = [at for at in await asyncio.gather(*map(self._oldest, consumers)) if at is not None]
        return statistics_of(
            self,
            consumers,
            sum(waiting for waiting, _ in counted),
            sum(in_flight for _, in_flight in counted),
            max(0.0, self._clock.time() - min(oldest) / SECOND) if oldest else 0.0,
        )

    async def _oldest(self, consumer: dict[str, Any]) -> int | None:
        """When the first unsettled message of a consumer was stored, in nanoseconds; None: all are settled."""
        if not consumer.get("num_pending") and not consumer.get("num_ack_pending"):
            return None
        (filter,) = consumer["config"]["filter_subjects"]
        found = await self.js.next(filter, consumer["ack_floor"]["stream_seq"] + 1)
        return None if found is None else found.nanoseconds

    async def _counted(self, consumer: dict[str, Any]) -> tuple[int, int]:
        """The same, of one consumer."""
        filters, delivered = consumer["config"]["filter_subjects"], consumer["delivered"]["stream_seq"]
        waiting, held = consumer.get("num_pending", 0), consumer.get("num_ack_pending", 0)
        if waiting:
            waiting = (await count_records(self.js, filters, delivered + 1)).records
        if held:
            between = await count_records(self.js, filters, consumer["ack_floor"]["stream_seq"] + 1, delivered)
            if between.messages > held:  # some of them are acked: the others have as many records on average
                held = max(held, round(held * between.records / between.messages))
            else:
                held = between.records
        return waiting, held


def statistics_of(
    group: ClusterGroup,
    consumers: list[dict[str, Any]],
    waiting: int = 0,
    in_flight: int = 0,
    oldest: float = 0.0,
) -> GroupStatistics:
    """A group as its consumers, with the records counted in them, and the members of this process show it."""
    members = tuple(
        MemberStatistics(one.label, one.held_records, one.prefetch, one.granted, one.acked, one.last_ack)
        for one in group.members
    )
    return GroupStatistics(
        group.name,
        group.pattern,
        waiting + in_flight,
        in_flight,
        0,
        oldest,
        group.acked,
        group.redelivered,
        group.dead_lettered,
        group.expired,
        0,
        any(one.get("paused") for one in consumers),
        members,
    )


def named(consumer: dict[str, Any]) -> tuple[str, str] | None:
    """The name and pattern of the group that a consumer belongs to; None: it is no group's."""
    about = consumer["config"].get("metadata") or {}
    return (about[_NAME], about[_PATTERN]) if _NAME in about and _PATTERN in about else None
