"""Functions instead of loops: the broker calls them with records, and stops them in good order.

What a function wants is read off its annotation: an `Order`, the whole `Record`, a `Delivery` to settle by
hand. Middleware stands around all of them: here one that logs, and one with a rule about what is worth
another attempt. When the program is stopped, by SIGTERM or `broker.stop()`, what is in hand is finished.

Prints::

    charge        order 1, 30.00
    ship          order 1 on a thread: True
    charge        order 2, -5.00
    failed        charge, for good: order 2 has no amount
    charge        order 3, 12.50
    failed        charge, attempt 1: the bank is closed
    charge        order 3, 12.50
    ship          order 3 on a thread: True
    asked         how many were charged? 2
    stopping      while order 4 is being charged
    charge        order 4, 8.00
    stopped       charge handled 3, failed 2
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable

import msgspec

import runnel

Next = Callable[[], Awaitable[object]]


class Order(msgspec.Struct):
    id: int
    amount: float


class BankClosed(Exception):
    """It opens again."""


broker = runnel.open()  # functions can be registered before it is entered
paid = broker.topic("orders.paid", Order)
bank_closed_for = {3}
charged: list[int] = []
in_hand, bank_answers = asyncio.Event(), asyncio.Event()


@broker.use
async def tell_failures(message: runnel.Record[Order] | runnel.Delivery[Order], call_next: Next) -> object:
    """The outermost layer: sees what all others let through."""
    try:
        return await call_next()
    except runnel.Reject as error:
        print(f"{'failed':<13} charge, for good: {error}")
        raise
    except BankClosed as error:
        attempt = message.attempt if isinstance(message, runnel.Delivery) else 1
        print(f"{'failed':<13} charge, attempt {attempt}: {error}")
        raise


@broker.use
async def some_errors_are_final(message: object, call_next: Next) -> object:
    """A rule for retries: a wrong order stays wrong, everything else deserves another attempt."""
    try:
        return await call_next()
    except ValueError as error:
        raise runnel.Reject(str(error)) from error


@broker.on("orders.new", group="billing", retries=3, backoff=(0.01,))
async def charge(order: Order) -> None:
    """Acked when it returns, nacked when it raises."""
    in_hand.set()
    await bank_answers.wait()
    print(f"{'charge':<13} order {order.id}, {order.amount:.2f}")
    if order.amount <= 0:
        raise ValueError(f"order {order.id} has no amount")
    if order.id in bank_closed_for:
        bank_closed_for.remove(order.id)
        raise BankClosed("the bank is closed")
    charged.append(order.id)
    await paid.publish(order, key=str(order.id))


@broker.on("orders.paid", group="shipping")
def ship(delivery: runnel.Delivery[Order]) -> None:
    """Not async, so it may block: it runs in a thread."""
    away = threading.current_thread() is not threading.main_thread()
    print(f"{'ship':<13} order {delivery.value.id} on a thread: {away}")


@broker.on("orders.count")
async def count(question: str) -> str:
    """What a function returns answers the record, if a requester waits for an answer."""
    return f"{question} {len(charged)}"


async def settled() -> None:
    """Return when no group has anything left to do."""
    while any(group.lag for group in broker.statistics().groups):  # noqa: ASYNC110  # an empty queue is not an event
        await asyncio.sleep(0.01)


async def main() -> None:
    logging.getLogger("runnel").setLevel(logging.ERROR)  # failures are printed above
    async with broker:
        running = asyncio.create_task(broker.run(deadline=5))
        await broker.ready()
        bank_answers.set()
        orders = broker.topic("orders.new", Order)
        for number, amount in ((1, 30.0), (2, -5.0), (3, 12.5)):
            await orders.publish(Order(number, amount))
            await settled()
        reply = await broker.request("orders.count", "how many were charged?")
        print(f"{'asked':<13} {reply.value.decode()}")

        in_hand.clear()
        bank_answers.clear()  # it takes its time
        await orders.publish(Order(4, 8.0))
        await in_hand.wait()
        print(f"{'stopping':<13} while order 4 is being charged")
        broker.stop()  # what SIGTERM does
        bank_answers.set()
        await running
        billing = broker.statistics().handlers[0]
        print(f"{'stopped':<13} {billing.name} handled {billing.handled}, failed {billing.failed}")


if __name__ == "__main__":
    asyncio.run(main())
