"""Typed topics: values of a type, checked at the door, each subscriber with its own."""

from typing import Any

import msgspec
import pytest

import runnel
from runnel import Broker
from tests.contract.afar import on_every_socket
from tests.contract.reading import read, rest, values


class Item(msgspec.Struct):
    sku: str
    count: int = 1


class Order(msgspec.Struct):
    id: int
    items: list[Item] = []


@on_every_socket
@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_values_come_back_as_their_type(broker: Broker, encoding: str) -> None:
    orders = broker.topic("orders", Order, encoding=encoding)
    async with orders.subscribe() as subscription:
        await orders.publish(Order(1, [Item("a", 2)]), key="1")
        orders.publish_nowait(Order(2))
        await orders.publish_many([Order(3), Order(4)])
        records = await read(subscription, 4)
    assert [record.value for record in records] == [Order(1, [Item("a", 2)]), Order(2), Order(3), Order(4)]
    assert records[0].key == b"1"


async def test_a_subscription_may_name_the_type_itself(broker: Broker) -> None:
    await broker.topic("orders", Order).publish(Order(1))
    async with broker.subscribe("orders", type=Order, start="earliest") as subscription:
        assert await values(subscription, 1) == [Order(1)]
    async with broker.subscribe("orders", start="earliest") as raw:
        assert await values(raw, 1) == [b'{"id":1,"items":[]}']


async def test_a_pattern_may_be_typed(broker: Broker) -> None:
    async with broker.subscribe("orders.*", type=Order) as subscription:
        await broker.topic("orders.eu", Order).publish(Order(1))
        await broker.topic("orders.us", Order).publish(Order(2))
        assert await values(subscription, 2) == [Order(1), Order(2)]


async def test_a_subscriber_that_changes_its_value_affects_no_other(broker: Broker) -> None:
    orders = broker.topic("orders", Order)
    async with orders.subscribe() as one, orders.subscribe() as two, orders.subscribe() as three:
        order = Order(1, [Item("a")])
        await orders.publish(order)
        order.items.append(Item("late"))
        mine = (await anext(one)).value
        mine.items[0].sku = "changed"
        mine.items.clear()
        batch = await anext(two.batches())
        batch.values[0].id = 99
        assert await values(three, 1) == [Order(1, [Item("a")])]


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"id": "one"}, "id"),
        ({"items": []}, "id"),
        ({"id": 1, "items": [{"sku": "a"}, {"sku": 7}]}, "items[1].sku"),
        ("text", "the value"),
    ],
)
async def test_a_wrong_value_is_refused_at_the_listener_with_its_field(broker: Broker, value: Any, field: str) -> None:
    orders = broker.topic("orders", Order)
    for publish in (orders.publish(value), orders.publish_many([value])):
        with pytest.raises(runnel.ValidationFailed) as caught:
            await publish
        assert caught.value.field == field
    with pytest.raises(runnel.ValidationFailed) as caught:
        orders.publish_nowait(value)
    assert caught.value.field == field
    assert (await orders.publish(Order(1))).offset == 0


async def test_a_typed_topic_checks_those_who_did_not_name_its_type(broker: Broker) -> None:
    orders = broker.topic("orders", Order)
    await orders.declare()
    raw = broker.topic("orders")
    for publish in (
        broker.publish("orders", b'{"id": "one"}'),
        raw.publish(b"nonsense"),
        raw.publish_many([b'{"id": 1}', b"{}"]),
    ):
        with pytest.raises(runnel.ValidationFailed, match="takes Order"):
            await publish
    async with orders.subscribe() as subscription:
        await broker.publish("orders", b'{"id": 5}')
        raw.publish_nowait('{"id": 6}')
        await raw.publish_many([b'{"id": 7}'])
        assert await values(subscription, 3) == [Order(5), Order(6), Order(7)]


@pytest.mark.near("publish_nowait hands over; of which type a topic is, the server knows")
async def test_what_does_not_fit_cannot_even_be_handed_over(broker: Broker) -> None:
    await broker.topic("orders", Order).declare()
    with pytest.raises(runnel.ValidationFailed, match="takes Order"):
        broker.topic("orders").publish_nowait(b"nonsense")


