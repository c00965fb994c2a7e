"""The process that is killed: it publishes and consumes under load, and tells every step before and after it.

What it tells goes through a pipe, a line for each step, written with `os.write`: a kill takes nothing back that was
told. Lines that begin with `[` are events of a history, those that begin with `{` are notes. Whatever the broker may
have made durable was told before: an intent before a publish, "settled" in the same breath as the ack.
Above: killing, which starts it, kills it and starts it again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any
from zlib import crc32

import msgspec

import runnel
from runnel import Broker, Delivery
from runnel.core.errors import BrokerClosed, LeaseEnded, RunnelError, TopicDeleted
from runnel.core.record import Record
from runnel.testing import History
from tests.crash.transforming import BOOK, PAID, PAY, PAYERS, Payer
from tests.patience import PATIENCE

JOBS, ORDERS, USERS, CHURN = "jobs", "t.orders", "t.users", "t.churn"
CACHE = "m.cache"  # durable=False: gone with the process
DEAD = "graveyard"  # the dead letters of the billing group; no pattern here covers it
DURABLE = (JOBS, ORDERS, USERS, CHURN, PAY)
FOR_EVER = (JOBS, ORDERS, USERS, PAY)  # durable and never deleted
TRANSFORMED = (PAID, BOOK)  # durable, and published to in transactions only
OPTIONS: dict[str, dict[str, Any]] = {CACHE: {"durable": False}, USERS: {"compression": "zstd"}}

NAMES = {"keeper": ORDERS, "mirror": "*.*"}  # durable subscriptions, and what they read
MIRRORED = (ORDERS, USERS, CHURN, CACHE)
BILLING, AUDIT = "billing", "audit"  # groups: on one topic, and on a pattern
GROUPS = {  # what each reads, and the topics of that
    BILLING: (JOBS, (JOBS,)),
    AUDIT: ("t.*", (ORDERS, USERS, CHURN)),
    PAYERS: (PAY, (PAY,)),
}
ATTEMPTS = 4  # of billing, before a record is a dead letter


class Letter:
    """A value, with its key and headers, all of which follow from its id: what was torn or mixed up is seen."""

    def __init__(self, id: str) -> None:
        self.id = id
        mixed = crc32(id.encode())
        self.value = id.encode() + b" " + (id.encode() * 40)[: mixed % 400]
        self.key = None if mixed % 3 == 0 else b"k%d" % (mixed % 11)
        self.headers = {"id": id} if mixed % 5 == 0 and "/" not in id else None

    @staticmethod
    def id_of(value: bytes) -> str:
        return value.split(b" ", 1)[0].decode(errors="replace")

    def differs(self, record: Record[bytes] | Delivery[bytes]) -> str:
        """What is wrong with `record`, which says that it is this one; "" when nothing is."""
        headers = {"id": record.headers["id"]} if "id" in record.headers else None
        if record.value == self.value and record.key == self.key and headers == self.headers:
            return ""
        return f"{record.value!r} with {record.key!r} and {headers} is not what was published as {self.id}"


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a history has no word for."""

    what: str
    at: float
    who: str = ""
    topic: str = ""
    epoch: int = 0
    offset: int = -1
    text: str = ""


