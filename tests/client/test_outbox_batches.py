"""Outgoing batches: records that travel in one frame."""

from hypothesis import given
from hypothesis import strategies as st

from runnel.client.outbox import LANES, OVERHEAD, OutgoingBatch, Route, batch_cost
from runnel.core.batch_format import MSGPACK, unpack
from runnel.core.record import Meta
from tests.carried import columns_of

ROUTE = Route.to("a")


def test_a_route_knows_its_lane() -> None:
    assert ROUTE.name == b"a"
    assert 0 <= ROUTE.lane < LANES
    assert Route.to("a", b"said") != ROUTE
    assert len({Route.to(f"topic {number}").lane for number in range(1000)}) == LANES


def test_packed_it_has_its_numbers_and_lets_its_values_go() -> None:
    outgoing = OutgoingBatch(Route.to("a", None, MSGPACK, "zstd"), [bytes(500)] * 3)
    unpacked = unpack(outgoing.pack(7, 5))
    header = unpacked.header
    assert (header.producer, header.producer_sequence, header.count) == (7, 5, 3)
    assert (header.content_type, header.compression) == (MSGPACK, "zstd")
    assert (outgoing.values, outgoing.count) == ([], 3)
    assert outgoing.pack(8, 9) is outgoing.batch  # as it was


def test_one_that_is_distinguished_otherwise_has_no_numbers() -> None:
    header = unpack(OutgoingBatch(ROUTE, [b"x"], numbered=False).pack(7, 5)).header
    assert (header.producer, header.producer_sequence) == (0, 0)


def test_a_record_that_carries_something_may_come_among_others() -> None:
    outgoing = OutgoingBatch(ROUTE, [])
    outgoing.values.append(b"0")  # the short way
    outgoing.add(b"1", columns_of([Meta(key=b"k")]), 1)
    outgoing.values.append(b"2")
    outgoing.values.append(b"3")
    outgoing.add(b"4", columns_of([Meta(key=b"l")]), 1)
    outgoing.values.append(b"5")
    assert unpack(outgoing.pack(1, 0)).keys == (None, b"k", None, None, b"l", None)


def test_what_it_weighs_is_what_its_records_cost() -> None:
    values, columns = [b"", b"xy"], columns_of([None, Meta(key=b"k", headers={"a": "b"})])
    assert batch_cost(values, columns) == 2 * OVERHEAD + 2 + 3
    assert batch_cost(values, None) == 2 * OVERHEAD + 2


class Waiter:
    def done(self) -> bool:
        return False


@given(
    st.lists(st.tuples(st.binary(max_size=3), st.booleans()), min_size=1, max_size=8),
    st.data(),
)
def test_records_can_be_taken_out_as_if_they_had_never_been_there(
    records: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    def filled(kept: list[int]) -> tuple[OutgoingBatch, list[Waiter]]:
        outgoing, waiters = OutgoingBatch(ROUTE, []), []
        for number in kept:
            value, has_key = records[number]
            columns = columns_of([Meta(key=b"%d" % number)]) if has_key else None
            index = outgoing.add(value, columns, batch_cost([value], columns))
            waiters.append(Waiter())
            outgoing.waiters.append([index, waiters[-1]])
        return outgoing, waiters

    every = list(range(len(records)))
    gone = data.draw(st.sets(st.sampled_from(every)))
    outgoing, waiters = filled(every)
    before = outgoing.size
    freed = sum(outgoing.withdraw(waiters[number]) for number in sorted(gone, reverse=data.draw(st.booleans())))
    expected, _ = filled([number for number in every if number not in gone])
    assert outgoing.size == expected.size == before - freed
    assert [index for index, _ in outgoing.waiters] == [index for index, _ in expected.waiters]
    if expected.values:
        assert unpack(outgoing.pack(1, 0)).metas == unpack(expected.pack(1, 0)).metas
    assert outgoing.withdraw(Waiter()) == 0


@given(st.lists(st.tuples(st.binary(max_size=3), st.booleans()), min_size=2, max_size=9))
def test_its_halves_hold_the_same_records_with_the_same_numbers(records: list[tuple[bytes, bool]]) -> None:
    outgoing = OutgoingBatch(ROUTE, [], said=b"said")
    for value, has_key in records:
        index = outgoing.add(value, columns_of([Meta(key=b"k") if has_key else None]), 1)
        outgoing.waiters.append([index, Waiter()])
    waiters = [waiter for _, waiter in outgoing.waiters]
    whole = unpack(outgoing.pack(7, 100))
    halves = outgoing.halves()
    unpacked = [unpack(half.batch or b"") for half in halves]
    assert unpacked[0].values + unpacked[1].values == whole.values
    assert [one.header.producer_sequence for one in unpacked] == [100, 100 + halves[0].count]
    keys = [meta.key for one in unpacked for meta in (one.metas.get(i, Meta()) for i in range(len(one)))]
    assert keys == [b"k" if has_key else None for _, has_key in records]
    told = [(index + (0 if half is halves[0] else halves[0].count), w) for half in halves for index, w in half.waiters]
    assert told == list(enumerate(waiters))
    assert [half.said for half in halves] == [b"said"] * 2


def test_it_says_what_it_is() -> None:
    outgoing = OutgoingBatch(ROUTE, [b"x"])
    assert repr(outgoing) == "<OutgoingBatch of 1 records for 'a', waiting to be sent>"
    outgoing.id = 3
    assert repr(outgoing) == "<OutgoingBatch of 1 records for 'a', under way as 3>"
