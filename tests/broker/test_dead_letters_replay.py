"""Dead letters go back where they came from: as they were, and each once."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from runnel import Broker, Gap, Subscription
from runnel.core.errors import BrokerClosed, InvalidOption, ValidationFailed
from runnel.core.record import Record
from runnel.testing import JumpingClock
from tests.broker.durable_broker import Disk, open_on
from tests.patience import PATIENCE

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def bury(broker: Broker, *values: bytes, reason: str = "bad") -> None:
    """Have records of `orders` rejected."""
    for value in values:
        await broker.publish("orders", value, key=b"k-" + value, headers={"colour": value.decode()})
    async with broker.subscribe("orders", group="billing") as deliveries:
        for _ in values:
            await (await anext(deliveries)).reject(reason)


async def orders(broker: Broker, count: int) -> list[Record[bytes]]:
    async with broker.subscribe("orders", start="earliest") as records:
        return [await anext(records) for _ in range(count)]


async def test_what_is_replayed_is_as_it_was(runnel_broker: Broker) -> None:
    await bury(runnel_broker, b"a", b"b")
    assert await runnel_broker.replay("dead-letters.billing") == 2
    first, _, again, _ = await orders(runnel_broker, 4)
    assert (again.value, again.key) == (b"a", b"k-a")
    assert dict(again.headers) == {"colour": "a", "traceparent": first.traceparent}


async def test_each_is_replayed_once(runnel_broker: Broker) -> None:
    await bury(runnel_broker, b"a")
    assert [await runnel_broker.replay("dead-letters.billing") for _ in range(3)] == [1, 0, 0]
    await bury(runnel_broker, b"b")  # the first of the two again
    assert runnel_broker.statistics().topics["dead-letters.billing"].published == 2
    assert await runnel_broker.replay("dead-letters.billing") == 1


async def test_a_limit_leaves_the_rest_for_the_next_time(runnel_broker: Broker) -> None:
    await bury(runnel_broker, b"a", b"b", b"c")
    counts = [await runnel_broker.replay("dead-letters.billing", limit=2) for _ in range(3)]
    assert counts == [2, 1, 0]
    assert [record.value for record in await orders(runnel_broker, 6)] == [b"a", b"b", b"c"] * 2


async def test_what_is_not_picked_is_passed_over_for_good(runnel_broker: Broker) -> None:
    await bury(runnel_broker, b"a", b"b", b"c")
    assert await runnel_broker.replay("dead-letters.billing", where=lambda letter: letter.value != b"b") == 2
    assert await runnel_broker.replay("dead-letters.billing") == 0
    assert [record.value for record in await orders(runnel_broker, 5)] == [b"a", b"b", b"c", b"a", b"c"]


async def test_what_fails_again_while_replaying_is_not_replayed_in_a_circle(runnel_broker: Broker) -> None:
    await bury(runnel_broker, b"a")

    def fails_at_once(letter: Record[bytes]) -> bool:
        letters = runnel_broker.topic("dead-letters.billing")
        letters.publish_nowait(letter.value, headers=dict(letter.headers))
        return True

    assert await runnel_broker.replay("dead-letters.billing", where=fails_at_once) == 1
    assert runnel_broker.statistics().topics["dead-letters.billing"].published == 2


async def test_a_topic_of_other_records_is_not_replayed(runnel_broker: Broker) -> None:
    await runnel_broker.publish("orders", b"alive")
    with pytest.raises(InvalidOption, match="its record at 0 is not a dead letter"):
        await runnel_broker.replay("orders")
    assert runnel_broker.statistics().groups == ()


async def test_where_nothing_died_nothing_is_replayed(runnel_broker: Broker) -> None:
    assert await runnel_broker.replay("dead-letters.nobody") == 0


async def test_what_retention_took_is_not_waited_for(runnel_broker: Broker, runnel_clock: JumpingClock) -> None:
    await runnel_broker.topic("dl", retention_age=60).declare()
    async with runnel_broker.subscribe("jobs", group="g", dead_letter="dl") as jobs:
        for value in (b"a", b"b"):
            await runnel_broker.publish("jobs", value)
            await (await anext(jobs)).reject("no")
        assert await runnel_broker.replay("dl", limit=1) == 1
        await runnel_clock.advance(61)
        assert await runnel_broker.replay("dl") == 0


async def test_a_letter_and_that_it_was_put_back_are_one_write(tmp_path: Path) -> None:
    """So that a crash at any moment leaves both or neither: else the next replay would put it back again."""
    disk = Disk()
    async with open_on(disk, tmp_path) as broker:
        await bury(broker, b"a", b"b", b"c")
        await broker.backend.flushed()
        before = broker.statistics().journal
        assert await broker.replay("dead-letters.billing", where=lambda letter: letter.value != b"b") == 2
        after = broker.statistics().journal
        assert before is not None
        assert after is not None
        assert after.syncs - before.syncs == 1


async def test_letters_go_back_in_parts_where_a_reader_blocks_for_more(runnel_broker: Broker) -> None:
    await bury(runnel_broker, *(b"%d" % number for number in range(7)))
    async with runnel_broker.subscribe("orders", policy="block", buffer=2) as records:
        replaying = asyncio.ensure_future(runnel_broker.replay("dead-letters.billing"))
        found = [(await asyncio.wait_for(anext(records), PATIENCE)).value for _ in range(7)]
        assert await asyncio.wait_for(replaying, PATIENCE) == 7
        assert found == [b"%d" % number for number in range(7)]


async def test_a_letter_that_its_topic_refuses_leaves_those_before_it_put_back(runnel_broker: Broker) -> None:
    await bury(runnel_broker, b"1", b"2", b"bad", b"4")
    await runnel_broker.topic("orders", int).declare()
    with pytest.raises(ValidationFailed):
        await runnel_broker.replay("dead-letters.billing")
    assert [record.value for record in await orders(runnel_broker, 6)][4:] == [b"1", b"2"]
    await runnel_broker.discard("dead-letters.billing", [2])
    assert await runnel_broker.replay("dead-letters.billing") == 1


@pytest.mark.parametrize("spins", range(8))
async def test_a_broker_that_closes_ends_a_replay_that_waits_for_the_disk(tmp_path: Path, spins: int) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path) as broker:
        await bury(broker, b"a", b"b")
        await broker.publish("busy", b"x")
    async with open_on(disk, tmp_path, tail_bytes=1) as broker, AsyncExitStack() as stack:
        busy = [
            await stack.enter_async_context(broker.subscribe("busy", start="earliest", on_gap=_never)) for _ in range(4)
        ]
        disk.hold("read")
        readers = [asyncio.ensure_future(_rest(one)) for one in busy]
        await disk.reached()
        replaying = asyncio.ensure_future(broker.replay("dead-letters.billing"))
        for _ in range(spins):
            await asyncio.sleep(0)
        asyncio.get_running_loop().run_in_executor(None, disk.go_on)
        broker.close()
        with pytest.raises(BrokerClosed):
            await asyncio.wait_for(replaying, PATIENCE)
        for reader in readers:
            assert set(await asyncio.wait_for(reader, PATIENCE)) <= {b"x"}


def _never(gap: Gap) -> None:
    raise AssertionError(f"{gap} was told, though nothing is lost")


async def _rest(records: Subscription[bytes]) -> list[bytes]:
    return [record.value async for record in records]


async def test_a_replay_goes_no_further_once_the_broker_is_closed(runnel_broker: Broker) -> None:
    await bury(runnel_broker, b"a", b"b")

    def closes(letter: Record[bytes]) -> bool:
        runnel_broker.close()
        return False

    with pytest.raises(BrokerClosed):
        await runnel_broker.replay("dead-letters.billing", where=closes)
