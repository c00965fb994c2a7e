"""Typed topics of dataclasses, TypedDict, Pydantic models and plain values: written, checked and read back."""

import asyncio
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

import runnel
from runnel import Broker
from tests.contract.afar import on_every_socket
from tests.contract.reading import read, soon, values


@dataclass
class DataItem:
    name: str
    count: int = 1


@dataclass
class DataOrder:
    id: int
    items: list[DataItem] = field(default_factory=list)


class DictItem(TypedDict):
    name: str
    count: int


class DictOrderOfNumber(TypedDict):
    id: int


class DictOrderOfText(TypedDict):
    id: str


class DictOrder(TypedDict):
    id: int
    items: list[DictItem]


class ModelItem(pydantic.BaseModel):
    name: str
    count: int = pydantic.Field(default=1, ge=1)


class ModelOrder(pydantic.BaseModel):
    """An order."""

    id: int
    items: list[ModelItem] = []


@pydantic.dataclasses.dataclass
class CheckedOrder:
    id: int
    items: list[ModelItem] = field(default_factory=list)


KINDS: dict[str, tuple[Any, Any, Any]] = {  # the type, a value of it, and a wrong one
    "dataclass": (DataOrder, DataOrder(1, [DataItem("tea", 2)]), DataOrder(1, [DataItem("tea", "two")])),  # type: ignore[arg-type]
    "typed dict": (DictOrder, {"id": 1, "items": [{"name": "tea", "count": 2}]}, {"id": 1, "items": [{"name": 7}]}),
    "pydantic": (
        ModelOrder,
        ModelOrder(id=1, items=[ModelItem(name="tea", count=2)]),
        ModelOrder.model_construct(id=1, items=[ModelItem.model_construct(name="tea", count="two")]),
    ),
    "pydantic dataclass": (
        CheckedOrder,
        CheckedOrder(1, [ModelItem(name="tea")]),
        {"id": 1, "items": [{"name": "tea", "count": 0}]},
    ),
    "list of models": (list[ModelItem], [ModelItem(name="tea")], [{"name": "tea", "count": -1}]),
}


@on_every_socket
@pytest.mark.parametrize("kind", KINDS)
async def test_a_value_comes_back_as_its_type_in_either_encoding(broker: Broker, kind: str) -> None:
    type_, value, _ = KINDS[kind]
    for encoding in ("json", "msgpack"):
        orders = broker.topic(f"orders-{encoding}", type_, encoding=encoding)
        async with orders.subscribe() as subscription, broker.subscribe(orders.name, type=type_) as other:
            await orders.publish(value, key="1")
            orders.publish_nowait(value)
            await orders.publish_many([value, value])
            assert await values(subscription, 4) == [value] * 4
            found = await read(other, 4)
        assert [type(record.value) for record in found] == [type(value)] * 4


@pytest.mark.parametrize("kind", KINDS)
async def test_a_wrong_value_is_refused_with_its_field(broker: Broker, kind: str) -> None:
    type_, value, wrong = KINDS[kind]
    orders = broker.topic("orders", type_)
    for publish in (orders.publish(wrong), orders.publish_many([value, wrong])):
        with pytest.raises(runnel.ValidationFailed) as caught:
            await publish
        assert caught.value.field.removeprefix("items").removeprefix("[0].") in ("count", "name")
    assert (await orders.publish(value)).offset == 0


@pytest.mark.parametrize("kind", ["dataclass", "typed dict", "pydantic", "pydantic dataclass"])
async def test_publishers_without_the_type_are_checked_by_its_schema(broker: Broker, kind: str) -> None:
    type_, _, _ = KINDS[kind]
    await broker.topic("orders", type_).declare()
    with pytest.raises(runnel.ValidationFailed, match="id"):
        await broker.publish("orders", b'{"id":"one","items":[]}')
    with pytest.raises(runnel.ValidationFailed, match=r"items\[0\].name"):
        await broker.publish("orders", b'{"id":1,"items":[{"name":7,"count":1}]}')
    await broker.publish("orders", b'{"id":1,"items":[{"name":"tea","count":1}]}')


