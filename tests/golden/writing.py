"""Writes the golden folders: small data folders with every feature of the format. Only `record.py` uses it.

A folder is written with a clock that stands still unless it is moved, and with segments of 4 KiB, so that a few
records make several segments. A folder of a killed writer is a copy of the folder while the broker has it open.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import msgspec

import runnel
from runnel.testing import JumpingClock
from tests.golden.reading import Asked

START = 1_700_000_000.0
SMALL: dict[str, Any] = {"segment_bytes": 4096, "share": False, "min_free": 0, "scrub_interval": 0}
OF_THE_PROCESS = ("LOCK", "READERS", "socket", "socket.path")
PATIENCE = 30.0  # seconds that the recorder waits for the cleaner

Writer = Callable[[Path], Coroutine[None, None, Asked]]


class Item(msgspec.Struct):
    name: str
    count: Annotated[int, msgspec.Meta(ge=1)] = 1


class Order(msgspec.Struct):
    id: int
    items: list[Item] = []


def copy_of(folder: Path, to: Path) -> None:
    """What is on disk now, without the files that belong to the process which has the folder open."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns(*OF_THE_PROCESS))


async def write_plain(to: Path) -> Asked:
    """Keys, headers, ids, producers, names, trim, retention and a deleted topic; closed."""
    clock, folder = JumpingClock(START), to.with_name("open")
    async with runnel.open(folder, clock=clock, **SMALL) as broker:
        orders = broker.topic("orders.eu")
        await orders.publish("tea", key="ada", headers={"shop": "eu", "traceparent": _TRACE})
        await orders.publish(b"\xff\x00 not text", key=b"\xfe", headers={})
        await orders.publish("")
        await clock.advance(1.5)
        await orders.publish_many([f"cup {n}" for n in range(5)], keys=["ada", None, "bob", b"", "ada"])
        await orders.publish("soon gone", expires=5)
        await orders.publish("urgent", priority=9, expires=86400, delay=3600)
        for number in range(40):
            await broker.publish("orders.us", f"order {number} " + "x" * 90, headers={"number": str(number)})
            await clock.advance(0.25)
        await broker.publish("orders.us", "pay 5", message_id="request-8c1f")
        await broker.publish("orders.us", "pay 5", message_id="request-8c1f")
        producer = broker.producer("import")
        await producer.publish("lines", "one", sequence=0)
        await producer.publish_many("lines", ["two", "three"], sequence=1)
        await broker.topic("latest", retention_count=3).declare()
        for number in range(7):
            await broker.topic("latest", retention_count=3).publish(f"latest {number}")
        await broker.topic("aging", retention_age=3600.0).publish("old")
        await clock.advance(3000)
        await broker.topic("aging", retention_age=3600.0).publish("young")
        await broker.topic("sized", retention_bytes=100_000, max_deliver=2, backoff=(1.0, 5.0)).declare()
        await broker.topic("sized", retention_bytes=100_000, max_deliver=2, backoff=(1.0, 5.0)).publish("sized")
        await broker.publish("deleted", "gone")
        await broker.delete("deleted")
        await broker.publish("again", "first life")
        await broker.delete("again")
        await broker.publish("again", "second life")
        await broker.topic("orders.us").trim(10)
        await _read(broker, "orders.eu", 3, name="reader")
        await _read(broker, "orders.us", 2, name="holder", hold=True)
        await _read(broker, "orders.*", 4, name="everything")
        position = runnel.Position((await broker.bounds("orders.us"))[0].epoch, 30)
        await broker.place({"placed": ("orders.us", position)}, hold=False)
        await _read(broker, "lines", 1, name="forgotten")
        await broker.forget("forgotten")
        await broker.publish("orders.us", "pay 6", message_id="request-9d20")
    copy_of(folder, to)
    return Asked(
        opened_at=clock.time() + 10,
        producers=["import", "unknown"],
        message_ids=[("orders.us", "request-9d20"), ("orders.us", "request-8c1f")],
        names=[("reader", "orders.eu"), ("holder", "orders.us"), ("everything", "orders.*"), ("placed", "orders.us")],
    )


_TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def _read(broker: runnel.Broker, pattern: str, count: int, **options: Any) -> None:
    """Read some records and ask for the next, so that the place of the name counts all of them."""
    async with broker.subscribe(pattern, start="earliest", **options) as records:
        for _ in range(count + 1):
            await anext(records)


