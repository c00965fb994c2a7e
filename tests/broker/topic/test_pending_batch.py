"""The pending batch: records on their way to the journal, with what they carry and who waits for them."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.broker.durable.commit import PendingCommit
from runnel.broker.topic.log import Log
from runnel.broker.topic.pending_batch import BATCH_BYTES, DurableTopic, PendingBatch, PendingBytes, refuse_behind
from runnel.core.errors import BrokerClosed
from runnel.core.publishing import Append
from runnel.core.record import Meta
from runnel.journal.format.entry import Draft
from tests.broker.broker_parts import make_log
from tests.carried import columns_of, metas_of

ENTRIES = st.lists(st.lists(st.tuples(st.binary(max_size=5), st.none() | st.just(Meta(key=b"k"))), min_size=1))


class Anywhere:
    """A loop that makes futures, and nothing else."""

    def create_future(self) -> Any: ...


def pending(limit: int = 10**9) -> PendingBytes:
    loop: Any = Anywhere()
    return PendingBytes(limit, loop)


def pending_batch(first: int = 0) -> PendingBatch:
    return PendingBatch(make_log(), first, pending())


@given(ENTRIES)
def test_every_value_keeps_what_it_carries(entries: list[list[tuple[bytes, Meta | None]]]) -> None:
    one = pending_batch(7)
    for records in entries:
        metas = [meta for _, meta in records]
        values = [value for value, _ in records]
        plain = not any(metas)
        one.add(Append(values, columns_of(None if plain else metas), sum(map(len, values))))
    expected = [record for records in entries for record in records]
    assert list(zip(one.values, metas_of(one.columns, len(one.values)), strict=True)) == expected
    assert one.size == one.pending.bytes == sum(len(value) for value, _ in expected)
    assert one.end == 7 + len(expected)


def numbered(producer: int, sequence: int, count: int = 1) -> Append:
    entry = Append([b"x"] * count, None, count)
    entry.producer, entry.producer_sequence = producer, sequence
    return entry


def test_it_is_full_when_it_has_so_many_bytes() -> None:
    one = pending_batch()
    one.add(Append([b"x"], None, BATCH_BYTES - 1))
    assert one.takes(Append([b"x"], None, 9))
    one.add(Append([b"x"], None, 1))
    assert not one.takes(Append([b"x"], None, 9))


def test_what_a_producer_numbers_takes_its_next_number_and_nothing_else() -> None:
    one = pending_batch()
    one.add(numbered(7, 40, 3))
    one.add(numbered(7, 43))
    assert (one.producer, one.producer_sequence, one.count) == (7, 40, 4)
    assert one.takes(numbered(7, 44))
    for other in (numbered(7, 43), numbered(7, 45), numbered(8, 44), Append([b"x"], None, 1)):
        assert not one.takes(other)
    plain = pending_batch()
    plain.add(Append([b"x"], None, 1))
    assert not plain.takes(numbered(7, 0))


def test_what_is_numbered_goes_on_while_it_is_the_last_and_counts_as_coming() -> None:
    stored, log = DurableTopic(1, 5), make_log()
    one = stored.pending_batch = PendingBatch(log, stored.next, pending())
    one.add(numbered(7, 0, 2))
    stored.number(one)
    assert stored.pending_batch is not one
    assert (stored.numbered, stored.next, log.coming) == (one, 7, 2)
    one.add(numbered(7, 2))
    stored.number(one)
    assert (stored.numbered, stored.next, log.coming, log.coming_bytes) == (one, 8, 3, 3)
    plain = stored.pending_batch = PendingBatch(log, stored.next, pending())
    plain.add(Append([b"x"], None, 1))
    stored.close(plain)
    assert stored.numbered is None, "a plain record lies behind it"
    one.count_out()
    plain.count_out()
    assert (log.coming, log.coming_bytes) == (0, 0)


def test_what_is_numbered_takes_nothing_more_once_it_is_written_or_failed() -> None:
    def closed(stored: DurableTopic, one: PendingBatch) -> None:
        stored.close(one)

    def taken_back(stored: DurableTopic, one: PendingBatch) -> None:
        stored.take_back(one.first)

    for end in (closed, taken_back):
        stored = DurableTopic(1, 5)
        one = stored.pending_batch = PendingBatch(make_log(), stored.next, pending())
        one.add(numbered(7, 0, 2))
        stored.number(one)
        assert stored.numbered is one
        end(stored, one)
        assert stored.numbered is None


def test_what_a_producer_numbered_behind_a_refused_batch_is_refused_too() -> None:
    logs = [make_log(name) for name in "abcd"]
    pending_batches = [PendingBatch(log, 0, pending()) for log in logs]
    for one, entry in zip(
        pending_batches, (numbered(7, 0), numbered(7, 1), numbered(8, 0), numbered(7, 2)), strict=True
    ):
        one.add(entry)
    why = BrokerClosed("publishing")
    refused: dict[Log, Exception] = {logs[1]: why}
    refuse_behind(pending_batches, refused)
    assert refused == {logs[1]: why, logs[3]: why}


async def test_each_waiter_is_notified_and_one_that_gave_up_affects_no_other() -> None:
    one, loop = pending_batch(), asyncio.get_running_loop()
    waiters = one.waiters = [loop.create_future() for _ in range(3)]
    waiters[1].cancel()
    one.tell()
    assert [waiter.cancelled() for waiter in waiters] == [False, True, False]
    await waiters[0]
    one.tell(BrokerClosed("publishing"))  # those who were told are not told again


async def test_a_failure_is_reported_to_all() -> None:
    one, loop, heard = pending_batch(), asyncio.get_running_loop(), list[Exception | None]()
    waiters = one.waiters = [loop.create_future() for _ in range(2)]
    one.listeners.append(heard.append)
    why = BrokerClosed("publishing")
    one.tell(why)
    for waiter in waiters:
        with pytest.raises(BrokerClosed):
            await waiter
    assert heard == [why]


def test_a_commit_holds_records_or_only_state() -> None:
    assert PendingCommit(Draft([], 0), [pending_batch()], 0, 0).holds_records
    assert not PendingCommit(Draft([], 0), [], 0, 0).holds_records


def test_the_next_offset_grows_with_what_gathers_and_stays_when_it_goes() -> None:
    stored, log = DurableTopic(1, 5), make_log()
    assert stored.next == 5
    one = stored.pending_batch = PendingBatch(log, stored.next, pending())
    one.add(Append([b"a", b"b"], None, 2))
    assert stored.next == 7
    stored.close(one)
    assert stored.next == 7
    two = stored.pending_batch = PendingBatch(log, stored.next, pending())
    stored.close(one)  # an old one: the new one goes on
    assert stored.pending_batch is two


def test_offsets_that_were_never_seen_are_taken_back() -> None:
    stored = DurableTopic(1, 5)
    one = stored.pending_batch = PendingBatch(make_log(), stored.next, pending())
    one.add(Append([b"a", b"b"], None, 2))
    stored.take_back(5)
    assert stored.next == 5
    stored.take_back(9)
    assert stored.next == 5, "never forward"


async def test_a_publisher_that_was_let_in_hands_over_before_the_next_one_is() -> None:
    pending = PendingBytes(10, asyncio.get_running_loop())
    pending.bytes = 10

    async def publish() -> None:
        await pending.room()
        pending.bytes += 10

    publishers = [asyncio.ensure_future(publish()) for _ in range(3)]
    for done in range(3):
        for _ in range(10):
            await asyncio.sleep(0)
        assert [one.done() for one in publishers] == [number < done for number in range(3)]
        assert pending.bytes == 10, "the bound holds"
        pending.bytes = 0
        pending.make_room()
    await asyncio.gather(*publishers)
