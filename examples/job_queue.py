"""A job queue: two workers share the jobs; what fails is tried again, and what keeps failing is put aside.

Each invoice goes to one worker. One address fails once and then works: the retry is enough. Another
fails every time, so after three attempts it is a dead letter, which says what went wrong. Then the bug
is fixed and the dead letters are replayed: put back where they came from, each once.

Prints::

    sent invoice 1 to ada
    grace failed: mailbox busy
    linus failed: no such address: linus@
    sent invoice 4 to barbara
    grace, attempt 2: sent invoice 2 to grace
    linus failed: no such address: linus@
    linus failed: no such address: linus@
    dead letter: invoice 3, 3 attempts, ValueError: no such address: linus@
    the bug is fixed; replayed 1
    sent invoice 3 to linus
    acked 4, redelivered 3, dead-lettered 1, still waiting 0
"""

import asyncio

import msgspec

import runnel


class Invoice(msgspec.Struct):
    number: int
    customer: str


class Post:
    """Stands for the outside world, which fails now and then."""

    def __init__(self) -> None:
        self.addresses = {"ada": "ada@home", "grace": "grace@navy", "linus": "linus@", "barbara": "barbara@mit"}
        self.busy = {"grace"}

    async def send(self, invoice: Invoice) -> None:
        await asyncio.sleep(0)
        if invoice.customer in self.busy:
            self.busy.remove(invoice.customer)
            raise OSError("mailbox busy")
        if self.addresses[invoice.customer].endswith("@"):
            raise ValueError(f"no such address: {self.addresses[invoice.customer]}")


async def work(broker: runnel.Broker, post: Post) -> None:
    # A prefetch of 1: a worker holds the job in hand and no other, so none waits behind a slow one.
    jobs = broker.subscribe(
        "invoices", group="mailers", type=Invoice, prefetch=1, max_deliver=3, backoff=(0.05, 0.1), jitter=0
    )
    async with jobs as deliveries:
        async for delivery in deliveries:
            invoice = delivery.value
            try:
                async with delivery:  # acks when the block is done, nacks when it raises
                    await post.send(invoice)
            except (OSError, ValueError) as error:
                print(f"{invoice.customer} failed: {error}")
            else:
                again = f"{invoice.customer}, attempt {delivery.attempt}: " if delivery.attempt > 1 else ""
                print(f"{again}sent invoice {invoice.number} to {invoice.customer}")


async def settled(broker: runnel.Broker) -> runnel.Statistics:
    """The statistics, once nothing waits any more."""
    while (now := broker.statistics()).groups[0].lag:  # noqa: ASYNC110  # an empty queue is not an event
        await asyncio.sleep(0.01)
    return now


async def main() -> None:
    post = Post()
    async with asyncio.TaskGroup() as tasks, runnel.open() as broker:
        for _ in range(2):
            tasks.create_task(work(broker, post))
        await asyncio.sleep(0)  # let both join; a group sees what is published from then on

        invoices = broker.topic("invoices", Invoice)
        for number, customer in enumerate(post.addresses, 1):
            await invoices.publish(Invoice(number, customer))
        await settled(broker)

        async with broker.subscribe("dead-letters.mailers", start="earliest", type=Invoice) as letters:
            letter = await anext(letters)
            attempts, reason = (letter.headers[f"runnel-dead-letter-{fact}"] for fact in ("attempts", "reason"))
            print(f"dead letter: invoice {letter.value.number}, {attempts} attempts, {reason}")

        post.addresses["linus"] = "linus@helsinki"
        print("the bug is fixed; replayed", await broker.replay("dead-letters.mailers"))
        group = (await settled(broker)).groups[0]
        print(
            f"acked {group.acked}, redelivered {group.redelivered}, dead-lettered {group.dead_lettered}, "
            f"still waiting {group.lag}"
        )


if __name__ == "__main__":
    asyncio.run(main())
