"""A tour of the event bus, in a page that a person reads: `python examples/tour.py`, or with `--quick`.

Every line of code on the page stands in this file and runs right before its outcome is
printed; the figures at the end are measured. No line is longer than 80 columns.

Prints::

    runnel: an event bus in this process. A topic is a log, a subscriber is a
    cursor on it.
    <BLANKLINE>
    1. Publish once, everybody reads
         async with broker.subscribe("chat") as ada, ...:
             await broker.publish("chat", "hello")
       ... ada    reads offset 0: hello
       ... grace  reads offset 0: hello
    ...
    9. How fast, on this machine, just now (1 publisher, 10 subscribers)
    ...
      docs/guarantees.md                what holds, and what does not
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

import runnel
from runnel import Broker, Full, GroupSubscription, NoResponders, Subscription, ValidationFailed

SUBSCRIBERS = 10
VALUES = 100_000
CHUNK = 1_000  # values after which the publisher lets the readers run
BUFFER = 65_536

Publish = Callable[[Broker, str, list[bytes]], Awaitable[None]]
Read = Callable[[Subscription[bytes], int], Coroutine[Any, Any, None]]

BOLD, CYAN, DIM, PLAIN = "\x1b[1m", "\x1b[36m", "\x1b[2m", "\x1b[0m"


def tour(pause: float, colour: bool) -> int:
    """Show the bus, with `pause` seconds after each thing that happens; the exit code."""
    try:
        with _drops_on_purpose():
            asyncio.run(_tour(Page(pause, colour)))
    except KeyboardInterrupt:  # seen enough
        return 130
    return 0


class Page:
    """The paper: titles, code, what happened, and remarks."""

    def __init__(self, pause: float, colour: bool) -> None:
        self._pause, self._colour, self._titles = pause, colour, 0
        self._arrow = "→" if _can_print("→") else "->"

    def title(self, text: str) -> None:
        """The next thing to see."""
        self._titles += 1
        self._print("", "")
        self._print(BOLD, f"{self._titles}. {text}")

    def code(self, *lines: str) -> None:
        """What is about to run."""
        for line in lines:
            self._print(CYAN, f"     {line}")

    async def happened(self, text: str) -> None:
        """What it did."""
        self._print("", f"   {self._arrow} {text}")
        await asyncio.sleep(self._pause)

    async def remark(self, *lines: str) -> None:
        """Why that matters; a little longer to read."""
        for line in lines:
            self._print(DIM, f"   {line}")
        await asyncio.sleep(2 * self._pause)

    def plain(self, *lines: str) -> None:
        """Text as it is."""
        for line in lines:
            self._print("", line)

    def _print(self, style: str, text: str) -> None:
        print(f"{style}{text}{PLAIN}" if self._colour and style else text, flush=True)


async def _tour(page: Page) -> None:
    page.plain("runnel: an event bus in this process. A topic is a log, a subscriber is a", "cursor on it.")
    for stop in (_broadcast, _pattern, _drops, _block, _jobs, _types, _request, _folder, _speed):
        async with runnel.open() as broker:
            await stop(page, broker)
    page.plain(
        "",
        "Where to go next, in the repository",
        "  README.md                         a first program, and when not to use runnel",
        "  docs/tutorial/first-steps.md      a program grown in five steps",
        "  docs/tutorial/keep-it.md          and then kept in a folder",
        "  examples/                         small programs, each runs as it stands",
        "  docs/guarantees.md                what holds, and what does not",
    )


async def _broadcast(page: Page, broker: Broker) -> None:
    page.title("Publish once, everybody reads")
    page.code('async with broker.subscribe("chat") as ada, ...:', '    await broker.publish("chat", "hello")')
    async with broker.subscribe("chat") as ada, broker.subscribe("chat") as grace:
        await broker.publish("chat", "hello")
        for name, subscription in (("ada", ada), ("grace", grace)):
            record = await anext(subscription)
            await page.happened(f"{name:<6} reads offset {record.offset}: {record.value.decode()}")
    page.code('broker.subscribe("chat", start="earliest")')
    async with broker.subscribe("chat", start="earliest") as late:
        record = await anext(late)
        await page.happened(f"{'linus':<6} came late, reads offset {record.offset}: {record.value.decode()}")
    await page.remark("Three positions on one log. Nothing was copied into three queues.")


async def _pattern(page: Page, broker: Broker) -> None:
    page.title("One subscription, many topics")
    page.code('broker.subscribe("sensors.*.temperature")')
    async with broker.subscribe("sensors.*.temperature") as readings:
        for topic, value in (
            ("sensors.cellar.temperature", "11"),
            ("sensors.cellar.humidity", "80"),
            ("sensors.attic.temperature", "24"),
        ):
            await broker.publish(topic, value)
        for _ in range(2):
            record = await anext(readings)
            await page.happened(f"{record.topic} = {record.value.decode()}")
    await page.remark("Both topics were made after the subscription; they joined it.")


async def _drops(page: Page, broker: Broker) -> None:
    page.title("A slow subscriber loses its own records, and gets a gap that says which")
    page.code('broker.subscribe("ticks", policy="drop_oldest", buffer=3)')
    async with broker.subscribe("ticks", policy="drop_oldest", buffer=3) as ticks:
        for number in range(10):
            await broker.publish("ticks", f"tick {number}")
        await page.happened("published 10 while it slept; now it reads:")
        for _ in range(3):
            record = await anext(ticks)
            if record.gap is not None:
                await page.happened(
                    f"gap: offsets {record.gap.first} to {record.gap.end - 1}, {record.gap.count} records"
                )
            await page.happened(f"offset {record.offset}: {record.value.decode()}")
        (counted,) = broker.statistics().subscriptions
    await page.remark(f"statistics(): delivered {counted.delivered}, dropped {counted.dropped}. Nothing goes untold.")


async def _block(page: Page, broker: Broker) -> None:
    page.title("Or it loses nothing, and publishers wait for it")
    page.code('broker.subscribe("jobs", policy="block", buffer=2)')
    async with broker.subscribe("jobs", policy="block", buffer=2) as jobs:
        topic = broker.topic("jobs")
        await topic.publish("job 0")
        await topic.publish("job 1")
        try:
            topic.publish_nowait("job 2")
        except Full as error:
            await page.happened(f"publish_nowait of a third: {error.code} (it may not wait)")
        waiting = asyncio.create_task(topic.publish("job 2"))
        await asyncio.sleep(0)
        await page.happened(f"await publish of a third: {'done' if waiting.done() else 'waits'}")
        await anext(jobs)
        await anext(jobs)  # asking for the next says that the first is done with
        position = await waiting
        await page.happened(f"one is done with: published at offset {position.offset}")
    await page.remark("Two more: drop_newest, and disconnect after so many drops in a row.")


async def _jobs(page: Page, broker: Broker) -> None:
    page.title("Workers share a topic: a job queue")
    page.code(
        'jobs = broker.subscribe("jobs", group="workers", max_deliver=2, ...)',
        "async for delivery in jobs:",
        "    async with delivery:    # acks; nacks if the block raises",
        "        work(delivery.value)",
    )
    async with (
        broker.subscribe("jobs", group="workers", max_deliver=2, backoff=[0], prefetch=1, name="ada") as ada,
        broker.subscribe("jobs", group="workers", max_deliver=2, backoff=[0], prefetch=1, name="grace") as grace,
    ):
        await broker.topic("jobs").publish_many(["paint", "divide by zero", "sweep"])
        doing = [asyncio.create_task(_do_jobs(page, *worker)) for worker in (("ada", ada), ("grace", grace))]
        async with broker.subscribe("dead-letters.workers", start="earliest") as letters:
            letter = await anext(letters)
        told = letter.headers
        attempts, reason = told["runnel-dead-letter-attempts"], told["runnel-dead-letter-reason"]
        await page.happened(f"a dead letter: {letter.value.decode()}, {attempts} attempts, {reason}")
    await asyncio.gather(*doing)
    await page.remark("Each job goes to one worker. A worker that leaves gives back what it held.")


async def _do_jobs(page: Page, worker: str, jobs: GroupSubscription[bytes]) -> None:
    async for delivery in jobs:
        job = delivery.value.decode()
        try:
            async with delivery:
                if job == "divide by zero":
                    raise ZeroDivisionError(f"{worker} cannot")
        except ZeroDivisionError as error:
            await page.happened(f"{worker:<6} failed, attempt {delivery.attempt}: {error}")
        else:
            await page.happened(f"{worker:<6} did: {job}")


class Order(msgspec.Struct):
    """What the typed topic of the tour carries."""

    id: int
    amount: float


async def _types(page: Page, broker: Broker) -> None:
    page.title("A topic with a type refuses what does not fit")
    page.code('orders = broker.topic("orders", Order)', 'await orders.publish(Order(id=1, amount="a lot"))')
    orders = broker.topic("orders", Order)
    async with orders.subscribe() as incoming:
        try:
            await orders.publish(Order(id=1, amount="a lot"))  # type: ignore[arg-type]  # the point of it
        except ValidationFailed as error:
            await page.happened(f"{error.code} at {error.field}: {error.why}")
        await orders.publish(Order(id=1, amount=9.5))
        await page.happened(f"the subscriber gets {(await anext(incoming)).value}")


async def _request(page: Page, broker: Broker) -> None:
    page.title("Ask, and get an answer")
    page.code('reply = await broker.request("square", "12")')
    try:
        await broker.request("square", "12")
    except NoResponders as error:
        await page.happened(f"no one is subscribed: {error.code}, at once")

    async def answer(questions: Subscription[bytes]) -> None:
        async for question in questions:
            await broker.reply(question, str(int(question.value) ** 2))

    async with broker.subscribe("square") as questions:
        responder = asyncio.create_task(answer(questions))
        reply = await broker.request("square", "12")
        await page.happened(f"with a responder: {reply.value.decode()}")
    await responder


async def _folder(page: Page, _: Broker) -> None:
    page.title("The same bus in a folder survives its process")
    page.code('async with runnel.open("data/") as broker:', '    await broker.publish("mails", "to ada")')
    with tempfile.TemporaryDirectory(prefix="runnel-tour-") as place:
        data = Path(place) / "data"
        async with runnel.open(data) as broker:
            for value in ("to ada", "to grace"):
                position = await broker.publish("mails", value)
            await page.happened(f"published up to offset {position.offset}, and on disk when publish returned")
            async with broker.subscribe("mails", group="senders", prefetch=1) as mails:
                await (await anext(mails)).ack()
                held = await anext(mails)
                await page.happened(f"acked 1; closed with {held.value.decode()!r} still in hand")
                broker.close()
        page.code('async with runnel.open("data/") as broker:    # another day')
        async with runnel.open(data) as broker, broker.subscribe("mails", group="senders") as mails:
            async with await anext(mails) as delivery:
                await page.happened(f"the group goes on with {delivery.value.decode()!r}, offset {delivery.offset}")
    await page.remark("Records, names and groups are there again: also after a kill or a power cut.")


async def _speed(page: Page, broker: Broker) -> None:
    page.title(f"How fast, on this machine, just now (1 publisher, {SUBSCRIBERS} subscribers)")
    random = os.urandom(100 * VALUES)
    values = [random[at : at + 100] for at in range(0, len(random), 100)]
    for how, publish, read in (
        ("publish_nowait, read by batch", _one_by_one, _by_batch),
        ("publish_nowait, read by record", _one_by_one, _by_record),
        ("publish_many, read by batch", _in_lists, _by_batch),
    ):
        took = await _timed(broker, how, values, publish, read)
        each = took / (VALUES * SUBSCRIBERS)
        rates = f"{VALUES / took / 1e6:5.2f} M publishes/s, {each * 1e9:6.1f} ns a delivery"
        await page.happened(f"{how:<30}  {rates}")
    await page.remark(
        f"{VALUES:,} random values of 100 B, and every subscriber got all of them.",
        "One run, in memory, nothing else measured: make bench compares with care.",
    )


async def _timed(broker: Broker, how: str, values: list[bytes], publish: Publish, read: Read) -> float:
    """Seconds until every subscriber has every value; `strict`, so that a drop would end the tour with an error."""
    topic = f"speed.{how.replace(', ', '.').replace(' ', '_')}"
    async with AsyncExitStack() as stack:
        readers = []
        for _ in range(SUBSCRIBERS):
            subscription = await stack.enter_async_context(broker.subscribe(topic, buffer=BUFFER, strict=True))
            readers.append(asyncio.create_task(read(subscription, len(values))))
        await asyncio.sleep(0)
        began = perf_counter()
        await publish(broker, topic, values)
        await asyncio.gather(*readers)
        return perf_counter() - began


async def _one_by_one(broker: Broker, name: str, values: list[bytes]) -> None:
    publish_nowait = broker.topic(name).publish_nowait
    for at in range(0, len(values), CHUNK):
        for value in values[at : at + CHUNK]:
            publish_nowait(value)
        await asyncio.sleep(0)


async def _in_lists(broker: Broker, name: str, values: list[bytes]) -> None:
    topic = broker.topic(name)
    for at in range(0, len(values), CHUNK):
        await topic.publish_many(values[at : at + CHUNK])
        await asyncio.sleep(0)


async def _by_batch(subscription: Subscription[bytes], count: int) -> None:
    async for batch in subscription.batches():
        count -= len(batch.values)
        if count <= 0:
            return


async def _by_record(subscription: Subscription[bytes], count: int) -> None:
    async for record in subscription:
        if record.value:
            count -= 1
        if count <= 0:
            return


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def _drops_on_purpose() -> Iterator[None]:
    """The tour makes a subscriber drop; the warning that a program deserves would only confuse here."""
    log = logging.getLogger("runnel")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def main() -> int:
    """The tour with pauses for reading, and colour, on a terminal."""
    watched = sys.stdout.isatty()
    pause = 0.4 if watched and "--quick" not in sys.argv[1:] else 0.0
    return tour(pause, colour=watched and not os.environ.get("NO_COLOR"))


if __name__ == "__main__":
    sys.exit(main())