def _grown(kind: str) -> tuple[Any, Any, Any]:
    """A type, the same with one more optional field, and one in which a field is something else."""
    if kind == "dataclass":

        @dataclass
        class Order:
            id: int

        @dataclass
        class OrderWithNote:
            id: int
            note: str = ""

        @dataclass
        class OrderWithText:
            id: str

        return Order, OrderWithNote, OrderWithText
    if kind == "typed dict":

        class DictNote(TypedDict):
            id: int
            note: NotRequired[str]

        return DictOrderOfNumber, DictNote, DictOrderOfText
    return (
        pydantic.create_model("Order", id=(int, pydantic.Field(description="a number"))),
        pydantic.create_model("Order", id=(int, pydantic.Field(title="its number")), note=(str, "")),
        pydantic.create_model("Order", id=(str, ...)),
    )


@pytest.mark.parametrize("kind", ["dataclass", "typed dict", "pydantic"])
async def test_a_type_may_only_gain_optional_fields(broker: Broker, kind: str) -> None:
    first, grown, broken = _grown(kind)
    await broker.topic("orders", first).declare()
    await broker.topic("orders", grown).declare()
    for wrong in (broken, first):
        with pytest.raises(runnel.SchemaConflict, match="only gain fields"):
            await broker.topic("orders", wrong).declare()


async def test_a_type_of_one_library_may_follow_that_of_another(broker: Broker) -> None:
    await broker.topic("orders", msgspec.defstruct("Order", [("id", int), ("note", str, "")])).declare()
    await broker.topic("orders", pydantic.create_model("Order", id=(int, ...), note=(str, ""))).declare()
    with pytest.raises(runnel.SchemaConflict, match="'id'"):
        await broker.topic("orders", pydantic.create_model("Order", id=(float, ...), note=(str, ""))).declare()


PLAIN: list[tuple[Any, Any]] = [
    (int, -7),
    (float, 0.5),
    (bool, True),
    (str, "héllo"),
    (bytes, b"\xff\x00"),
    (dict, {"a": [1, None]}),
    (list, [1, "a"]),
    (list[int], [1, 2]),
    (dict[str, int], {"a": 1}),
    (tuple[int, str], (1, "a")),
    (date, date(2026, 1, 2)),
    (int | None, None),
    (Literal["on", "off"], "on"),
]


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_plain_values_have_types_too(broker: Broker, encoding: str) -> None:
    for number, (type_, value) in enumerate(PLAIN):
        topic = broker.topic(f"plain-{number}", type_, encoding=encoding)
        async with topic.subscribe() as subscription:
            await topic.publish(value)
            assert await values(subscription, 1) == [value]
    with pytest.raises(runnel.ValidationFailed, match=r"\[1\]"):
        await broker.topic("numbers", list[int]).publish([1, "two"])  # type: ignore[list-item]


async def test_a_model_made_without_validation_is_written_as_its_schema_says(broker: Broker) -> None:
    items = broker.topic("items", ModelItem)
    await items.publish(ModelItem.model_construct(name="tea", count="2"))
    await items.publish({"name": "cup"})  # type: ignore[arg-type]
    async with broker.subscribe("items", start="earliest") as raw:
        assert await values(raw, 2) == [b'{"name":"tea","count":2}', b'{"name":"cup"}']


