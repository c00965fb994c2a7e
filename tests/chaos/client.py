"""A process of a storm: it publishes, reads and works through connections that are lost all the time, and tells of it.

What it tells goes through a pipe, as in `tests.crash.kill_worker`: nothing that was told is taken back by a kill.
Commands come on stdin: "stop" (publish no more; what is under way is finished), "finish" (members leave).
Above: storm, which starts it, and judges what all of them told together.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import runnel
from runnel import Broker, Delivery
from runnel.core.errors import (
    AlreadySettled,
    BrokerClosed,
    ConnectionLost,
    InvalidOption,
    LeaseEnded,
    NameInUse,
    OutcomeUnknown,
)
from tests.chaos.words import (
    BILLING,
    BOOK,
    COVERED,
    DEAD,
    GROUPS,
    NAMES,
    OPTIONS,
    PAID,
    PATTERN,
    PAY,
    PAYERS,
    PUBLISHED,
    derived,
    last_of,
)
from tests.crash.kill_worker import Letter, Report

GONE = (LeaseEnded, AlreadySettled, ConnectionLost, OutcomeUnknown)  # the record comes again, to somebody
PACE = 0.004  # seconds between two steps of a publisher, on average


class Client:
    """Everybody in this process, on one connection."""

    def __init__(self, broker: Broker, report: Report, who: str, rng: random.Random) -> None:
        self.broker, self.report, self.who, self.rng = broker, report, who, rng
        self.history = report.history
        self.stopping = asyncio.Event()
        self.since = time.monotonic()  # not after the present connection was made
        self._ready: list[asyncio.Event] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._transactions: dict[str, int] = {}

    def begin(self, doing: Coroutine[Any, Any, None], what: str) -> None:
        """Have something done; what it raises is told."""

        async def guarded() -> None:
            try:
                await doing
            except BrokerClosed:
                pass
            except Exception:
                self.report.note("failed", who=what, text=traceback.format_exc())

        self.tasks.append(asyncio.create_task(guarded(), name=what))

    async def watch(self) -> None:
        """Tell how the connection does."""
        async for state in self.broker.connection.changes():
            if state == "reconnecting":
                self.since = time.monotonic()
            self.report.note(state, who=self.who)

    # -- publishers ---------------------------------------------------------------------------------------------

    async def publisher(self, number: str) -> None:
        """One step after another, each of some kind, until told to stop."""
        rng, who = self.rng, f"{self.who}.{number}"
        steps = ((0.45, self._one), (0.65, self._many), (0.85, self._burst), (1.0, self._transact))
        for turn in range(1_000_000):
            chance = rng.random()
            step = next(step for bound, step in steps if chance < bound)
            await step(who, rng.choice(PUBLISHED), f"{who}.{turn}")
            await asyncio.sleep(2 * PACE * rng.random())
            if self.stopping.is_set():
                return

    def _letter(self, who: str, topic: str, id: str) -> Letter:
        self.history.intend(topic, id, publisher=who)
        return Letter(id)

    async def _one(self, who: str, topic: str, id: str) -> None:
        letter = self._letter(who, topic, id)
        handle = self.broker.topic(topic, **OPTIONS.get(topic, {}))
        position = await handle.publish(letter.value, key=letter.key, headers=letter.headers)
        self.history.acknowledged(topic, id, position.epoch, position.offset)

    async def _many(self, who: str, topic: str, id: str) -> None:
        count = self.rng.randrange(2, 30)
        letters = [self._letter(who, topic, f"{id}-{number}/{count}") for number in range(count)]
        handle = self.broker.topic(topic, **OPTIONS.get(topic, {}))
        values, keys = [one.value for one in letters], [one.key for one in letters]
        first, _ = await handle.publish_many(values, keys=keys)
        for place, letter in enumerate(letters, first.offset):
            self.history.acknowledged(topic, letter.id, first.epoch, place)

    async def _burst(self, who: str, topic: str, id: str) -> None:
        """Many that nobody waits for, then one that is awaited: all before it are stored when it is."""
        handle = self.broker.topic(topic, **OPTIONS.get(topic, {}))
        ids = [f"{id}.{number}" for number in range(self.rng.randrange(1, 40))]
        for one in ids:
            letter = self._letter(who, topic, one)
            handle.publish_nowait(letter.value, letter.key, letter.headers)
            if self.rng.random() < 0.1:
                await asyncio.sleep(0)  # the next one goes in another frame
        await self._one(who, topic, f"{id}.last")
        for one in ids:
            self.report.note("stored", who=who, topic=topic, text=one)

    async def _transact(self, who: str, topic: str, id: str) -> None:
        """All or nothing, and once: tried again under its mark until its fate is known."""
        number = self._transactions.get(who, 0) + 1
        topics = [topic, *(other for other in PUBLISHED if other != topic and self.rng.random() < 0.5)]
        letters = [(one, self._letter(who, one, f"{id}.tx{len(topics)}")) for one in topics]
        for attempt in range(1_000):
            try:
                async with self.broker.transaction() as tx:
                    made = [
                        tx.publish(one, letter.value, key=letter.key, headers=letter.headers) for one, letter in letters
                    ]
                    tx.mark(who, number, expected=number - 1 or None)
            except OutcomeUnknown:
                self.report.note("unknown", who=who, offset=attempt)
                continue
            break
        self._transactions[who] = number
        for (one, letter), publication in zip(letters, made, strict=True):
            if tx.applied:
                position = publication.position
                self.history.acknowledged(one, letter.id, position.epoch, position.offset)
            else:
                self.report.note("stored", who=who, topic=one, text=letter.id)

    # -- subscribers --------------------------------------------------------------------------------------------

    async def name(self, name: str) -> None:
        """A durable subscription: all of it, in order, each once in the life of this process."""
        pattern, topics = NAMES[name]
        while True:
            try:
                async with self.broker.subscribe(pattern, name=name) as records:
                    for topic in topics:
                        self.history.resumed(name, topic)
                    await self._read(name, records, topics)
                    return
            except NameInUse:  # by the process before this one: the server has not noticed yet
                await asyncio.sleep(0.1)

    async def plain(self, pattern: str, start: str) -> None:
        """A subscription without a name."""
        who, topics = f"{self.who}.{start}.{pattern}", COVERED if pattern == PATTERN else (pattern,)
        async with self.broker.subscribe(pattern, start=start) as records:
            for topic in topics:
                self.history.subscribed(who, topic, 0 if start == "earliest" else None)
            await self._read(who, records, topics)

    async def _read(self, who: str, records: Any, topics: tuple[str, ...]) -> None:
        missing = {last_of(topic) for topic in topics}
        if self.rng.random() < 0.5:
            async for batch in records.batches(max_records=50):
                for record in batch.records:
                    self.report.saw(who, record)
                    missing.discard(Letter.id_of(record.value))
                if not missing:
                    return
                await self._dawdle()
        async for record in records:
            self.report.saw(who, record)
            missing.discard(Letter.id_of(record.value))
            if not missing:
                return
            await self._dawdle()

    async def _dawdle(self) -> None:
        """Be slow now and then: what came meanwhile lies here when the connection is lost."""
        if self.rng.random() < 0.03:
            await asyncio.sleep(0.1 * self.rng.random())

    # -- groups -------------------------------------------------------------------------------------------------

    async def member(self, group: str, number: str, *, batches: bool = False) -> None:
        """A member that acks, durably or not, gives back, and rejects now and then."""
        name, (pattern, _) = f"{self.who}.{number}", GROUPS[group]
        options: dict[str, Any] = {"dead_letter": DEAD} if group == BILLING else {}
        while True:
            with suppress(NameInUse, InvalidOption):
                async with self.broker.subscribe(pattern, group=group, name=name, prefetch=16, **options) as deliveries:
                    if batches:
                        async for batch in deliveries.batches(max_records=8):
                            await self._settle_batch(group, name, batch)
                    else:
                        async for delivery in deliveries:
                            self._lease(group, name, delivery)
                            with suppress(*GONE):
                                await self._settle(group, name, delivery)
                    return
            await asyncio.sleep(0.1)

    def _lease(self, group: str, name: str, delivery: Delivery[bytes]) -> None:
        # A member cannot know when its connection was lost, so it cannot say until when it held a lease: in the place
        # of that stands since when it had its connection at least.
        id = self.report.check(name, delivery)
        place = (delivery.topic, delivery.epoch, delivery.offset)
        self.history.leased(group, name, *place, id, delivery.attempt, until=self.since)

    async def _settle(self, group: str, name: str, delivery: Delivery[bytes]) -> None:
        place = (group, name, delivery.topic, delivery.epoch, delivery.offset)
        chance = self.rng.random()
        if chance < 0.1:
            await asyncio.sleep(0.01 * self.rng.random())
        if chance < 0.05:
            self.history.nacked(*place)
            await delivery.nack(0)
        elif group == BILLING and chance < 0.08:
            await delivery.reject("unlucky")
        elif chance < 0.4:
            await delivery.ack(durable=True)
            self.history.acked(*place)
        else:
            await delivery.ack()

    async def _settle_batch(self, group: str, name: str, batch: Any) -> None:
        deliveries: list[Delivery[bytes]] = list(batch)
        for delivery in deliveries:
            self._lease(group, name, delivery)
        durable = self.rng.random() < 0.5
        with suppress(*GONE):
            await batch.ack(durable=durable)
            for delivery in deliveries if durable else ():
                self.history.acked(group, name, delivery.topic, delivery.epoch, delivery.offset)

    async def payer(self, number: str) -> None:
        """Takes from one topic and gives to two others, in transactions that ack: once each, whatever is lost."""
        name = f"{self.who}.{number}"
        while True:
            with suppress(NameInUse, InvalidOption):
                async with self.broker.subscribe(PAY, group=PAYERS, name=name, prefetch=16) as deliveries:
                    async for batch in deliveries.batches(max_records=4):
                        await self._pay(name, list(batch))
                    return
            await asyncio.sleep(0.1)

    async def _pay(self, name: str, deliveries: list[Delivery[bytes]]) -> None:
        made = []
        for delivery in deliveries:
            self._lease(PAYERS, name, delivery)
        try:
            async with self.broker.transaction() as tx:
                for delivery in deliveries:
                    for topic in (PAID, BOOK):
                        # Whoever tries it again publishes it again under the same id: one publisher for each.
                        id = derived(Letter.id_of(delivery.value), topic)
                        letter = self._letter(f"payer of {id}", topic, id)
                        made.append(
                            (topic, id, tx.publish(topic, letter.value, key=letter.key, headers=letter.headers))
                        )
                    tx.ack(delivery)
        except GONE:
            return
        for topic, id, publication in made:
            position = publication.position
            self.history.acknowledged(topic, id, position.epoch, position.offset)
        for delivery in deliveries:
            self.history.acked(PAYERS, name, delivery.topic, delivery.epoch, delivery.offset)


def _doing(client: Client, role: str) -> Coroutine[Any, Any, None]:
    kind, *rest = role.split(":")
    match kind:
        case "publisher":
            return client.publisher(*rest)
        case "name":
            return client.name(*rest)
        case "plain":
            return client.plain(rest[0], "earliest")
        case "late":
            return client.plain(rest[0], "latest")
        case "payer":
            return client.payer(*rest)
        case _:
            return client.member(*rest, batches=kind == "batches")


async def live(url: str, who: str, roles: list[str], seed: int, report: Report) -> None:
    """Work until told to finish, or until everything is read."""
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with runnel.open(url, timeout=None, wait=60, name=who) as broker:
        client = Client(broker, report, who, random.Random(seed))
        watching = asyncio.create_task(client.watch())
        for role in roles:
            client.begin(_doing(client, role), f"{who}.{role}")
        report.note("ready", who=who)
        waiting = asyncio.create_task(commands.readline())
        working = asyncio.gather(*client.tasks)
        while not working.done():
            await asyncio.wait((waiting, working), return_when=asyncio.FIRST_COMPLETED)
            if waiting.done() and waiting.result() == b"stop\n":
                client.stopping.set()
                waiting = asyncio.create_task(commands.readline())
            elif waiting.done():
                break  # finish: the broker closes, and with it whoever still works
        waiting.cancel()
    await working
    watching.cancel()
    report.note("ended", who=who)


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser(description="publish, read and work at a server that is killed all the time")
    parser.add_argument("url")
    parser.add_argument("--who", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("roles", nargs="+")
    given = parser.parse_args()
    report = Report(lambda line: os.write(1, line))
    try:
        asyncio.run(live(given.url, given.who, given.roles, given.seed, report))
    except Exception:
        report.note("failed", who=given.who, text=traceback.format_exc())
        sys.exit(1)


if __name__ == "__main__":
    main()
