"""Subscriptions of remote readers: credit, asking, positions, and readers that do not read."""

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel.core.backend import SLICE
from runnel.core.batch_format import pack, unpack
from runnel.core.position import Position
from runnel.server.native import subscriptions
from runnel.server.native.connection import ROUNDS_PER_FLUSH
from runnel.server.native.subscriptions import MAX_TAKE_RECORDS, SharedFrames
from runnel.server.server import Server
from runnel.testing.clock import JumpingClock
from runnel.wire.binary_messages import ReaderCounts, credit_frame, read_deliver, read_shares, unsubscribe_frame
from runnel.wire.frames import DROPPED, FRAME_HEADER_SIZE, SHARED, FrameDecoder, FrameKind
from runnel.wire.msgpack_messages import SHARED_DELIVER, AtSequence, WirePolicy, read_gap, wire_start
from runnel.wire.wire_batch import MAX_PACKED, WireBatch
from tests.brokers import local_broker
from tests.patience import PATIENCE
from tests.server.native_client import Raw, connected, serving


def delivered(raw: Raw) -> int:
    return sum(kind == FrameKind.DELIVER for kind, *_ in raw.inbox)


async def test_what_is_published_is_delivered_with_its_place(raw: Raw) -> None:
    id = raw.subscribe("t")
    told = await raw.subscribed(id)
    assert (told.eager, told.position, told.is_pattern) == (True, 0, False)
    epoch, _, _ = await raw.published(raw.publish("t", b"one", b"two"))
    got = await raw.deliver(id)
    assert (got.topic, got.epoch, got.offset, got.sequence) == ("t", epoch, 0, 0)
    assert told.epoch == epoch
    assert abs(got.time / 1e6 - datetime.now(UTC).timestamp()) < 60


async def test_what_a_reader_has_not_taken_up_is_its_lag(raw: Raw, server: Server) -> None:
    def now() -> tuple[int, int, int, int]:
        (one,) = server.broker.statistics().subscriptions
        return one.lag, one.delivered, one.expired, one.dropped

    id = raw.subscribe("t")
    await raw.subscribed(id)
    await raw.published(raw.publish("t", b"1", b"2", b"3", b"4", b"5"))
    await raw.values(id, 5)
    assert now() == (5, 0, 0, 0)
    raw.send(credit_frame(id, 10, 1, counts=ReaderCounts(0, 4, 1, 2)))
    await raw.ask("topics")
    assert now() == (1, 1, 1, 2)


async def test_a_reader_that_counts_nothing_has_taken_up_what_was_sent_before_a_credit(
    raw: Raw, server: Server
) -> None:
    id = raw.subscribe("t")
    await raw.subscribed(id)
    await raw.published(raw.publish("t", b"1", b"2"))
    await raw.values(id, 2)
    raw.credit(id, given=10)
    await raw.ask("topics")
    (one,) = server.broker.statistics().subscriptions
    assert (one.lag, one.delivered) == (0, 2)


async def test_an_ask_may_say_how_many_records_it_wants(raw: Raw) -> None:
    id = raw.subscribe("t", buffer=10)
    await raw.subscribed(id)
    await raw.published(raw.publish("t", b"1", b"2", b"3"))
    raw.send(credit_frame(id, 0, ask=True, counts=ReaderCounts(2, 0, 0, 0)))
    assert await raw.values(id, 2) == [b"1", b"2"]
    raw.send(credit_frame(id, 0, ask=True, counts=ReaderCounts(2, 2, 0, 0)))
    assert await raw.values(id, 1) == [b"3"]


