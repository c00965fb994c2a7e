"""Work that takes from one topic and gives to two others, in transactions: once each, whenever it is killed.

Payers take what is in `payments`; for each they publish to `paid` and to `book`, count up a mark of their own,
and ack, all in one transaction. Now and then one of them changes its mind in the middle, which must leave nothing.
Above: kill_worker (a life has payers), killing, kill_judge.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from runnel import Delivery
from runnel.core.errors import LeaseEnded

if TYPE_CHECKING:
    from tests.crash.kill_judge import Found, Told
    from tests.crash.kill_worker import Life

PAY, PAID, BOOK = "payments", "paid", "book"
PAYERS = "payers"


class ChangedMind(Exception):
    """A payer leaves the block of its transaction."""


def derived(id: str, topic: str) -> str:
    """What becomes of a record of `payments` in one of the other topics."""
    return f"{id.replace('/', '.')}>{topic}"


class Payer:
    """A member of the group that pays."""

    def __init__(self, life: Life, who: str) -> None:
        self.life, self.who = life, f"{life.number}.{who}"
        self._done = 0  # transactions; also the value of its mark

    async def work(self, ready: asyncio.Event) -> None:
        """Pay, one or several at a time, until the broker closes."""
        async with self.life.broker.subscribe(PAY, group=PAYERS, name=self.who, prefetch=8) as deliveries:
            ready.set()
            async for batch in deliveries.batches(max_records=3):
                for delivery in (several := list(batch)):
                    self.life.lease(PAYERS, self.who, delivery)
                try:
                    await self.pay(several, changes_mind=self.life.rng.random() < 0.1)
                except LeaseEnded:
                    pass  # the broker is closing

    async def pay(self, deliveries: Sequence[Delivery[bytes]], *, changes_mind: bool = False) -> None:
        """One transaction."""
        from tests.crash.kill_worker import Letter  # which imports this module

        life, number = self.life, self._done + 1
        made = []
        try:
            async with life.broker.transaction() as tx:
                for delivery in deliveries:
                    for topic in (PAID, BOOK):
                        letter = Letter(derived(Letter.id_of(delivery.value), topic))
                        life.history.intend(topic, letter.id, publisher=f"{self.who}.{number}")
                        noted = tx.publish(topic, letter.value, key=letter.key, headers=letter.headers)
                        made.append((topic, letter.id, noted))
                    tx.ack(delivery)
                tx.mark(self.who, number, expected=self._done or None)
                if changes_mind:
                    raise ChangedMind
        except ChangedMind:
            for delivery in deliveries:
                life.history.nacked(PAYERS, self.who, delivery.topic, delivery.epoch, delivery.offset)
                delivery.nack(0)
            return
        self._done = number
        for topic, id, noted in made:
            position = noted.position
            life.history.acknowledged(topic, id, position.epoch, position.offset)
            life.report.note("paid", who=self.who, topic=topic, epoch=position.epoch, offset=position.offset, text=id)
        for delivery in deliveries:
            life.settled("accepted", PAYERS, delivery)
            life.history.acked(PAYERS, self.who, delivery.topic, delivery.epoch, delivery.offset)
        life.report.note("counted", who=self.who, offset=number)


def committed(found: Found) -> set[str]:
    """The ids of all that was paid. Whoever was killed after its commit had no time to tell."""
    return {id for (topic, _, _), id in found.held.items() if topic == PAID}


def judge(told: Told, found: Found) -> Iterator[str]:
    """What was taken from `payments` is in both of the others, once, and what was told to be there is."""
    from tests.crash.kill_worker import Note

    there: Mapping[str, Counter[str]] = {topic: Counter() for topic in (PAY, PAID, BOOK)}
    for (topic, _, _), id in found.held.items():
        if topic in there:
            there[topic][id] += 1
    for id in there[PAY]:
        for topic in (PAID, BOOK):
            if (times := there[topic][derived(id, topic)]) != 1:
                yield f"{id} of {PAY} is {times} times in {topic}"
    for topic in (PAID, BOOK):
        known = {derived(id, topic) for id in there[PAY]}
        for id in there[topic].keys() - known - {f"end.{topic}"}:
            yield f"{id} in {topic} comes from nowhere"
    counts: dict[str, int] = {}
    for life, said in told.lines:
        if isinstance(said, Note) and said.what == "paid":
            if (one := found.held.get((said.topic, said.epoch, said.offset))) != said.text:
                yield f"life {life}: {said.text} was committed at {said.topic} {said.offset}, and {one} is there"
        elif isinstance(said, Note) and said.what == "counted":
            counts[said.who] = said.offset
    for who, count in counts.items():
        if found.marks.get(who) not in (count, count + 1):  # the last one may not have come to telling it
            yield f"{who} counted up to {count}, and its mark is {found.marks.get(who)}"
