"""Dead letters one by one: put back or discarded, each once, whatever is cut off in between."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runnel
from runnel import Broker
from runnel.broker import dead_letters
from runnel.broker.dead_letters import BLOCK, DeadLetterState, dead_letter_topics, list_dead_letters
from runnel.core.errors import InvalidOption, NameInUse, TopicDeleted, UnknownTopic
from tests.broker.durable_broker import Disk, open_on

DEAD = "dead-letters.billing"


async def bury(broker: Broker, *values: bytes) -> None:
    """Have records of `orders` rejected."""
    for value in values:
        await broker.publish("orders", value, key=b"k-" + value, headers={"colour": value.decode()})
    async with broker.subscribe("orders", group="billing") as deliveries:
        for _ in values:
            await (await anext(deliveries)).reject("bad")


async def orders(broker: Broker) -> list[bytes]:
    end = broker.statistics().topics["orders"].end
    async with broker.subscribe("orders", start="earliest") as records:
        return [(await anext(records)).value for _ in range(end)]


async def left(broker: Broker, start: int = 0, limit: int = 100) -> list[int]:
    return [one.offset for one in (await list_dead_letters(broker.backend, DEAD, start, limit, 1 << 20)).letters]


def box(broker: Broker) -> DeadLetterState:
    return DeadLetterState(broker.backend, broker.backend.catalog.logs[DEAD])


async def test_letters_are_put_back_as_they_were_and_listed_no_more(runnel_broker: Broker) -> None:
    await bury(runnel_broker, b"a", b"b", b"c")
    assert await left(runnel_broker) == [0, 1, 2]
    assert await runnel_broker.replay(DEAD, offsets=[1]) == 1
    assert await left(runnel_broker) == [0, 2]
    async with runnel_broker.subscribe("orders", start=3) as records:
        again = await anext(records)
    assert (again.value, again.key, again.headers["colour"]) == (b"b", b"k-b", "b")
    assert not any("dead-letter" in name for name in again.headers)


async def test_what_is_discarded_is_never_put_back(runnel_broker: Broker) -> None:
    await bury(runnel_broker, b"a", b"b", b"c")
    assert await runnel_broker.discard(DEAD, [1]) == 1
    assert await runnel_broker.discard(DEAD, [1]) == 0
    assert await runnel_broker.replay(DEAD, offsets=[0, 1]) == 1
    assert await runnel_broker.replay(DEAD) == 1
    assert await orders(runnel_broker) == [b"a", b"b", b"c", b"a", b"c"]
    assert (await left(runnel_broker), box(runnel_broker).open()) == ([], 0)


async def test_what_was_put_back_in_order_is_not_put_back_by_its_offset(runnel_broker: Broker) -> None:
    await bury(runnel_broker, b"a", b"b")
    assert await runnel_broker.replay(DEAD, limit=1) == 1
    assert await runnel_broker.replay(DEAD, offsets=[0, 1]) == 1
    assert await orders(runnel_broker) == [b"a", b"b", b"a", b"b"]


async def test_all_that_are_there_can_be_discarded(runnel_broker: Broker) -> None:
    await bury(runnel_broker, b"a", b"b")
    assert await runnel_broker.discard(DEAD) == 2
    assert await runnel_broker.replay(DEAD) == 0
    await bury(runnel_broker, b"c")
    assert await runnel_broker.replay(DEAD) == 1


async def test_the_floor_goes_up_over_what_is_done_with_and_marks_below_it_go(runnel_broker: Broker) -> None:
    letters_of = runnel_broker.topic(DEAD)
    story = {"runnel-dead-letter-reason": "bad", "runnel-dead-letter-topic": "orders"}
    await letters_of.publish_many([b"x"] * (BLOCK + 10), headers=story)
    at = box(runnel_broker)
    first = at.floor  # memory keeps the last ones only
    assert await runnel_broker.discard(DEAD, [first + 1]) == 1
    assert (at.floor, at.open()) == (first, at.log.end - first - 1)
    assert await runnel_broker.discard(DEAD, [first]) == 1
    assert (at.floor, at.open()) == (first + 2, at.log.end - first - 2)
    assert await runnel_broker.discard(DEAD) == at.log.end - first - 2
    assert (at.floor, at.open()) == (at.log.end, 0)
    await bury(runnel_broker, b"a")
    assert await runnel_broker.discard(DEAD) == 1
    names = [name for name in runnel_broker.backend.markers.values if name.startswith(dead_letters.MARKER_PREFIX)]
    assert names == [f"{dead_letters.MARKER_PREFIX}{at.log.epoch}.1"]
    assert await runnel_broker.marks() == {}, "they are the broker's own"


async def test_marks_of_a_topic_that_is_no_more_are_forgotten(runnel_broker: Broker) -> None:
    await bury(runnel_broker, b"a", b"b")
    await runnel_broker.discard(DEAD, [1])
    await runnel_broker.delete(DEAD)
    await bury(runnel_broker, b"c", b"d")
    assert await left(runnel_broker) == [0, 1], "another life, other letters"
    await runnel_broker.discard(DEAD, [0])
    marks = [name for name in runnel_broker.backend.markers.values if name.startswith(dead_letters.MARKER_PREFIX)]
    assert marks == [f"{dead_letters.MARKER_PREFIX}{box(runnel_broker).log.epoch}.0"]


async def test_it_is_remembered_on_disk(tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as broker:
        await bury(broker, b"a", b"b", b"c", b"d")
        await broker.discard(DEAD, [2])
        await broker.replay(DEAD, offsets=[0])
    async with runnel.open(tmp_path) as broker:
        assert await left(broker) == [1, 3]
        assert await broker.replay(DEAD, offsets=[0, 2]) == 0
        assert await broker.replay(DEAD) == 2
        assert await orders(broker) == [b"a", b"b", b"c", b"d", b"a", b"b", b"d"]


async def test_what_is_put_back_and_that_it_was_are_one_write(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path) as broker:
        await bury(broker, b"a", b"b")
        await broker.backend.flushed()
        before = broker.statistics().journal
        await broker.replay(DEAD, offsets=[1])
        after = broker.statistics().journal
        assert before is not None
        assert after is not None
        assert after.syncs - before.syncs == 1


async def test_a_listing_goes_on_where_it_ended(runnel_broker: Broker) -> None:
    await bury(runnel_broker, *(b"%d" % number for number in range(7)))
    await runnel_broker.discard(DEAD, [2, 3])
    found = await list_dead_letters(runnel_broker.backend, DEAD, 0, 3, 1 << 20)
    assert ([one.offset for one in found.letters], found.next, found.end) == ([0, 1, 4], 5, 7)
    rest = await list_dead_letters(runnel_broker.backend, DEAD, found.next, 3, 1 << 20)
    assert ([one.offset for one in rest.letters], rest.next) == ([5, 6], 7)
    small = await list_dead_letters(runnel_broker.backend, DEAD, 0, 100, 2)
    assert len(small.letters) < 5
    assert small.next < small.end


async def test_records_that_are_no_letters_are_refused_and_not_listed(runnel_broker: Broker) -> None:
    await runnel_broker.publish("orders", b"alive")
    with pytest.raises(InvalidOption, match="its record at 0 is not a dead letter"):
        await runnel_broker.discard("orders")
    assert (await list_dead_letters(runnel_broker.backend, "orders", 0, 10, 1 << 20)).letters == []
    with pytest.raises(UnknownTopic):
        await runnel_broker.discard("nothing")
    assert "nothing" not in await runnel_broker.topics()


@pytest.mark.parametrize("offsets", [[-1], ["1"], [True], [1.5]])
async def test_odd_offsets_are_refused(runnel_broker: Broker, offsets: list[int]) -> None:
    await bury(runnel_broker, b"a")
    with pytest.raises(InvalidOption, match="expected offsets"):
        await runnel_broker.discard(DEAD, offsets)
    with pytest.raises(InvalidOption, match="leave out limit"):
        await runnel_broker.replay(DEAD, offsets=[0], limit=1)


async def test_two_at_once_are_not_let_in(runnel_broker: Broker) -> None:
    await bury(runnel_broker, b"a")
    with dead_letters.exclusively(runnel_broker.backend, DEAD):
        with pytest.raises(NameInUse):
            await runnel_broker.discard(DEAD)
        with pytest.raises(NameInUse):
            await runnel_broker.replay(DEAD)
    assert await runnel_broker.discard(DEAD) == 1


async def test_a_topic_that_is_made_anew_meanwhile_is_left_alone(runnel_broker: Broker) -> None:
    await bury(runnel_broker, b"a", b"b")
    old = box(runnel_broker)
    await runnel_broker.delete(DEAD)
    await bury(runnel_broker, b"c", b"d")
    with pytest.raises(TopicDeleted):
        async for _ in dead_letters._open_ones(runnel_broker.backend, old, [0]):
            pass


async def test_topics_of_dead_letters_are_found_by_who_sends_them_there(runnel_broker: Broker) -> None:
    await bury(runnel_broker, b"a")
    async with runnel_broker.subscribe("orders", group="other", dead_letter="morgue") as deliveries:
        await (await anext(deliveries)).reject("bad")
    found = dead_letter_topics(runnel_broker.backend)
    assert [(one.name, one.groups, one.open) for one in found] == [(DEAD, ["billing"], 1), ("morgue", ["other"], 1)]
    await runnel_broker.publish("dead-letters.somebody", b"")
    await runnel_broker.topic("jobs", dead_letter="graveyard").declare()
    await runnel_broker.publish("graveyard", b"")
    await runnel_broker.publish("dropped", b"")
    async with runnel_broker.subscribe("news", dead_letter="dropped"):
        assert {one.name for one in dead_letter_topics(runnel_broker.backend)} == {
            DEAD,
            "morgue",
            "dead-letters.somebody",
            "graveyard",
            "dropped",
        }


@given(st.lists(st.integers(0, 3 * BLOCK), min_size=1), st.integers(0, 2 * BLOCK))
async def test_bits_say_what_a_set_would(offsets: list[int], first: int) -> None:
    async with runnel.open() as broker:
        await broker.topic(DEAD, retention_count=10_000).publish_many([b""] * (3 * BLOCK))
        at, done = box(broker), set(offsets)
        for name, (value, before) in at.settled(offsets).items():
            assert before is None
            assert value > dead_letters.NONE_DONE, "a mark moves forward only"
            at._values[name] = value
        broker.backend.positions.keep(f"{dead_letters.REPLAYED_PREFIX}{DEAD}", DEAD, at.log.position(first))
        rest = set(range(first, 3 * BLOCK)) - done
        assert at.open() == len(rest)
        assert all(at.is_open(one) == (one in rest) for one in [*offsets, first, 3 * BLOCK - 1])
        up = min(rest, default=3 * BLOCK)
        assert at.raised() == (up if up > first else None)
        assert "open" in repr(at)