async def test_without_credit_nothing_more_is_sent_than_one_frame(raw: Raw) -> None:
    id = raw.subscribe("t", credit=1)
    await raw.subscribed(id)
    for number in range(5):
        await raw.published(raw.publish("t", b"%d" % number))
    await raw.ask("topics")
    assert delivered(raw) == 1
    raw.credit(id, given=1)  # what it owes is more than that
    await raw.ask("topics")
    assert delivered(raw) == 1
    raw.credit(id, given=1000)
    assert await raw.values(id, 5) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_reader_with_bounds_gets_one_take_for_each_time_it_asks(raw: Raw) -> None:
    id = raw.subscribe("t", buffer=10, policy=WirePolicy(kind="drop_newest"))
    assert not (await raw.subscribed(id)).eager
    for number in range(3):
        await raw.published(raw.publish("t", b"%d" % number))
    await raw.ask("topics")
    assert delivered(raw) == 0
    raw.credit(id, ask=True)
    assert await raw.values(id, 3) == [b"0", b"1", b"2"]
    await raw.published(raw.publish("t", b"3"))
    await raw.ask("topics")
    assert delivered(raw) == 0
    raw.credit(id, place=3, ask=True)
    assert await raw.values(id, 1) == [b"3"]


def frame_sizes(raw: Raw) -> list[int]:
    """The bytes of the DELIVER frames that came and were not looked at."""
    return [FRAME_HEADER_SIZE + len(one[4]) for one in raw.inbox if one[0] == FrameKind.DELIVER]


async def test_the_head_of_a_frame_counts_against_the_credit(raw: Raw) -> None:
    credit = 5_000
    id = raw.subscribe("a.topic.with.a.long.name." + 60 * "x", credit=credit)
    await raw.subscribed(id)
    for _ in range(100):
        await raw.published(raw.publish("a.topic.with.a.long.name." + 60 * "x", b""))
    await raw.ask("topics")
    sizes = frame_sizes(raw)
    assert credit <= sum(sizes) < credit + sizes[0]


@pytest.mark.parametrize("asked", [{}, {"buffer": 1_000}, {"policy": WirePolicy(kind="drop_newest")}], ids=str)
@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_large_records_of_this_process_are_sent_no_further_than_credit(asked: Any, pattern: str) -> None:
    broker, credit, count = local_broker(), 64 << 10, 40
    async with serving(broker) as server, connected(server) as raw:
        id = raw.subscribe(pattern, credit=credit, **asked)
        await raw.subscribed(id)
        raw.credit(id, ask=True)
        await broker.topic("t").publish_many([bytes(100_000)] * count)  # one run, of which one frame could be made
        await raw.ask("topics")
        sizes = frame_sizes(raw)
        assert 0 < sum(sizes) < credit + MAX_PACKED + 1_000
        seen = 0
        while seen < count:
            _, _, extra, _, payload = await raw.next(FrameKind.DELIVER, id=id)
            assert len(payload) < MAX_PACKED + 1_000
            assert read_deliver(extra, payload).offset == seen
            seen += len(unpack(read_deliver(extra, payload).batch).values)
            raw.credit(id, FRAME_HEADER_SIZE + len(payload), seen, ask=bool(asked))


async def test_who_asks_before_there_is_anything_gets_it_when_it_comes(raw: Raw) -> None:
    id = raw.subscribe("t", buffer=10)
    await raw.subscribed(id)
    raw.credit(id, ask=True)
    await raw.published(raw.publish("t", b"late"))
    assert await raw.values(id, 1) == [b"late"]


