"""Tables: a topic as keys and values, in every place."""

import asyncio

import msgspec
import pytest

import runnel
from runnel import Broker
from runnel.api.table import MOVED, SLACK
from tests.contract.afar import on_every_socket
from tests.contract.conftest import Place
from tests.contract.reading import soon


class Setting(msgspec.Struct):
    limit: int
    note: str = ""


@on_every_socket
async def test_what_was_put_is_got_until_it_is_deleted(broker: Broker) -> None:
    table = broker.table("settings", Setting)
    assert await table.get("a") is None
    assert await table.get("a", Setting(0)) == Setting(0)
    await table.put("a", Setting(1))
    await table.put("b", Setting(2))
    offset = await table.put("a", Setting(3, "new"))
    assert await table.get("a") == Setting(3, "new")
    entry = await table.entry("a")
    assert entry is not None
    assert (entry.key, entry.value, entry.offset) == ("a", Setting(3, "new"), offset)
    assert await table.items() == {"b": Setting(2), "a": Setting(3, "new")}
    await table.delete("b")
    await table.delete("never")
    assert await table.get("b") is None
    assert await table.items() == {"a": Setting(3, "new")}
    assert broker.table("settings", Setting) is table


async def test_values_without_a_type_are_bytes(broker: Broker) -> None:
    table = broker.table("raw")
    await table.put("ä", b"\x00\xff")
    assert await table.items() == {"ä": b"\x00\xff"}
    with pytest.raises(runnel.InvalidValue, match="deleted"):
        await table.put("a", b"")


async def test_a_value_of_another_type_is_refused_with_its_field(broker: Broker) -> None:
    table = broker.table("settings", Setting)
    with pytest.raises(runnel.ValidationFailed, match="limit"):
        await table.put("a", Setting("many"))  # type: ignore[arg-type]
    assert await table.items() == {}


@on_every_socket
async def test_a_put_that_expects_another_offset_is_a_conflict(broker: Broker) -> None:
    table = broker.table("settings", Setting)
    first = await table.put("a", Setting(1), expected=None)
    await table.put("b", Setting(9))  # another key: no conflict
    second = await table.put("a", Setting(2), expected=first)
    with pytest.raises(runnel.KeyConflict) as raised:
        await table.put("a", Setting(3), expected=first)
    assert (raised.value.key, raised.value.expected, raised.value.actual) == ("a", first, second)
    with pytest.raises(runnel.KeyConflict):
        await table.put("a", Setting(3), expected=None)
    with pytest.raises(runnel.KeyConflict):
        await table.delete("a", expected=first)
    await table.delete("a", expected=second)
    assert await table.get("a") is None
    await table.put("a", Setting(4), expected=None)
    assert await table.get("a") == Setting(4)


@on_every_socket
async def test_writers_that_update_one_key_together_lose_nothing(broker: Broker) -> None:
    handles = [broker.table("counts", int, max_bytes=1_000_000 + number) for number in range(4)]
    assert len(set(map(id, handles))) == 4  # views of their own, as in processes of their own

    async def count(table: runnel.Table[int]) -> None:
        for _ in range(10):
            await table.update("n", lambda n: (n or 0) + 1)
            await table.put("other", 0)

    await soon(asyncio.gather(*map(count, handles)))
    assert await broker.table("counts", int).get("n") == 40


async def test_an_update_may_delete(broker: Broker) -> None:
    table = broker.table("counts", int)
    assert await table.update("n", lambda n: None) is None
    await table.put("n", 1)
    assert await table.update("n", lambda n: None) is None
    assert await table.items() == {}