async def write_groups(to: Path) -> Asked:
    """Acks in and out of order, nacks, attempts, delays, dead letters, a group on a pattern; the writer was killed."""
    clock, folder = JumpingClock(START), to.with_name("open")
    async with runnel.open(folder, clock=clock, **SMALL) as broker:
        for number in range(24):
            await broker.publish("jobs.mail", f"mail {number}", key=f"key {number % 3}" if number % 2 else None)
        await broker.publish("jobs.mail", "later", delay=3600)
        await broker.publish("jobs.mail", "much later", delay=6000, key="slow")
        await broker.publish("jobs.print", "page", headers={"paper": "a4"})
        options: dict[str, Any] = {"group": "workers", "max_deliver": 2, "backoff": (60.0, 600.0), "jitter": 0.0}
        async with broker.subscribe("jobs.mail", prefetch=8, ack_wait=30.0, **options) as deliveries:
            for at in range(12):
                delivery = await anext(deliveries)
                match at % 4:
                    case 0 | 1:
                        await delivery.ack()
                    case 2:
                        await delivery.nack(delay=900.0 if at == 2 else None, reason=f"ValueError: number {at}")
                    case _:
                        await delivery.reject("it can never work")
            await clock.advance(61)
            again = [await anext(deliveries) for _ in range(4)]
            for delivery in again:
                await (delivery.nack(reason="still wrong") if delivery.attempt > 1 else delivery.ack(durable=True))
        async with broker.subscribe("jobs.*", group="audit", start="earliest", ack_wait=5.0) as deliveries:
            for at in range(5):
                delivery = await anext(deliveries)
                if at != 1:
                    await delivery.ack(durable=at == 4)
        async with broker.subscribe("jobs.print", group="gone") as deliveries:
            await (await anext(deliveries)).ack(durable=True)
        await broker.forget_group("gone", "jobs.print")
        await broker.publish("jobs.print", "the last one")
        copy_of(folder, to)
    return Asked(opened_at=clock.time() + 10, groups=[("workers", "jobs.mail"), ("audit", "jobs.*")])


async def write_stages(to: Path) -> Asked:
    """Stages: open, dropped, committed small and large; transactions with marks, acks and ids; closed."""
    clock, folder = JumpingClock(START), to.with_name("open")
    async with runnel.open(folder, clock=clock, **SMALL) as broker:
        large = broker.topic("large", compression="zstd")
        await large.declare()
        await broker.topic("small").publish("before")
        small = broker.stage("small", writer="job", batch=1)
        await small.write(["s 0", "s 1"], keys=["a", None], headers=[{"at": "0"}, {}])
        await small.write(["s 2"])
        dropped = broker.stage("small", writer="job", batch=2, part=1, attempt=3)
        await dropped.write(["never seen"])
        await dropped.drop()
        much = broker.stage(large, writer="job", batch=1, part=1)
        for number in range(5):  # above 4 MiB before compression it is committed where it lies
            await much.write([bytes([number]) * (1 << 20)], keys=[f"part {number}"])
        await clock.advance(5)
        async with broker.transaction() as tx:
            tx.publish("small", "beside", key="k", message_id="tx-1")
            tx.commit(small, much)
            tx.mark("job", 1)
            tx.mark("text", "a mark")
            tx.mark("bytes", b"\x00\xff")
            tx.mark("passing", 7)
        async with broker.transaction() as again:
            again.publish("small", "not stored")
            again.mark("job", 1)
        assert not again.applied
        await broker.publish("work", "to be acked")
        async with broker.subscribe("work", group="exact") as deliveries:
            delivery = await anext(deliveries)
            async with broker.transaction() as tx:
                tx.publish_many("done", ["from work", "and more"], headers={"of": "work"})
                tx.ack(delivery)
                tx.mark("job", 2, expected=1)
                tx.mark("passing", None)
        waiting = broker.stage("small", writer="job", batch=3)
        await waiting.write(["not yet", "nor this"], ordinal=0)
        await clock.advance(60)
    copy_of(folder, to)
    return Asked(
        opened_at=clock.time() + 10,
        groups=[("exact", "work")],
        message_ids=[("small", "tx-1")],
        commits=[("job", 3, 0, 0)],
    )