async def test_a_name_keeps_the_place_that_the_reader_confirmed(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data") as broker, serving(broker) as server, connected(server) as raw:
        await raw.published(raw.publish("t", b"0", b"1", b"2", b"3"))
        id = raw.subscribe("t", name="me")
        assert len(await raw.values(id, 4)) == 4
        raw.credit(id, place=1)
        raw.send(unsubscribe_frame(id, place=2))
        await raw.next(FrameKind.END, id=id)
        again = raw.subscribe("t", name="me")
        assert (await raw.subscribed(again)).position == 2
        assert await raw.values(again, 2) == [b"2", b"3"]


async def test_a_reader_that_comes_back_goes_on_where_it_stood_and_not_where_its_name_does(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data") as broker, serving(broker) as server:
        async with connected(server) as raw:
            epoch, _, _ = await raw.published(raw.publish("t", b"0", b"1", b"2", b"3"))
            id = raw.subscribe("t", name="me")
            await raw.values(id, 4)
            raw.credit(id, place=1)
        async with connected(server) as raw:
            id = raw.subscribe("t", name="me", start=wire_start(Position(epoch, 3)), resume=True)
            assert await raw.values(id, 1) == [b"3"]


async def test_a_reader_of_a_pattern_comes_back_by_its_sequence(raw: Raw) -> None:
    for topic in ("a.x", "a.y", "a.x"):
        await raw.published(raw.publish(topic, topic.encode(), b"more"))
    id = raw.subscribe("a.*", start="earliest")
    assert (await raw.subscribed(id)).is_pattern
    got = [await raw.deliver(id) for _ in range(3)]
    assert [one.topic for one in got] == ["a.x", "a.y", "a.x"]
    back = raw.subscribe("a.*", start=wire_start(AtSequence(got[1].sequence)), resume=True)
    assert await raw.values(back, 4) == [b"a.y", b"more", b"a.x", b"more"]


async def test_several_are_one_subscription_by_sequence_and_a_name_joins_with_its_topic(raw: Raw) -> None:
    await raw.published(raw.publish("a", b"before"))
    id = raw.subscribe("a b.* later", several=True)
    told = await raw.subscribed(id)
    assert (told.is_pattern, told.position, told.epoch) == (True, 1, None)
    assert await raw.ask("topics") == ["a"]
    for topic in ("a", "c", "b.x", "later", "a"):
        await raw.published(raw.publish(topic, topic.encode()))
    got = [await raw.deliver(id) for _ in range(4)]
    assert [(one.topic, one.sequence) for one in got] == [("a", 1), ("b.x", 3), ("later", 4), ("a", 5)]
    back = raw.subscribe("a b.* later", several=True, start=wire_start(AtSequence(4)), resume=True)
    assert await raw.values(back, 2) == [b"later", b"a"]


async def test_one_name_of_several_is_read_by_sequence_and_without_it_a_space_is_no_name(raw: Raw) -> None:
    id = raw.subscribe("t", several=True)
    assert (await raw.subscribed(id)).is_pattern
    assert await raw.ask("topics") == []
    assert (await raw.error(raw.subscribe("a b"))).code == "invalid_pattern"
    assert (await raw.error(raw.subscribe("a  b", several=True))).code == "invalid_pattern"
    assert (await raw.error(raw.subscribe("a b", several=True, start=3))).code == "invalid_option"


async def test_a_subscription_ends_before_the_offset_that_was_asked_for(raw: Raw) -> None:
    await raw.published(raw.publish("t", *(b"%d" % number for number in range(10))))
    id = raw.subscribe("t", start=2, until=5)
    assert await raw.values(id, 3) == [b"2", b"3", b"4"]
    await raw.next(FrameKind.END, id=id)
    assert (await raw.error(raw.subscribe("t", until=11))).code == "offset_out_of_range"


async def test_one_that_is_asked_to_finish_ends_after_what_was_published(raw: Raw) -> None:
    await raw.published(raw.publish("t", b"0", b"1"))
    id = raw.subscribe("t", start="earliest", credit=1)
    await raw.subscribed(id)
    await raw.published(raw.publish("t", b"2"))
    assert await raw.ask("finish", subscription=id) is None
    await raw.published(raw.publish("t", b"too late"))
    raw.credit(id, given=1000)
    assert await raw.values(id, 3) == [b"0", b"1", b"2"]
    await raw.next(FrameKind.END, id=id)
    assert not delivered(raw)
    assert await raw.ask("finish", subscription=id) is None, "one that has ended is left alone"


async def test_a_pattern_that_is_asked_to_finish_ends_after_what_was_published(raw: Raw) -> None:
    id = raw.subscribe("a b", several=True, start="earliest", credit=1)
    await raw.subscribed(id)
    for topic in ("a", "b", "c"):
        await raw.published(raw.publish(topic, topic.encode()))
    await raw.ask("finish", subscription=id)
    await raw.published(raw.publish("a", b"too late"))
    raw.credit(id, given=1000)
    assert await raw.values(id, 2) == [b"a", b"b"]
    await raw.next(FrameKind.END, id=id)


@pytest.mark.parametrize("start", ["earliest", 1, {"time": (datetime.now(UTC) - timedelta(days=1)).isoformat()}])
async def test_starts_are_what_they_are_in_process(raw: Raw, start: object) -> None:
    await raw.published(raw.publish("t", b"0", b"1", b"2"))
    id = raw.subscribe("t", start=start)
    expected = [b"1", b"2"] if start == 1 else [b"0", b"1", b"2"]
    assert await raw.values(id, len(expected)) == expected


async def test_a_start_that_means_nothing_breaks_the_protocol(raw: Raw) -> None:
    raw.subscribe("t", start={"moon": "full"})
    assert "start" in str(await raw.error())
    await raw.eof()


async def test_options_of_groups_mean_nothing_alone(raw: Raw) -> None:
    assert (await raw.error(raw.subscribe("t", prefetch=5))).code == "invalid_option"
    assert (await raw.error(raw.subscribe("t", max_deliver=5))).code == "invalid_option"


async def test_dropped_records_are_shown_to_those_who_ask(raw: Raw) -> None:
    id = raw.subscribe("t", buffer=1, drops=True)
    await raw.subscribed(id)
    for value in (b"0", b"1"):
        await raw.published(raw.publish("t", value))
    raw.credit(id, ask=True)
    _, flags, extra, _, payload = await raw.next(FrameKind.DELIVER, id=id)
    assert flags == DROPPED
    assert unpack(read_deliver(extra, payload).batch).values == (b"0",)
    _, flags, extra, _, payload = await raw.next(FrameKind.DELIVER, id=id)
    assert flags == 0
    assert unpack(read_deliver(extra, payload).batch).values == (b"1",)


async def test_all_dropped_records_are_shown_also_if_there_are_many_at_once() -> None:
    broker = local_broker()
    async with serving(broker, high_water=64 << 10) as server, connected(server) as raw:
        id = raw.subscribe("t", buffer=10, drops=True)
        await raw.subscribed(id)
        for number in range(2_000):
            broker.topic("t").publish_nowait(b"%d" % number + bytes(1_000))
        raw.credit(id, ask=True)
        async with asyncio.timeout(PATIENCE):
            shown = [(await raw.deliver(id)).offset for _ in range(1_990)]
        assert shown == [*range(1_990)]


async def test_dropped_records_that_are_too_many_to_be_shown_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_DROP_BYTES", 10_000)
    broker = local_broker()
    async with serving(broker) as server, connected(server) as raw:
        id = raw.subscribe("t", buffer=10, drops=True)
        await raw.subscribed(id)
        for _ in range(100):
            broker.topic("t").publish_nowait(bytes(1_000))
        raw.credit(id, ask=True)
        *_, payload = await raw.next(FrameKind.GAP, id=id)
        gap, unshown = read_gap(payload)
        shown = sum(one[1] == DROPPED for one in raw.inbox if one[0] == FrameKind.DELIVER)
        assert (gap.count, shown > 5, shown + unshown) == (90, True, 90)


async def test_a_frozen_reader_holds_its_bound_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data") as broker, serving(broker, high_water=256 << 10) as server:
        async with connected(server) as frozen, connected(server) as raw:
            id = frozen.subscribe("t", credit=1 << 30)
            await frozen.subscribed(id)
            other = raw.subscribe("t", credit=1 << 30)
            await raw.subscribed(other)
            one, batches = bytes(1000), 150  # 15 MB: more than the system's own buffers take
            for number in range(batches):
                await raw.published(raw.publish("t", number.to_bytes(2), *[one] * 99))
                assert len(await raw.values(other, 100)) == 100
            about = next(each for each in await raw.ask("connections") if each["connection"] == 1)
            assert 256 << 10 <= about["unsent_bytes"] <= (256 << 10) + 110_000
            assert about["receive_bytes"] <= 256 << 10
            found = await frozen.values(id, batches * 100)
            assert [int.from_bytes(value) for value in found[::100]] == [*range(batches)]


async def test_ten_readers_are_sent_the_same_bytes(server: Server, raw: Raw) -> None:
    ids = [raw.subscribe("t") for _ in range(10)]
    for id in ids:
        await raw.subscribed(id)
    await server.broker.topic("t").publish_many([b"one", b"two"])
    batches = {(await raw.deliver(id)).batch for id in ids}
    assert len(batches) == 1


async def test_a_reader_that_asked_is_not_forgotten_when_all_that_was_there_had_expired() -> None:
    clock = JumpingClock()
    async with serving(local_broker(clock=clock)) as server, connected(server) as raw:
        await server.broker.topic("t").publish_many([b"old"] * 3, expires=1)
        await clock.advance(2)
        id = raw.subscribe("t", buffer=10, start="earliest")
        await raw.subscribed(id)
        raw.credit(id, ask=True)
        await raw.ask("topics")
        await server.broker.publish("t", b"new")
        assert await raw.values(id, 1) == [b"new"]


async def test_very_many_expired_records_are_passed_over_a_few_at_a_time() -> None:
    clock = JumpingClock()
    async with serving(local_broker(clock=clock)) as server, connected(server) as raw:
        topic = server.broker.topic("t", retention_count=1_000_000)
        for _ in range(12):
            await topic.publish_many([b""] * 65_536, expires=1)
        await clock.advance(2)
        await topic.publish(b"new")
        id = raw.subscribe("t", start="earliest", policy=WirePolicy(kind="disconnect"), buffer=1_000_000)
        await raw.subscribed(id)
        turns: list[int] = []
        looking = asyncio.ensure_future(count_takes(server, turns))
        raw.credit(id, ask=True)
        assert await raw.values(id, 1) == [b"new"]
        looking.cancel()
        assert max(turns) <= ROUNDS_PER_FLUSH * (MAX_TAKE_RECORDS + SLICE)


async def count_takes(server: Server, turns: list[int]) -> None:
    """Note how many records went by in each turn of the loop."""
    before = 0
    while True:
        (one,) = server.broker.statistics().subscriptions
        turns.append(one.expired - before)
        before = one.expired
        await asyncio.sleep(0)


# -- frames for several subscriptions ---------------------------------------------------------------------------


class Readers:
    """The subscriptions of one client, some of which are sent the same frames."""

    def __init__(self, raw: Raw, credit: int) -> None:
        self.raw, self.credit = raw, credit
        self.seen: dict[int, list[bytes]] = {}
        self.owed: dict[int, int] = {}  # bytes that were received and not given back
        self.frames = self.shared = 0

    async def subscribe(self, start: int) -> None:
        id = self.raw.subscribe("t", start=start, credit=self.credit)
        await self.raw.subscribed(id)
        self.seen[id], self.owed[id] = [], 0

    async def receive(self, rng: random.Random) -> None:
        """Take one DELIVER, and now and then give some of the readers their credit back."""
        _, flags, extra, first, payload = await self.raw.next(FrameKind.DELIVER)
        others: Sequence[int] = ()
        rest: bytes | memoryview = payload
        if flags & SHARED:
            others, rest = read_shares(payload)
        self.frames += 1
        self.shared += bool(others)
        for id in (first, *others):
            assert self.owed[id] < self.credit, "it was sent more than its credit"
            self.owed[id] += FRAME_HEADER_SIZE + len(rest)
            self.seen[id] += unpack(read_deliver(extra, rest).batch).values
        for id, owed in self.owed.items():
            if owed and rng.random() < 0.3:
                self.raw.credit(id, given=owed)
                self.owed[id] = 0


async def test_subscriptions_of_a_connection_share_frames_and_each_has_all_in_order(server: Server, raw: Raw) -> None:
    rng, count = random.Random(7), 300
    async with connected(server, features=[SHARED_DELIVER]) as one:
        readers = Readers(one, credit=5_000)
        for _ in range(5):
            await readers.subscribe(0)
        expected = [b"%d" % number for number in range(count)]
        for number in range(0, count, 3):
            raw.publish("t", *expected[number : number + 3])
        async with asyncio.timeout(PATIENCE):
            while any(len(seen) < count for seen in readers.seen.values()):
                await readers.receive(rng)
                for id, owed in readers.owed.items():
                    if owed >= readers.credit and not one.inbox:
                        one.credit(id, given=owed)
                        readers.owed[id] = 0
        assert [*readers.seen.values()] == [expected] * 5
        assert readers.shared > 10


async def test_the_head_of_a_shared_frame_counts_against_the_credit_of_each(server: Server, raw: Raw) -> None:
    topic, credit = "a.topic.with.a.long.name." + 60 * "x", 5_000
    async with connected(server, features=[SHARED_DELIVER]) as one:
        ids = [one.subscribe(topic, credit=credit) for _ in range(3)]
        for id in ids:
            await one.subscribed(id)
        for _ in range(100):
            await raw.published(raw.publish(topic, b""))
        await one.ask("topics")
        received, shared = dict.fromkeys(ids, 0), 0
        for kind, flags, _, first, payload in one.inbox:
            if kind == FrameKind.DELIVER:
                others, rest = read_shares(payload) if flags & SHARED else ((), payload)
                shared += bool(others)
                for id in (first, *others):
                    received[id] += FRAME_HEADER_SIZE + len(rest)
    assert shared > 10
    assert all(credit <= size < credit + 200 for size in received.values())


async def test_a_client_that_does_not_say_so_gets_frames_of_its_own(server: Server, raw: Raw) -> None:
    async with connected(server, features=["unheard_of"]) as one:
        ids = [one.subscribe("t") for _ in range(3)]
        for id in ids:
            await one.subscribed(id)
        await raw.published(raw.publish("t", b"x"))
        for id in ids:
            _, flags, *_ = await one.next(FrameKind.DELIVER, id=id)
            assert flags == 0


class Gathered:
    """What a connection has gathered."""

    writes = 0

    def __init__(self) -> None:
        self.out: list[bytes] = []

    @property
    def gathered(self) -> int:
        return len(self.out)

    def send_batch(self, head: bytes, batch: bytes) -> None:
        self.out += (head, batch)

    def replace(self, place: int, head: bytes) -> None:
        self.out[place] = head

    def frames(self) -> list[tuple[list[int], int]]:
        """The subscriptions of each frame, and its offset."""
        decoder, found = FrameDecoder(), []
        decoder.feed(b"".join(self.out))
        for _, flags, extra, id, payload in decoder.frames():
            others, rest = read_shares(payload) if flags & SHARED else ((), payload)
            found.append(([id, *others], read_deliver(extra, rest).offset))
        return found


def test_a_subscription_joins_only_frames_behind_its_own_last_one() -> None:
    gathered: Any = Gathered()
    shared = SharedFrames(gathered)
    one, two = (WireBatch("t", 1, offset, offset, 0, pack([b"%d" % offset])) for offset in (5, 6))
    for piece in (one, two):
        behind = shared.send(1, gathered.gathered, b"t", piece)
    behind = shared.send(2, 0, b"t", one)
    assert shared.send(2, behind, b"t", two) == 4
    shared.send(3, 2, b"t", one)  # its last frame, a gap say, stands behind the first
    shared.send(3, 6, b"t", two)
    assert gathered.frames() == [([1, 2], 5), ([1, 2], 6), ([3], 5), ([3], 6)]
    shared.send(4, 0, b"t", two)
    assert gathered.frames()[-1] == ([3, 4], 6)
    gathered.out, gathered.writes = [], 1  # what was written can be joined no more
    shared.send(5, 0, b"t", two)
    assert gathered.frames() == [([5], 6)]
