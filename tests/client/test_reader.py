"""Records of a server: each of them once and in order, whatever becomes of the connection."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runnel
from runnel import Broker, Gap, Record
from runnel.wire.binary_messages import read_credit, read_unsubscribe
from runnel.wire.frames import FrameKind
from tests.client.memory_link import JoinedLink, joined, pumped, subscribe
from tests.patience import PATIENCE


async def fill(broker: Broker, count: int, topic: str = "t", first: int = 0) -> None:
    await broker.topic(topic).publish_many([b"%d" % number for number in range(first, first + count)])


async def read(subscription: Any, count: int) -> list[Any]:
    return [await anext(subscription) for _ in range(count)]


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


async def values(subscription: Any, count: int) -> list[bytes]:
    return [record.value for record in await read(subscription, count)]


# -- reading ----------------------------------------------------------------------------------------------------


async def test_records_come_as_they_were_published() -> None:
    async with joined() as (broker, link), subscribe(link) as subscription:
        position = await broker.publish("t", b"a", key="k", headers={"h": "1"})
        record = await anext(subscription)
        assert (record.topic, record.value, record.key, record.headers) == ("t", b"a", b"k", {"h": "1"})
        assert record.position == position
        async with broker.subscribe("t", start="earliest") as here:
            assert await anext(here) == record


async def test_batches_build_no_records_until_a_caller_asks() -> None:
    async with joined() as (broker, link), subscribe(link, start="earliest") as subscription:
        await fill(broker, 10)
        batch = await anext(subscription.batches(max_records=7))
        assert batch.values == tuple(numbers(0, 7))
        assert batch._records is None
        assert [record.offset for record in batch] == list(range(7))


async def test_a_frame_is_unpacked_once_however_it_is_cut_up() -> None:
    async with joined() as (broker, link):
        await fill(broker, 10)
        async with subscribe(link, start="earliest") as subscription:
            batches = subscription.batches(max_records=3)
            assert [len(batch) for batch in await read(batches, 4)] == [3, 3, 3, 1]


async def test_a_pattern_reads_in_the_order_of_sequences() -> None:
    async with joined() as (broker, link), subscribe(link, "a.*") as subscription:
        for topic in ("a.x", "b", "a.y", "a.x"):
            await broker.publish(topic, topic)
        assert [(one.topic, one.sequence) for one in await read(subscription, 3)] == [
            ("a.x", 0),
            ("a.y", 2),
            ("a.x", 3),
        ]


async def test_the_end_of_the_broker_ends_the_reading_after_what_was_published() -> None:
    async with joined() as (broker, link), subscribe(link) as subscription:
        await fill(broker, 2)
        broker.close()
        assert [record.value async for record in subscription] == numbers(0, 2)
        assert "ended" in repr(subscription)


async def test_an_error_of_the_server_is_raised_at_once_and_again() -> None:
    async with joined() as (broker, link), subscribe(link) as subscription:
        await fill(broker, 2)
        await anext(subscription)
        await broker.delete("t")
        await link.settle()
        for _ in range(2):
            with pytest.raises(runnel.TopicDeleted):
                await read(subscription, 5)


async def test_what_the_server_refuses_is_raised_when_it_is_entered() -> None:
    async with joined() as (broker, link):
        await broker.publish("t", b"a")
        subscription = subscribe(link, start=5)
        with pytest.raises(runnel.OffsetOutOfRange, match=r"\[0, 1\), not 5"):
            await subscription.__aenter__()
        assert "not entered" in repr(subscription)
        assert not link._attached


async def test_it_is_misused_as_one_in_process_is() -> None:
    async with joined() as (_, link):
        subscription = subscribe(link)
        with pytest.raises(runnel.SubscriptionMisused, match="enter it first"):
            await anext(subscription)
        async with subscription:
            with pytest.raises(runnel.SubscriptionMisused, match="entered before"):
                await subscription.__aenter__()
            with pytest.raises(runnel.InvalidOption, match="max_records"):
                subscription.batches(max_records=0)
            aiter(subscription)
            with pytest.raises(runnel.SubscriptionMisused, match="one way"):
                subscription.batches()


async def test_what_expires_here_is_not_handed_out() -> None:
    async with joined() as (broker, link), subscribe(link) as subscription:
        await broker.publish("t", b"short", expires=30)
        await broker.publish("t", b"long", expires=3600)
        await link.settle()
        link.ahead = 60.0  # of the server's clock
        assert await values(subscription, 1) == [b"long"]
        assert subscription.expired == 1


# -- gaps -------------------------------------------------------------------------------------------------------


async def test_a_gap_is_reported_with_the_next_record_and_to_the_callback() -> None:
    gaps: list[Gap] = []
    async with joined() as (broker, link), subscribe(link, buffer=2, on_gap=gaps.append) as subscription:
        await fill(broker, 5)
        first, second = await read(subscription, 2)
        assert first.gap == Gap("t", 0, 3, 3, "the subscriber was too slow")
        assert (first.offset, second.gap, gaps) == (3, None, [first.gap])


async def test_a_strict_one_raises_tells_its_gap_and_is_over_on_the_server_too() -> None:
    gaps: list[Gap] = []
    async with (
        joined() as (broker, link),
        subscribe(link, buffer=2, strict=True, name="n", on_gap=gaps.append) as subscription,
    ):
        await fill(broker, 5)
        with pytest.raises(runnel.RecordsMissed, match="'n': missed 3") as caught:
            await anext(subscription)
        assert [caught.value.gap] == gaps == [Gap("t", 0, 3, 3, "the subscriber was too slow")]
        assert broker.statistics().subscriptions == ()


class Order(msgspec.Struct):
    id: int


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_values_are_decoded_as_they_were_written(encoding: str) -> None:
    async with joined() as (broker, link):
        await broker.topic("t", Order, encoding=encoding).publish_many([Order(1), Order(2)])
        async with subscribe(link, type=Order, start="earliest") as subscription:
            assert [record.value for record in await read(subscription, 2)] == [Order(1), Order(2)]


async def test_dropped_records_are_reported_to_the_callback() -> None:
    dropped: list[Record[bytes]] = []
    async with joined() as (broker, link), subscribe(link, buffer=2, on_drop=dropped.append) as subscription:
        for number in range(5):
            await broker.publish("t", b"%d" % number)
        await link.settle()
        assert [(record.offset, record.value) for record in dropped] == [(n, b"%d" % n) for n in range(3)]
        assert await values(subscription, 2) == numbers(3, 5)


# -- flow -------------------------------------------------------------------------------------------------------


def credits(link: JoinedLink) -> list[tuple[int, int | None, bool]]:
    return [read_credit(flags, payload)[:3] for kind, flags, _, payload in link.sent if kind is FrameKind.CREDIT]


async def test_a_client_that_does_not_read_is_sent_no_more_than_its_credit() -> None:
    async with joined(credit=4096) as (broker, link), subscribe(link) as subscription:
        for _ in range(50):
            await broker.publish("t", bytes(1000))
            await link.settle(3)
        assert 4 <= subscription._source._received.records <= 5
        assert await values(subscription, 50) == [bytes(1000)] * 50


async def test_credit_is_given_back_as_it_is_used_up_and_not_for_every_frame() -> None:
    async with joined(credit=40_000) as (broker, link), subscribe(link) as subscription:
        for _ in range(30):
            await broker.publish("t", bytes(1000))
            await link.settle(3)
        cost = subscription._source._received.bytes
        await read(subscription, 30)
        await link.settle()
        given = [given for given, *_ in credits(link)]
        assert (sum(given), len(given)) == (cost, 1)


async def test_with_bounds_it_asks_only_when_its_user_waits() -> None:
    async with joined() as (broker, link), subscribe(link, buffer=100) as subscription:
        await fill(broker, 3)
        await link.settle()
        assert (subscription._source._received.records, credits(link)) == (0, [])
        assert await values(subscription, 2) == numbers(0, 2)
        assert [ask for *_, ask in credits(link)] == [True]
        await anext(subscription)
        await link.settle()
        assert [ask for *_, ask in credits(link)] == [True]


@pytest.mark.parametrize("policy", ["block", "drop_newest"])
async def test_each_record_that_is_done_with_makes_room(policy: str) -> None:
    async with joined() as (broker, link), subscribe(link, buffer=2, policy=policy) as subscription:
        await fill(broker, 2)
        await read(subscription, 1)
        assert broker.statistics().subscriptions[0].lag == 2
        await read(subscription, 1)
        await link.settle()
        assert broker.statistics().subscriptions[0].lag == 1
        assert subscription._source.task is asyncio.current_task()
        assert (subscription._source in link.blockers) == (policy == "block")
    assert not link.blockers


async def test_publish_and_wait_knows_what_the_reader_asked_beyond() -> None:
    async with joined() as (broker, link), subscribe(link) as subscription:
        waiting = asyncio.ensure_future(broker.topic("t").publish_and_wait(b"a"))
        await anext(subscription)
        await link.settle()
        assert not waiting.done()
        asked = asyncio.ensure_future(anext(subscription))
        await link.settle()
        assert waiting.done()
        asked.cancel()
        await asyncio.wait([asked])


async def test_a_batch_that_waits_for_more_never_waits_for_more_than_its_credit() -> None:
    async with joined(credit=4096) as (broker, link), subscribe(link) as subscription:
        for _ in range(20):
            await broker.publish("t", bytes(1000))
            await link.settle(3)
        batch = await asyncio.wait_for(anext(subscription.batches(max_records=20, max_wait=3600)), PATIENCE)
        assert 4 <= len(batch) <= 5


async def test_lag_counts_what_is_at_the_server_on_its_way_and_here() -> None:
    async with joined() as (broker, link), subscribe(link) as subscription:
        link.answers["statistics"] = lambda _: msgspec.to_builtins(
            broker.statistics().subscriptions and {"subscriptions": broker.statistics().subscriptions}
        )
        await fill(broker, 3)
        await link.settle()
        assert subscription._source._received.records == 3
        link.flow = False
        await fill(broker, 4)
        for _ in range(10):
            await asyncio.sleep(0)
        assert subscription._source._received.records == 3
        assert subscription.lag == 7
        link.flow = True
        link.pass_on()
        await read(subscription, 7)
        assert subscription.lag == 0


@pytest.mark.parametrize("name", [None, "n"])
async def test_lag_counts_what_came_over_an_earlier_connection_once(name: str | None) -> None:
    async with joined() as (broker, link), subscribe(link, name=name) as subscription:
        link.answers["statistics"] = lambda _: msgspec.to_builtins({"subscriptions": broker.statistics().subscriptions})
        await fill(broker, 5)
        await link.settle()
        await anext(subscription.batches(max_records=2))
        assert subscription.lag == 3
        link.cut()
        assert subscription.lag == 3
        link.connect()
        await link.settle()
        assert subscription.lag == 3
        await fill(broker, 1, first=5)
        await link.settle()
        assert subscription.lag == 4
        assert len(await anext(subscription.batches(max_records=2))) == 2
        assert subscription.lag == 2


# -- leaving ----------------------------------------------------------------------------------------------------


async def test_leaving_says_what_was_asked_beyond_and_waits_until_the_server_knows() -> None:
    async with joined() as (broker, link):
        await fill(broker, 5)
        async with subscribe(link, name="n") as subscription:
            await read(subscription, 3)
        assert broker.statistics().subscriptions == ()
        ((flags, payload),) = [
            (flags, payload) for kind, flags, _, payload in link.sent if kind is FrameKind.UNSUBSCRIBE
        ]
        assert read_unsubscribe(flags, payload) == 2
        async with subscribe(link, name="n") as subscription:
            assert await values(subscription, 3) == numbers(2, 5)


async def test_leaving_with_a_batch_in_hand_keeps_all_of_it() -> None:
    async with joined() as (broker, link):
        await fill(broker, 5)
        async with subscribe(link, name="n") as subscription:
            await read(subscription.batches(max_records=2), 2)
        async with subscribe(link, name="n") as subscription:
            assert await values(subscription, 1) == [b"2"]


async def test_leaving_while_there_is_no_connection_takes_no_time() -> None:
    async with joined() as (_, link):
        async with subscribe(link):
            link.cut()
        assert not link._attached


async def test_entering_that_is_given_up_leaves_nothing_behind() -> None:
    async with joined(flow=False) as (broker, link):
        entering = asyncio.ensure_future(subscribe(link).__aenter__())
        await link.settle()
        entering.cancel()
        await asyncio.wait([entering])
        assert broker.statistics().subscriptions == ()
        assert not link._attached


async def test_entering_takes_no_longer_than_the_timeout() -> None:
    async with joined(flow=False, timeout=0.01) as (_, link):
        with pytest.raises(runnel.RunnelError) as caught:
            await subscribe(link).__aenter__()
        assert caught.value.code == "no_answer"


# -- connections that are lost ----------------------------------------------------------------------------------


async def test_a_lost_connection_is_gone_on_behind_what_was_received() -> None:
    async with joined() as (broker, link), subscribe(link) as subscription:
        await fill(broker, 4)
        await read(subscription, 1)
        link.cut()
        await fill(broker, 3, first=4)
        link.connect()
        assert await values(subscription, 6) == numbers(1, 7)


async def test_a_waiter_gets_later_records_when_the_connection_is_lost() -> None:
    for options in ({}, {"buffer": 10}, {"policy": "block", "buffer": 10}, {"name": "n"}):
        async with joined() as (broker, link), subscribe(link, **options) as subscription:
            waiting = asyncio.ensure_future(anext(subscription))
            await link.settle()
            link.cut()
            await broker.publish("t", b"later")
            link.connect()
            assert (await waiting).value == b"later"


async def test_a_topic_that_was_removed_without_publishes_continues_as_the_one_that_followed_it() -> None:
    async with joined() as (broker, link), subscribe(link) as subscription:
        for number in range(3):
            link.cut()
            assert await broker.topics() == (["t"] if number else []), "nothing was in it, and nobody there"
            await broker.publish("t", b"%d" % number)
            link.connect()
            assert (await asyncio.wait_for(anext(subscription), PATIENCE)).value == b"%d" % number


async def test_an_empty_topic_of_another_journal_is_another_one() -> None:
    async with joined() as (broker, link), subscribe(link) as subscription:
        link.cut()
        subscription._source._origin = "of a server before"
        await broker.publish("t", b"of other people")
        link.connect()
        with pytest.raises(runnel.TopicDeleted):
            await asyncio.wait_for(anext(subscription), PATIENCE)


async def test_a_name_is_never_ahead_of_its_user_after_a_lost_connection() -> None:
    async with joined() as (broker, link):
        await fill(broker, 6)
        async with subscribe(link, name="n") as subscription:
            await read(subscription, 2)
            await link.settle()
            link.cut()
            link.connect()
            await link.settle()
            link.cut()  # and this client is never seen again
            assert await values(subscription, 4) == numbers(2, 6), "what is here is still read"
        async with broker.subscribe("t", name="n") as again:
            assert await values(again, 1) == [b"1"]


async def test_a_topic_that_was_made_anew_meanwhile_was_deleted() -> None:
    async with joined() as (broker, link), subscribe(link) as subscription:
        await fill(broker, 2)
        await anext(subscription)
        link.cut()
        await broker.delete("t")
        await broker.publish("t", b"new")
        link.connect()
        await link.settle()
        with pytest.raises(runnel.TopicDeleted):
            await read(subscription, 2)
        assert broker.statistics().subscriptions == ()


@pytest.mark.parametrize("name", [None, "n"])
async def test_a_pattern_does_not_take_the_sequences_of_another_journal_for_its_own(name: str | None) -> None:
    async with joined() as (broker, link), subscribe(link, "t.>", name=name) as subscription:
        await fill(broker, 2, "t.a")
        await anext(subscription)
        link.cut()
        link.welcome = msgspec.structs.replace(link.welcome, journal="another")
        link.connect()
        assert link.kinds == [FrameKind.SUBSCRIBE], "a place that means nothing there must not be kept there"
        with pytest.raises(runnel.TopicDeleted):
            await read(subscription, 2)


async def test_a_gap_that_arrived_is_reported_once_though_the_connection_was_lost_behind_it() -> None:
    async with joined() as (broker, link):
        topic = broker.topic("t", retention_count=3)
        await topic.publish_many(numbers(0, 5))
        async with subscribe(link, start=0, name="n") as subscription:
            await link.settle()
            link.cut()
            link.connect()
            await link.settle()
            records = await read(subscription, 3)
            assert [(one.value, one.gap and one.gap.count) for one in records] == [
                (b"2", 2),
                (b"3", None),
                (b"4", None),
            ]


async def test_the_own_ghost_of_a_lost_connection_is_waited_for() -> None:
    async with joined() as (broker, link), subscribe(link, name="n") as subscription:
        link.cut()
        async with broker.subscribe("t", name="n"):  # stands for the server's memory of the lost connection
            link.connect()
            await link.settle()
        await broker.publish("t", b"a")
        assert await asyncio.wait_for(values(subscription, 1), PATIENCE) == [b"a"]


async def test_a_client_that_gives_up_gives_its_readers_the_reason() -> None:
    async with joined() as (_, link), subscribe(link) as subscription:
        waiting = asyncio.ensure_future(anext(subscription))
        await link.settle()
        link.cut()
        link.close(runnel.RunnelError("no more"))
        with pytest.raises(runnel.RunnelError, match="no more"):
            await waiting


# -- whatever happens -------------------------------------------------------------------------------------------


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 40)),
        st.tuples(st.just("pass"), st.integers(1, 3000)),
        st.tuples(st.just("cut"), st.just(0)),
        st.tuples(st.just("read"), st.integers(1, 30)),
        st.tuples(st.just("turns"), st.integers(1, 5)),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(
    steps=STEPS,
    credit=st.integers(64, 5000),
    limit=st.integers(1, 20),
    options=st.sampled_from(
        [
            {},
            {"name": "n"},
            {"buffer": 10_000},
            {"buffer": 10_000, "policy": "drop_newest"},
            {"name": "n", "buffer": 10_000},
        ]
    ),
    pattern=st.sampled_from(["t.a", "t.*"]),
    by=st.sampled_from(["record", "batch"]),
)
def test_every_record_comes_once_and_in_order(
    steps: list[tuple[str, int]], credit: int, limit: int, options: dict[str, Any], pattern: str, by: str
) -> None:
    asyncio.run(cut_to_pieces(steps, credit, limit, options, pattern, by))


async def cut_to_pieces(
    steps: list[tuple[str, int]], credit: int, limit: int, options: dict[str, Any], pattern: str, by: str
) -> None:
    topics = ["t.a"] if pattern == "t.a" else ["t.a", "t.b", "other"]
    published: list[tuple[str, int]] = []
    seen: list[tuple[str, int]] = []
    async with joined(flow=False, credit=credit) as (broker, link):
        subscription = subscribe(link, pattern, start="earliest", **options)
        await pumped(link, subscription.__aenter__())
        items = aiter(subscription) if by == "record" else subscription.batches(max_records=limit)
        waiting: asyncio.Future[Any] | None = None

        async def more(count: int) -> None:
            nonlocal waiting
            for _ in range(count):
                waiting = waiting or asyncio.ensure_future(anext(items))
                for _ in range(3):
                    await asyncio.sleep(0)
                if not waiting.done():
                    return
                found = waiting.result()
                waiting = None
                for record in [found] if by == "record" else found:
                    assert record.gap is None
                    seen.append((record.topic, record.offset))

        for step, amount in steps:
            if step == "publish":
                topic = topics[amount % len(topics)]
                span = await broker.topic(topic).publish_many([bytes(amount)] * amount)
                if topic != "other":
                    published += [(topic, offset) for offset in range(span.first.offset, span.last.offset + 1)]
            elif step == "pass":
                link.pass_on(amount)
            elif step == "cut":
                link.cut()
                link.connect()
            elif step == "read":
                await more(amount)
            else:
                for _ in range(amount):
                    await asyncio.sleep(0)
        for _ in range(500):
            if len(seen) >= len(published):
                break
            link.pass_on()
            await more(50)
        assert seen == published
        if waiting is not None:
            waiting.cancel()
            await asyncio.wait([waiting])
        await pumped(link, subscription.__aexit__(None, None, None))