async def write_compressed(to: Path) -> Asked:
    """Compression and types with their schemas; the writer was killed."""
    clock, folder = JumpingClock(START), to.with_name("open")
    async with runnel.open(folder, clock=clock, **SMALL) as broker:
        for name in ("zstd", "lz4"):
            topic = broker.topic(f"packed.{name}", compression=name)
            await topic.publish_many([f"{name} {n} " + "abc" * 40 for n in range(10)], headers={"of": name})
            await topic.publish("x", key="too small to be compressed")
            stage = broker.stage(topic, writer=name, batch=1)
            await stage.write([f"staged {n} " + "def" * 40 for n in range(6)])
            async with broker.transaction() as tx:
                tx.commit(stage)
        orders = broker.topic("typed.json", Order)
        await orders.publish(Order(1, [Item("tea", 2)]), key="ada")
        await orders.publish_many([Order(2), Order(3, [Item("cup")])])
        packed = broker.topic("typed.msgpack", Order, encoding="msgpack", compression="lz4")
        await packed.publish(Order(4, [Item("pot", 1)] * 30))
        await broker.topic("typed.compact", int, compact=True).publish(5, key="apples")
        await broker.topic("typed.compact", int, compact=True).publish(None, key="pears")
        copy_of(folder, to)
    return Asked(opened_at=clock.time() + 10)


async def write_compacted(to: Path) -> Asked:
    """Compaction by key, tombstones, a deleted topic and a committed stage, in cleaned segments; closed."""
    clock, folder = JumpingClock(START), to.with_name("open")
    async with runnel.open(folder, clock=clock, tombstone_age=0, clean_bytes_per_second=1 << 30, **SMALL) as broker:
        prices = broker.topic("prices", compact=True)
        for number in range(30):
            for key in ("a", "b", "c"):
                await prices.publish(f"{number:02} " * 20, key=key)
            await broker.publish("deleted", "d" * 60)
        await prices.publish("no key")
        await prices.publish(None, key="b")
        stage = broker.stage("kept", writer="job", batch=1)
        await stage.write(["staged 0", "staged 1"])
        async with broker.transaction() as tx:
            tx.commit(stage)
        for number in range(10):
            await broker.publish("kept", f"kept {number} " + "k" * 300)
        await broker.delete("deleted")
        async with asyncio.timeout(PATIENCE):
            while not _compacted(broker):  # noqa: ASYNC110 - the cleaner is a thread that tells nobody
                await asyncio.sleep(0.1)
        await prices.publish("31", key="a")
    copy_of(folder, to)
    return Asked(opened_at=clock.time() + 10)


def _compacted(broker: runnel.Broker) -> bool:
    """Whether the cleaner wrote most of what is dead again without it."""
    journal = broker.statistics().journal
    return journal is not None and journal.cleaner is not None and journal.cleaner.given_back > 12_000


async def write_torn(to: Path) -> Asked:
    """A killed writer with `fsync="os"`, and the end of its last entry missing: the torn tail that opening cuts."""
    clock, folder = JumpingClock(START), to.with_name("open")
    async with runnel.open(folder, clock=clock, fsync="os", **SMALL) as broker:
        for number in range(6):
            await broker.publish("torn", f"whole {number}")
        await broker.publish("torn", "the last one " + "t" * 100)
        copy_of(folder, to)
    _tear(to)
    return Asked(opened_at=clock.time() + 10)


def _tear(folder: Path) -> None:
    """Take the last 40 bytes of the last entry away: zeros, as in space that was reserved and never written."""
    tail = max(folder.glob("*.seg"))
    data = tail.read_bytes()
    end = len(data.rstrip(b"\0"))
    tail.write_bytes(data[: end - 40] + bytes(len(data) - end + 40))


async def write_damaged(to: Path) -> Asked:
    """A byte changed in a segment that was sealed long ago: readers are told of a gap."""
    clock, folder = JumpingClock(START), to.with_name("open")
    async with runnel.open(folder, clock=clock, **SMALL) as broker:
        for number in range(30):
            await broker.publish("damaged", f"record {number} " + "r" * 200, key=str(number % 4))
    copy_of(folder, to)
    _damage(to, b"record 3 ")
    return Asked(opened_at=clock.time() + 10)


def _damage(folder: Path, value: bytes) -> None:
    """Change the first byte of a value in the first segment."""
    first = min(folder.glob("*.seg"))
    data = bytearray(first.read_bytes())
    data[data.index(value)] ^= 0xFF
    first.write_bytes(data)


WRITERS: dict[str, Writer] = {
    "plain": write_plain,
    "groups": write_groups,
    "stages": write_stages,
    "compressed": write_compressed,
    "compacted": write_compacted,
    "torn": write_torn,
    "damaged": write_damaged,
}

# Folders that `tests/journal/golden_journals.py` writes below the broker: state that no broker writes, and fixed ids.
JOURNALS: dict[str, Asked] = {
    "version-1": Asked(None),
    "version-1-early": Asked(None),
    "version-1-cleaned": Asked(START + 10, message_ids=[("keyed", "id 11")], commits=[("writer", 6, 0, 0)]),
}
