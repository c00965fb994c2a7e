"""One topic, three groups, three speeds: each group sees every order, and inside a group they are shared.

- `audit` has one quick member that takes whole batches.
- `billing` has two members; a charge takes a moment.
- `parcels` has one slow member. It lags, and publishers do not wait for it: its lag is what it still has to do.

When all orders are published, the lag of each is printed. Then a second pair of hands joins the slow group, and leaves
again when the work is done.

Prints::

    after 60 orders:
      audit    1 member   lag   0
      billing  2 members  lag ...
      parcels  1 member   lag ...
    parcels is furthest behind: True
    a second packer joins
    when all is done:
      audit    acked 60 by reader
      billing  acked 60 by cashier-1, cashier-2
      parcels  acked 60 by packer-1, packer-2
"""

import asyncio

import runnel

ORDERS = 60


async def audit(broker: runnel.Broker) -> None:
    async with broker.subscribe("orders", group="audit", name="reader") as deliveries:
        async for batch in deliveries.batches():
            await batch.ack()  # one call for all of them


async def work(broker: runnel.Broker, group: str, name: str, seconds: float) -> None:
    async with broker.subscribe("orders", group=group, name=name, prefetch=1) as deliveries:
        async for delivery in deliveries:
            async with delivery:
                await asyncio.sleep(seconds)


def lags(broker: runnel.Broker) -> dict[str, int]:
    return {group.name: group.lag for group in broker.statistics().groups}


async def main() -> None:
    async with asyncio.TaskGroup() as tasks, runnel.open() as broker:
        tasks.create_task(audit(broker))
        tasks.create_task(work(broker, "billing", "cashier-1", 0.004))
        tasks.create_task(work(broker, "billing", "cashier-2", 0.004))
        tasks.create_task(work(broker, "parcels", "packer-1", 0.02))
        await asyncio.sleep(0)  # let them join

        for number in range(ORDERS):
            await broker.publish("orders", f"order {number}")
            await asyncio.sleep(0)
        while lags(broker)["audit"] or lags(broker)["billing"] >= lags(broker)["parcels"]:  # noqa: ASYNC110  # nor is a lead
            await asyncio.sleep(0.001)

        print(f"after {ORDERS} orders:")
        for group in broker.statistics().groups:
            members = f"{len(group.members)} member{'s' * (len(group.members) > 1)}"
            print(f"  {group.name:<8} {members:<10} lag {group.lag:>3}")
        print("parcels is furthest behind:", max(lags(broker), key=lags(broker).__getitem__) == "parcels")

        print("a second packer joins")
        tasks.create_task(work(broker, "parcels", "packer-2", 0.02))
        while any(lags(broker).values()):  # noqa: ASYNC110  # an empty queue is not an event
            await asyncio.sleep(0.01)

        print("when all is done:")
        for group in broker.statistics().groups:
            busy = sorted(member.name for member in group.members if member.acked)
            print(f"  {group.name:<8} acked {group.acked} by {', '.join(busy)}")


if __name__ == "__main__":
    asyncio.run(main())