async def test_a_type_may_only_gain_fields_with_defaults(broker: Broker) -> None:
    await broker.topic("orders", Order).declare()
    wider = msgspec.defstruct("Order", [("id", int), ("items", list[Item], []), ("note", str, "")])
    await broker.topic("orders", wider).declare()
    for broken in (int, msgspec.defstruct("Order", [("id", int)])):
        with pytest.raises(runnel.SchemaConflict, match="only gain fields"):
            await broker.topic("orders", broken).declare()
    with pytest.raises(runnel.SchemaConflict):
        await broker.topic("orders", Order).publish(Order(1))  # its field was taken away again


async def test_a_type_that_cannot_be_encoded_is_refused(broker: Broker) -> None:
    with pytest.raises(runnel.InvalidOption, match="msgspec cannot encode it"):
        broker.topic("orders", 5)  # type: ignore[arg-type]
    with pytest.raises(runnel.InvalidOption, match="'json' or 'msgpack'"):
        broker.topic("orders", Order, encoding="xml")


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "block", "disconnect"])
async def test_records_that_cannot_be_decoded_are_reported_as_a_gap_and_reading_continues(
    broker: Broker, policy: str
) -> None:
    async with broker.subscribe("orders", type=Order, policy=policy) as subscription:
        for value in (b'{"id":1}', b"broken", b'"\xff"', b'{"id":2}', b"broken again"):
            await broker.publish("orders", value)
        records = await read(subscription, 2)
        await broker.publish("orders", b'{"id":3}')
        records += await read(subscription, 1)
        (now,) = broker.statistics().subscriptions
    assert [record.value for record in records] == [Order(1), Order(2), Order(3)]
    gaps = [record.gap and (record.gap.first, record.gap.end, record.gap.count) for record in records]
    assert gaps == [None, (1, 3, 2), (4, 5, 1)]
    assert records[1].gap is not None
    assert "not a Order" in records[1].gap.reason
    assert (now.delivered, now.dropped) == (3, 3)


@pytest.mark.parametrize("by", ["record", "batch"])
async def test_what_cannot_be_decoded_ends_a_strict_subscription(broker: Broker, by: str) -> None:
    async with broker.subscribe("orders", type=Order, strict=True, name="exact") as subscription:

        async def item() -> object:
            return (await read(subscription, 1)) if by == "record" else await anext(subscription.batches())

        await broker.publish("orders", b'{"id":1}')
        await item()
        await broker.publish("orders", b"broken")
        with pytest.raises(runnel.RecordsMissed, match="'exact': missed 1 record") as caught:
            await item()
        assert (caught.value.gap.first, caught.value.gap.end, caught.value.gap.count) == (1, 2, 1)
        with pytest.raises(runnel.RecordsMissed):
            await item()
        assert broker.statistics().subscriptions == ()
    async with broker.subscribe("orders", name="exact") as again:
        assert [record.value for record in await read(again, 1)] == [b"broken"]


async def test_records_that_cannot_be_decoded_are_reported_with_the_next_batch(broker: Broker) -> None:
    async with broker.subscribe("orders", type=Order) as subscription:
        batches = subscription.batches()
        await broker.publish("orders", b"broken")
        await broker.publish("orders", b'{"id":1}')
        batch = await anext(batches)
        assert (len(batch), batch.gap and batch.gap.count, batch[0].gap) == (1, 1, None)
        await broker.publish("orders", b'{"id":2}')
        await broker.publish("orders", b"broken")
        batch = await anext(batches)
        assert batch.values == (Order(2),)
        await broker.publish("orders", b'{"id":3}')
        batch = await anext(batches)
        assert batch.gap is not None
        assert (batch.gap.first, batch.gap.end, batch.gap.count) == (3, 4, 1)


async def test_a_batch_of_a_typed_topic_has_typed_values(broker: Broker) -> None:
    orders = broker.topic("orders", Order)
    async with orders.subscribe() as subscription:
        await orders.publish_many([Order(1), Order(2)])
        broker.close()
        (batch,) = await rest(subscription.batches())
    assert batch.values == (Order(1), Order(2))