class Event(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    at: datetime
    kind: Literal["start", "stop"] = pydantic.Field(alias="type")
    size: int | None = None

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def is_start(self) -> bool:
        return self.kind == "start"


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_aliases_computed_fields_and_strict_models_come_back(broker: Broker, encoding: str) -> None:
    event = Event(at=datetime(2026, 1, 2, 3, 4), type="start")  # a time without a zone
    events = broker.topic("events", Event, encoding=encoding)
    async with events.subscribe() as subscription:
        await events.publish(event)
        assert await values(subscription, 1) == [event]
    if encoding == "json":
        await broker.publish("events", b'{"at":"2026-01-02T03:04:00","type":"stop"}')
        with pytest.raises(runnel.ValidationFailed, match="type"):
            await broker.publish("events", b'{"at":"2026-01-02T03:04:00","type":"begin"}')


async def test_a_type_that_cannot_come_back_is_refused(broker: Broker) -> None:
    class Login(pydantic.BaseModel):
        password: pydantic.SecretStr

    with pytest.raises(runnel.InvalidOption, match="asterisks"):
        broker.topic("logins", Login)

    class Mixed(msgspec.Struct):
        item: ModelItem

    with pytest.raises(runnel.InvalidOption, match="cannot"):
        broker.topic("mixed", Mixed)


async def test_bytes_of_a_class_of_ones_own_are_bytes(broker: Broker) -> None:
    class Frame(bytes):
        pass

    async with broker.subscribe("frames") as frames:
        await broker.publish("frames", Frame(b"abc"), key=Frame(b"key"))
        (record,) = await read(frames, 1)
    assert (type(record.value), record.value, record.key) == (bytes, b"abc", b"key")


@on_every_socket
async def test_a_handler_names_any_of_these_types(broker: Broker) -> None:
    got: dict[str, Any] = {}
    all_here = asyncio.Event()

    def note(name: str, value: object) -> None:
        got[name] = value
        if len(got) == 5:
            all_here.set()

    @broker.on("orders")
    async def of_model(order: ModelOrder) -> None:
        note("model", order)

    @broker.on("orders")
    async def of_text(text: str) -> None:
        note("json", text)

    @broker.on("names", group="g")
    async def of_name(name: str) -> None:
        note("name", name)

    @broker.on("numbers")
    async def of_number(number: runnel.Record[int]) -> None:
        note("number", number.value)

    @broker.on("labels")
    async def of_label(labels: dict[str, int]) -> None:
        note("labels", labels)

    running = asyncio.create_task(broker.run(signals=False))
    await broker.ready()
    await broker.topic("orders", ModelOrder).publish(ModelOrder(id=1))
    await broker.topic("names", str).publish("ada")
    await broker.topic("numbers", int, encoding="msgpack").publish(7)
    await broker.publish("labels", '{"a":1}')
    await soon(all_here.wait())
    broker.stop()
    await running
    assert got == {
        "model": ModelOrder(id=1),
        "json": '{"id":1,"items":[]}',
        "name": "ada",
        "number": 7,
        "labels": {"a": 1},
    }


# -- by reference -------------------------------------------------------------------------------------------------


class Thing:
    """What no encoder knows."""


@pytest.mark.near("objects stay in their process")
@pytest.mark.parametrize("group", [None, "workers"])
async def test_objects_pass_by_reference_in_memory(broker: Broker, group: str | None) -> None:
    things = broker.topic("things", object, durable=None if not broker.is_durable else False)
    sent = [Thing(), {"a": 1}, None, b"bytes", lambda: 1]
    async with things.subscribe(group=group) as subscription:
        await things.publish(sent[0])
        things.publish_nowait(sent[1])
        await things.publish_many(sent[2:])
        got = [item.value for item in await read(subscription, 5)]
    assert all(one is two for one, two in zip(got, sent, strict=True))


@pytest.mark.near("objects stay in their process")
async def test_an_object_topic_takes_no_bytes_and_other_types_see_what_fits(broker: Broker) -> None:
    things = broker.topic("things", object, durable=False if broker.is_durable else None)
    await things.declare()
    with pytest.raises(runnel.ValidationFailed, match="by reference"):
        await broker.publish("things", b"bytes")
    with pytest.raises(runnel.SchemaConflict):
        await broker.topic("things", DataOrder).declare()
    order = DataOrder(1)
    async with (
        broker.subscribe("things", type=DataOrder) as orders,
        broker.subscribe("things") as raw,
        broker.subscribe("things", type=object) as all_of_them,
    ):
        await things.publish(7)
        await things.publish(order)
        (found,) = await read(orders, 1)
        assert found.value is order
        assert found.gap is not None
        assert (await values(raw, 1))[0] == b"<builtins.int by reference>"
        assert await values(all_of_them, 2) == [7, order]


async def test_objects_never_go_to_disk_or_over_a_connection(broker: Broker, place: Any) -> None:
    if place.name == "memory":
        broker.topic("things", object)
        return
    with pytest.raises(runnel.NotSupported, match="stay in their process"):
        broker.topic("things", object)


@pytest.mark.near("objects stay in their process")
async def test_the_dead_letter_of_an_object_says_what_it_was(broker: Broker) -> None:
    things = broker.topic("things", object, durable=False if broker.is_durable else None)
    async with (
        things.subscribe(group="workers") as deliveries,
        broker.subscribe("dead-letters.workers") as letters,
    ):
        await things.publish(Thing())
        (await anext(deliveries)).reject("no use")
        (letter,) = await read(letters, 1)
    assert letter.value.endswith(b"test_types_people_have.Thing by reference>")
    with pytest.raises(runnel.InvalidValue, match="stay in their process"):
        async with broker.subscribe("things", start="earliest") as raw:
            await broker.publish("copies", (await anext(raw)).value)
