"""Orders with a type: what does not fit is refused before it is published, with the field named.

A subscriber gets `Order` objects, and each subscriber its own: what one does to an order, no other sees.

Prints::

    refused at items[1].count: Expected `int` >= 1
    refused at customer: Object missing required field `customer`
    order 1 for ada: 3 items
    order 2 for grace: 1 items
"""

import asyncio
import json
from typing import Annotated

import msgspec

import runnel


class Item(msgspec.Struct):
    name: str
    count: Annotated[int, msgspec.Meta(ge=1)]


class Order(msgspec.Struct):
    id: int
    customer: str
    items: list[Item]


async def main() -> None:
    async with runnel.open() as broker:
        orders = broker.topic("orders", Order)
        async with orders.subscribe() as incoming:
            await orders.publish(Order(1, "ada", [Item("tea", 1), Item("cup", 2)]), key="ada")

            try:
                await orders.publish(Order(2, "grace", [Item("tea", 1), Item("cup", 0)]))
            except runnel.ValidationFailed as error:
                print(f"refused at {error.field}: {error.why}")

            try:
                await orders.publish(json.loads('{"id": 2, "items": []}'))  # plain data is checked the same way
            except runnel.ValidationFailed as error:
                print(f"refused at {error.field}: {error.why}")

            await orders.publish(Order(2, "grace", [Item("tea", 1)]), key="grace")

            async for record in incoming:
                order = record.value
                print(f"order {order.id} for {order.customer}: {sum(item.count for item in order.items)} items")
                if order.id == 2:
                    break


if __name__ == "__main__":
    asyncio.run(main())