@on_every_socket
async def test_a_watch_begins_with_what_is_there_and_goes_on_with_what_changes(broker: Broker) -> None:
    table = broker.table("settings", Setting)
    await table.put("a", Setting(1))
    await table.put("b", Setting(2))
    await table.put("a", Setting(3))
    async with table.watch() as changes, table.watch("b", initial=False) as of_b:
        seen = [await soon(anext(changes)) for _ in range(2)]
        assert [(one.key, one.value) for one in seen] == [("b", Setting(2)), ("a", Setting(3))]
        offset = await table.put("c", Setting(4))
        await table.delete("b")
        await table.delete("b")
        await table.put("a", Setting(5))
        seen = [await soon(anext(changes)) for _ in range(3)]
        assert [(one.key, one.value) for one in seen] == [("c", Setting(4)), ("b", None), ("a", Setting(5))]
        assert seen[0].offset == offset
        assert (await soon(anext(of_b))).value is None


async def test_a_watch_may_come_before_the_table(broker: Broker) -> None:
    table = broker.table("settings", Setting)
    async with table.watch() as changes:
        await table.put("a", Setting(1))
        assert (await soon(anext(changes))).value == Setting(1)


async def test_a_watch_is_read_in_its_block(broker: Broker) -> None:
    with pytest.raises(runnel.SubscriptionMisused):
        await anext(broker.table("t").watch())


@on_every_socket
async def test_a_table_keeps_every_key_however_often_others_are_put(place: Place) -> None:
    async with place.open() as broker:
        table = broker.table("settings", int)
        first = await table.put("old", -1)
        async with table.watch("old") as changes:
            await soon(anext(changes))
            rounds = 3 * (SLACK + MOVED)
            for begin in range(0, rounds, 70):
                await asyncio.gather(*(table.put(f"key-{n % 7}", n) for n in range(begin, begin + 70)))
            entry = await table.entry("old")
            assert entry is not None
            assert (entry.value, entry.offset) == (-1, first)  # the same put, wherever its record is
            assert len(await table.items()) == 8
            other = broker.table("settings", int, max_bytes=1_000_000)
            assert await other.items() == await table.items()
            (bounds,) = await broker.bounds("settings")
            if place.name in ("memory", "tcp", "front"):  # no compaction there: the table moves its entries
                assert bounds.end - bounds.first < rounds
            await table.put("old", -2, expected=first)
            assert (await soon(anext(changes))).value == -2  # that it was moved is no change


async def test_a_slow_watch_gets_the_newest_value_of_each_key(broker: Broker) -> None:
    table = broker.table("settings", int)
    async with table.watch() as changes:
        await table.put("deleted", 1)
        assert (await soon(anext(changes))).key == "deleted"
        await table.delete("deleted")
        for begin in range(0, 2 * (SLACK + MOVED), 60):  # more than its buffer in memory holds
            await asyncio.gather(*(table.put(f"key-{n % 3}", n) for n in range(begin, begin + 60)))
        expected = await table.items()
        seen: dict[str, int | None] = {"deleted": 1}
        while {key: value for key, value in seen.items() if value is not None} != expected:
            entry = await soon(anext(changes))
            seen[entry.key] = entry.value
        assert seen["deleted"] is None


async def test_a_table_that_is_deleted_is_empty(broker: Broker) -> None:
    table = broker.table("settings", int)
    await table.put("a", 1)
    assert await table.get("a") == 1
    await broker.delete("settings")
    assert await table.get("a") is None
    await table.put("b", 2)
    assert await table.items() == {"b": 2}


async def test_a_table_that_is_too_large_for_its_handle_says_so(broker: Broker) -> None:
    table = broker.table("settings", max_bytes=10_000)
    await table.put("a", bytes(9_000))
    await table.get("a")
    await table.put("b", bytes(9_000))
    with pytest.raises(runnel.TooLarge, match="max_bytes"):
        await table.get("a")


def test_what_a_table_cannot_be_is_refused() -> None:
    broker = runnel.open()
    with pytest.raises(runnel.InvalidOption, match="compact"):
        broker.table("t", compact=False)
    with pytest.raises(runnel.InvalidOption, match="stores"):
        broker.table("t", object)
