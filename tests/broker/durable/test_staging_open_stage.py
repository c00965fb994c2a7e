"""One open stage: what is durable of it, what is on its way, and how it ended."""

import asyncio

import pytest

from runnel.broker.durable.staging import INLINE_BYTES, OpenStage, PendingStageBatch
from runnel.core.errors import StageEnded
from runnel.core.stages import StageKey, stage_name
from runnel.journal.format.ledger import StageState
from tests.broker.broker_parts import make_log


def stage(counts: list[int] | None = None, size: int = 0) -> OpenStage:
    return OpenStage(StageState(1, "w", 2, 3, 4, 5, 100, counts or [], size), make_log(), announced=True)


def flight(one: OpenStage, body: bytes = b"batch", count: int = 2) -> PendingStageBatch:
    made = PendingStageBatch(body, count, asyncio.get_running_loop().create_future())
    one.flights.append(made)
    return made


async def test_what_landed_counts_and_is_remembered() -> None:
    one = stage()
    first, second = flight(one), flight(one, b"more", 3)
    assert one.following == 2
    one.landed(first, 500)
    one.landed(second, 400)
    assert (one.state.counts, one.state.records, one.state.bytes, one.state.time) == ([2, 3], 5, 9, 500)
    assert (one.following, one.kept) == (2, [b"batch", b"more"])
    assert (one.let_go(), one.kept, one.let_go()) == (9, None, 0)


async def test_what_only_opens_a_stage_is_no_batch_of_it() -> None:
    one = stage()
    flight(one, b"", 0)
    assert one.following == 0


async def test_a_stage_from_an_earlier_life_is_not_in_memory() -> None:
    one = stage([2], 10)
    assert (one.kept, stage().kept) == (None, [])
    one.landed(flight(one), 0)
    assert one.kept is None, "half of it is of no use"


def test_it_is_small_below_a_bound() -> None:
    assert stage([1], INLINE_BYTES - 1).is_small
    assert not stage([1], INLINE_BYTES).is_small


async def test_settling_waits_for_all_that_is_on_its_way_and_hears_of_failures_too() -> None:
    one = stage()
    flights = [flight(one), flight(one)]
    settled = asyncio.ensure_future(one.settled())
    await asyncio.sleep(0)
    one.landed(flights[0], 0)
    flights[0].land()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not settled.done()
    one.flights.remove(flights[1])
    flights[1].land(ValueError("no"))
    await settled
    assert str(flights[1].error) == "no"
    flights[1].land()  # whoever gave up waiting is not told


async def test_cancelling_one_waiter_leaves_the_others_waiting() -> None:
    one = stage()
    on_its_way = flight(one)
    waiting = [asyncio.ensure_future(one.settled()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    one.landed(on_its_way, 0)
    on_its_way.land()
    await waiting[1]


def test_it_says_why_it_takes_nothing() -> None:
    one = stage()
    one.check()
    one.committing = True
    with pytest.raises(StageEnded, match="'w' batch 2 part 3 attempt 4 has ended: it is being committed"):
        one.check()
    one.ended = "it was dropped"
    with pytest.raises(StageEnded, match="it was dropped") as over:
        one.check()
    assert (over.value.stage, over.value.why) == (stage_name(StageKey("w", 2, 3, 4)), "it was dropped")