class Report:
    """Tells what happens, a line at a time."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.history = History(clock=time.monotonic, write=write)
        self._write = write

    def note(self, what: str, **facts: Any) -> None:
        self._write(msgspec.json.encode(Note(what, time.monotonic(), **facts)) + b"\n")

    def check(self, who: str, record: Record[bytes] | Delivery[bytes]) -> str:
        """The id of a record, which must be what was published under that id."""
        letter = Letter(Letter.id_of(record.value))
        if wrong := letter.differs(record):
            self.note("corrupt", who=who, topic=record.topic, epoch=record.epoch, offset=record.offset, text=wrong)
        return letter.id

    def saw(self, who: str, record: Record[bytes]) -> None:
        """A plain or named subscriber has a record in hand."""
        id, gap = self.check(who, record), record.gap
        if gap is not None:
            self.note("gap", who=who, topic=gap.topic, offset=gap.first, text=str(gap))
            if "deleted" not in gap.reason:  # a deletion that was not durable yet may be undone by a kill
                self.history.saw(who, msgspec.structs.replace(record, value=id.encode()))
                return
        self.history.delivered(who, record.topic, record.epoch, record.offset, id, record.sequence)


class Life:
    """One life of a broker: everybody who works with it."""

    def __init__(self, broker: Broker, report: Report, number: str, rng: random.Random) -> None:
        self.broker, self.report, self.number, self.rng = broker, report, number, rng
        self.history = report.history
        self.tasks: list[asyncio.Task[None]] = []
        self._waiting: list[asyncio.Event] = []

    # -- beginning and end --------------------------------------------------------------------------------------

    def begin(self, doing: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
        """Have something done until the broker closes; what it raises besides is told."""
        ready = asyncio.Event()
        self._waiting.append(ready)

        async def guarded() -> None:
            try:
                await doing(ready)
            except BrokerClosed:
                pass
            except Exception:
                self.report.note("failed", text=traceback.format_exc())
            finally:
                ready.set()

        self.tasks.append(asyncio.create_task(guarded()))

    async def ready(self) -> None:
        """Return when everybody has begun."""
        for one in self._waiting:
            await one.wait()

    # -- publishers ---------------------------------------------------------------------------------------------

    async def publish(self, who: str, topic: str, id: str) -> None:
        letter = Letter(id)
        self.history.intend(topic, id, publisher=who)
        handle = self.broker.topic(topic, **OPTIONS.get(topic, {}))
        try:
            position = await handle.publish(letter.value, key=letter.key, headers=letter.headers)
        except (TopicDeleted, BrokerClosed):
            self.history.unknown(topic, id)
            return
        self.history.acknowledged(topic, id, position.epoch, position.offset)

    async def publish_many(self, who: str, topic: str, id: str) -> None:
        count = self.rng.randrange(2, 9)
        letters = [Letter(f"{id}-{number}/{count}") for number in range(count)]
        for letter in letters:
            self.history.intend(topic, letter.id, publisher=who)
        handle = self.broker.topic(topic, **OPTIONS.get(topic, {}))
        try:
            first, _ = await handle.publish_many(
                [letter.value for letter in letters], keys=[letter.key for letter in letters]
            )
        except (TopicDeleted, BrokerClosed):
            return
        for place, letter in enumerate(letters, first.offset):
            self.history.acknowledged(topic, letter.id, first.epoch, place)

    def publish_nowait(self, who: str, topic: str, id: str) -> None:
        letter = Letter(id)
        self.history.intend(topic, id, publisher=who)
        handle = self.broker.topic(topic, **OPTIONS.get(topic, {}))
        try:
            handle.publish_nowait(letter.value, letter.key, letter.headers)
        except (runnel.Full, BrokerClosed):
            self.history.failed(topic, id)

    async def publisher(self, who: str, ready: asyncio.Event) -> None:
        """One value after another, each awaited."""
        who = f"{self.number}.{who}"
        for number in range(1_000_000):
            topic = self.rng.choice((JOBS, JOBS, ORDERS, USERS, CACHE, PAY))
            id, chance = f"{who}.{number}", self.rng.random()
            if chance < 0.25:
                await self.publish_many(who, topic, id)
            elif chance < 0.35:
                self.publish_nowait(who, topic, id)
            else:
                await self.publish(who, topic, id)
            ready.set()
            await asyncio.sleep(0)

    async def churn(self, ready: asyncio.Event) -> None:
        """A topic that is made, filled and deleted, over and over, sometimes while somebody publishes to it."""
        who = f"{self.number}.churn"
        for number in range(1_000_000):
            await self.broker.topic(CHURN).declare()
            self.history.intend(CHURN, id := f"{who}.{number}", publisher=who)
            letter = Letter(id)
            position = await self.broker.publish(CHURN, letter.value, key=letter.key, headers=letter.headers)
            self.history.acknowledged(CHURN, id, position.epoch, position.offset)
            ready.set()
            for more in range(self.rng.randrange(6)):
                await self.publish_many(who, CHURN, f"{id}.{more}")
            if self.rng.random() < 0.3:
                racing = [self.publish(f"{id}.r{n}", CHURN, f"{id}.r{n}") for n in range(3)]
                self.report.note("deleting", topic=CHURN, epoch=position.epoch)
                await asyncio.gather(self.broker.delete(CHURN), *racing)
                # What was racing may have made the topic again, as another epoch.
                self.report.note("deleted", topic=CHURN, epoch=position.epoch)
            elif self.rng.random() < 0.3:
                self.report.note("deleting", topic=CHURN, epoch=position.epoch)
                await self.broker.delete(CHURN)
                self.report.note("deleted", topic=CHURN, epoch=position.epoch)
                await asyncio.sleep(0.03 * self.rng.random())  # for a while there is none

    # -- subscribers --------------------------------------------------------------------------------------------

    async def named(self, name: str, ready: asyncio.Event) -> None:
        """A durable subscription goes on where it was."""
        pattern = NAMES[name]
        async with self.broker.subscribe(pattern, name=name) as records:
            for topic in MIRRORED if name == "mirror" else (pattern,):
                self.history.resumed(name, topic)
            ready.set()
            async for record in records:
                self.report.saw(name, record)
                await self._dawdle()

    async def _dawdle(self) -> None:
        """Keep an item in hand for a while now and then: more of its kind lie behind it, and commits go on."""
        if self.rng.random() < 0.4:
            await asyncio.sleep(0 if self.rng.random() < 0.8 else 0.002 * self.rng.random())

    async def plain(self, who: str, topic: str, start: int, ready: asyncio.Event) -> None:
        """A subscription from an offset on."""
        who = f"{self.number}.{who}"
        async with self.broker.subscribe(topic, start=start) as records:
            self.history.subscribed(who, topic, start)
            ready.set()
            async for record in records:
                self.report.saw(who, record)

    async def cached(self, ready: asyncio.Event) -> None:
        """A reader of what lives in memory only."""
        who = f"{self.number}.cached"
        async with self.broker.subscribe(CACHE, start="latest") as records:
            self.history.subscribed(who, CACHE)
            ready.set()
            async for record in records:
                self.report.saw(who, record)

    # -- groups -------------------------------------------------------------------------------------------------

    async def member(self, group: str, who: str, ready: asyncio.Event) -> None:
        """A member of a group that does what members do."""
        name = f"{self.number}.{who}"
        options: dict[str, Any] = {"dead_letter": DEAD, "max_deliver": ATTEMPTS} if group == BILLING else {}
        async with self.broker.subscribe(GROUPS[group][0], group=group, name=name, prefetch=8, **options) as deliveries:
            ready.set()
            if who.endswith("batches"):
                async for batch in deliveries.batches(max_records=5):
                    await self._settle_batch(group, name, list(batch), batch)
            else:
                async for delivery in deliveries:
                    self.lease(group, name, delivery)
                    try:
                        await self._settle(group, name, delivery)
                    except LeaseEnded:
                        pass  # the broker is closing, or the topic was deleted

    def lease(self, group: str, name: str, delivery: Delivery[bytes]) -> None:
        id = self.report.check(name, delivery)
        self.history.leased(group, name, delivery.topic, delivery.epoch, delivery.offset, id, delivery.attempt)

    def settled(self, how: str, group: str, delivery: Delivery[bytes]) -> None:
        """Told in one breath with the settling: nothing can be made durable in between."""
        self.report.note(how, who=group, topic=delivery.topic, epoch=delivery.epoch, offset=delivery.offset)

    async def _settle(self, group: str, name: str, delivery: Delivery[bytes]) -> None:
        place = (group, name, delivery.topic, delivery.epoch, delivery.offset)
        chance = self.rng.random()
        if chance < 0.1:
            await asyncio.sleep(0)
        if group == BILLING and chance < 0.12:
            if delivery.attempt == ATTEMPTS:
                settling = delivery.nack(0)
                self.settled("rejected", group, delivery)
            else:
                self.history.nacked(*place)
                settling = delivery.nack(0)
            await settling
        elif group == BILLING and chance < 0.16:
            settling = delivery.reject("unlucky")
            self.settled("rejected", group, delivery)
            await settling
        elif chance < 0.4:
            settling = delivery.ack(durable=True)
            self.settled("accepted", group, delivery)
            await settling
            self.history.acked(*place)
        else:
            settling = delivery.ack()
            self.settled("accepted", group, delivery)
            await settling

    def drain(self, group: str, name: str, delivery: Delivery[bytes]) -> None:
        """Ack, and nothing else."""
        self.lease(group, name, delivery)
        delivery.ack()
        self.settled("accepted", group, delivery)

    async def _settle_batch(self, group: str, name: str, batch: list[Delivery[bytes]], whole: Any) -> None:
        for delivery in batch:
            self.lease(group, name, delivery)
        durable = self.rng.random() < 0.3
        try:
            settling = whole.ack(durable=durable)
        except LeaseEnded:
            return
        for delivery in batch:
            self.settled("accepted", group, delivery)
        await settling
        for delivery in batch if durable else ():
            self.history.acked(group, name, delivery.topic, delivery.epoch, delivery.offset)


# -- the process --------------------------------------------------------------------------------------------------


async def live(folder: str, number: str, seed: int, start: int, options: dict[str, Any], report: Report) -> None:
    """Open the folder and work until told to close."""
    closing = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, closing.set)
    report.note("opening")
    async with runnel.open(folder, **options) as broker:
        report.note("opened")
        life = Life(broker, report, number, random.Random(seed))
        for topic in (*FOR_EVER, *TRANSFORMED):
            await broker.topic(topic, **OPTIONS.get(topic, {})).declare()
        for name in NAMES:
            life.begin(lambda ready, name=name: life.named(name, ready))  # type: ignore[misc]
        life.begin(lambda ready: life.plain("late", JOBS, start, ready))
        life.begin(lambda ready: life.cached(ready))
        for who in ("m1", "m2", "m3.batches"):
            life.begin(lambda ready, who=who: life.member(BILLING, who, ready))  # type: ignore[misc]
        for who in ("a1", "a2.batches"):
            life.begin(lambda ready, who=who: life.member(AUDIT, who, ready))  # type: ignore[misc]
        for who in ("y1", "y2"):
            life.begin(Payer(life, who).work)
        await life.ready()
        for who in ("p1", "p2", "p3"):
            life.begin(lambda ready, who=who: life.publisher(who, ready))  # type: ignore[misc]
        life.begin(life.churn)
        await life.ready()
        report.note("ready")
        await closing.wait()
        asyncio.get_running_loop().remove_reader(0)
        report.note("closing")
    report.note("closed")
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*life.tasks)
    except TimeoutError:
        report.note("failed", text="a task went on though the broker is closed")
    report.note("ended")


def main() -> None:
    parser = argparse.ArgumentParser(description="live until killed")
    parser.add_argument("folder")
    parser.add_argument("--life", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--start", type=int, default=0, help="the offset of 'jobs' that a plain subscriber begins at")
    parser.add_argument("--options", default="{}", help="of the folder, as JSON")
    given = parser.parse_args()
    report = Report(lambda line: os.write(1, line))
    options = msgspec.json.decode(given.options)
    try:
        asyncio.run(live(given.folder, given.life, given.seed, given.start, options, report))
    except (RunnelError, OSError):
        report.note("failed", text=traceback.format_exc())
        sys.exit(1)


if __name__ == "__main__":
    main()
