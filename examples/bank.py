"""Money that moves between two topics, and a worker that is killed again and again: the sums are always right.

Orders say: move so much from one account to another. A worker takes an order, and in ONE transaction takes the money
out of `bank.north`, puts it into `bank.south`, and acks the order. The worker is a process of its own, and `kill -9`
takes it at random moments. Whenever it is dead, the books are opened and added up: an order is either in
both of them or in neither, and never twice. A program that did the three steps one after the other would lose money
at one kill and make some at another.

Prints::

    200 orders
    kill 1: ... orders done, north -..., south +...
    kill 2: ... orders done, north -..., south +...
    ...
    all 200 orders done in 6 lives, north -..., south +...: every cent is where it should be
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

import runnel

ORDERS = 200
KILLS = 5


class Order(msgspec.Struct):
    """Move `cents` from an account in the north to one in the south."""

    number: int
    cents: int


class Booking(msgspec.Struct):
    """One line in the books of a bank."""

    order: int
    cents: int  # below 0: money that left


async def work(folder: str) -> None:
    """Carry out orders until none is left. This is what gets killed."""
    async with runnel.open(folder) as broker:
        north, south = broker.topic("bank.north", Booking), broker.topic("bank.south", Booking)
        async with broker.topic("orders", Order).subscribe(group="tellers") as orders:
            while broker.statistics().groups[0].lag:
                delivery = await anext(orders)
                order = delivery.value
                async with broker.transaction() as tx:  # all of it, or nothing
                    tx.publish(north, Booking(order.number, -order.cents))
                    tx.publish(south, Booking(order.number, +order.cents))
                    tx.ack(delivery)
                print(order.number, flush=True)  # tells the parent that something was done


async def place_orders(folder: Path) -> None:
    chance = random.Random(1)
    async with runnel.open(folder) as broker:
        orders = [Order(number, 10 * chance.randint(1, 100)) for number in range(ORDERS)]
        await broker.topic("orders", Order).publish_many(orders)
    print(f"{ORDERS} orders")


async def audit(folder: Path) -> tuple[int, int, int]:
    """Add up both books; how many orders were carried out, and the sums. Raises if a book is wrong."""
    async with runnel.open(folder) as broker:
        books = {name: await read(broker, name) for name in ("bank.north", "bank.south")}
    north, south = books.values()
    assert sorted(line.order for line in north) == sorted(line.order for line in south), "half an order was done"
    assert len({line.order for line in north}) == len(north), "an order was done twice"
    return len(north), sum(line.cents for line in north), sum(line.cents for line in south)


async def read(broker: runnel.Broker, topic: str) -> list[Booking]:
    """All that is in a topic now."""
    known = broker.statistics().topics.get(topic)
    async with broker.topic(topic, Booking).subscribe(start="earliest") as bookings:
        return [(await anext(bookings)).value for _ in range(known.end if known else 0)]


def live(folder: Path, kill_after: int | None) -> None:
    """Start a worker; kill it once it has done some orders, or let it finish."""
    with subprocess.Popen([sys.executable, __file__, str(folder)], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        for done, _ in enumerate(worker.stdout):
            if done == kill_after:
                os.kill(worker.pid, signal.SIGKILL)


def main() -> None:
    chance = random.Random()
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "data"
        asyncio.run(place_orders(folder))
        for kill in range(1, KILLS + 1):
            live(folder, kill_after=chance.randint(0, ORDERS // KILLS - 10))
            done, north, south = asyncio.run(audit(folder))
            assert north + south == 0, "money came or went"
            print(f"kill {kill}: {done} orders done, north {north:+,}, south {south:+,}")
        live(folder, kill_after=None)
        done, north, south = asyncio.run(audit(folder))
        assert (done, north + south) == (ORDERS, 0), "something is missing"
        print(
            f"all {done} orders done in {KILLS + 1} lives, north {north:+,}, south {south:+,}: "
            "every cent is where it should be"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1]))
    else:
        main()
