"""What gathers on its way to the journal: records with what they carry, and who waits for them."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.broker.gate import Entry
from runnel.broker.gathering import BATCH_BYTES, Commit, Gathering, Pending, Stored
from runnel.core.errors import BrokerClosed
from runnel.core.record import Meta
from runnel.journal.draft import Draft
from tests.broker.rig import make_log

ENTRIES = st.lists(st.lists(st.tuples(st.binary(max_size=5), st.none() | st.just(Meta(key=b"k"))), min_size=1))


class Anywhere:
    """A loop that makes futures, and nothing else."""

    def create_future(self) -> Any: ...


def pending(limit: int = 10**9) -> Pending:
    loop: Any = Anywhere()
    return Pending(limit, loop)


def gathering(first: int = 0) -> Gathering:
    return Gathering(make_log(), first, pending())


@given(ENTRIES)
def test_every_value_keeps_what_it_carries(entries: list[list[tuple[bytes, Meta | None]]]) -> None:
    one = gathering(7)
    for records in entries:
        metas = [meta for _, meta in records]
        values = [value for value, _ in records]
        plain = not any(metas)
        one.add(Entry(values, None if plain else metas, sum(map(len, values))))
    expected = [record for records in entries for record in records]
    assert list(zip(one.values, one.metas or [None] * len(one.values), strict=True)) == expected
    assert one.size == one.pending.bytes == sum(len(value) for value, _ in expected)
    assert one.end == 7 + len(expected)


def test_it_is_full_when_it_has_so_many_bytes() -> None:
    one = gathering()
    one.add(Entry([b"x"], None, BATCH_BYTES - 1))
    assert not one.is_full
    one.add(Entry([b"x"], None, 1))
    assert one.is_full


async def test_each_who_waits_is_told_and_one_who_gave_up_harms_nobody() -> None:
    one, loop = gathering(), asyncio.get_running_loop()
    one.waiters = [loop.create_future() for _ in range(3)]
    one.waiters[1].cancel()
    one.tell()
    assert [waiter.cancelled() for waiter in one.waiters] == [False, True, False]
    await one.waiters[0]
    one.tell(BrokerClosed("publishing"))  # those who were told are not told again


async def test_a_failure_is_told_to_all() -> None:
    one, loop, heard = gathering(), asyncio.get_running_loop(), list[Exception | None]()
    one.waiters = [loop.create_future() for _ in range(2)]
    one.listeners.append(heard.append)
    why = BrokerClosed("publishing")
    one.tell(why)
    for waiter in one.waiters:
        with pytest.raises(BrokerClosed):
            await waiter
    assert heard == [why]


def test_a_commit_holds_records_or_only_state() -> None:
    assert Commit(Draft([], 0), [gathering()], 0, 0).holds_records
    assert not Commit(Draft([], 0), [], 0, 0).holds_records


def test_the_next_offset_grows_with_what_gathers_and_stays_when_it_goes() -> None:
    stored, log = Stored(1, 5), make_log()
    assert stored.next == 5
    one = stored.gathering = Gathering(log, stored.next, pending())
    one.add(Entry([b"a", b"b"], None, 2))
    assert stored.next == 7
    stored.close(one)
    assert stored.next == 7
    two = stored.gathering = Gathering(log, stored.next, pending())
    stored.close(one)  # an old one: the new one goes on
    assert stored.gathering is two


def test_offsets_that_were_never_seen_are_taken_back() -> None:
    stored = Stored(1, 5)
    one = stored.gathering = Gathering(make_log(), stored.next, pending())
    one.add(Entry([b"a", b"b"], None, 2))
    stored.take_back(5)
    assert stored.next == 5
    stored.take_back(9)
    assert stored.next == 5, "never forward"
