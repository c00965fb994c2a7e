"""What a cluster does in its own offsets and times: order, resuming, groups, delay, transactions."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

import runnel
from runnel import Broker, Record
from runnel.cluster.member import SettledNote
from runnel.wire.nats import Message
from tests.cluster.nodes import Nodes
from tests.cluster.single import new_stream, open_cluster
from tests.patience import PATIENCE

T = TypeVar("T")


async def soon(awaitable: Awaitable[T]) -> T:
    return await asyncio.wait_for(awaitable, PATIENCE)


async def read(subscription: AsyncIterator[Record[bytes]], count: int) -> list[Record[bytes]]:
    return [await soon(anext(subscription)) for _ in range(count)]


def values(records: list[Record[bytes]]) -> list[bytes]:
    return [record.value for record in records]


async def test_records_with_many_keys_published_together_are_read_in_their_order() -> None:
    async with open_cluster() as broker:
        topic = broker.topic("t")
        sent = [b"%d" % number for number in range(200)]
        span = await topic.publish_many(sent, keys=[b"k%d" % (number % 17) for number in range(200)])
        async with topic.subscribe(start="earliest") as records:
            found = await read(records, 200)
        assert values(found) == sent
        assert [record.offset for record in found] == list(range(span.first.offset, span.last.offset + 1))
        assert [record.sequence for record in found] == [record.offset for record in found]
        async with topic.subscribe(start=span.first.offset + 77) as records:
            assert (await read(records, 1))[0].value == b"77"


async def test_publishes_of_one_loop_iteration_share_a_message_and_keep_their_order() -> None:
    async with open_cluster() as broker:
        found = await asyncio.gather(*(broker.publish("t", b"%d" % number) for number in range(500)))
        assert [position.offset for position in found] == sorted({position.offset for position in found})
        assert await broker.backend.js.last_sequence() < 20
        async with broker.subscribe("t", start="earliest") as records:
            assert values(await read(records, 500)) == [b"%d" % number for number in range(500)]


async def test_a_repeated_message_id_and_a_wrong_expected_offset_store_nothing() -> None:
    async with open_cluster() as broker:
        first = await broker.publish("t", b"a", message_id="1", expected_offset=0)
        assert await broker.publish("t", b"a", message_id="1") == first
        with pytest.raises(runnel.OffsetConflict):
            await broker.publish("t", b"b", expected_offset=0)
        second = await broker.publish("t", b"b", expected_offset=first.offset + 1)
        assert second > first
        (bounds,) = await broker.bounds("t")
        assert (bounds.first, bounds.end) == (first.offset, second.offset + 1)


async def test_a_name_resumes_behind_what_was_processed_in_another_process() -> None:
    stream = new_stream()
    async with open_cluster(stream) as broker:
        await broker.topic("t").publish_many([b"%d" % number for number in range(10)], keys=[b"a", b"b"] * 5)
        async with broker.subscribe("t", name="me") as records:
            await read(records, 4)  # the fourth is in hand
    async with open_cluster(stream) as broker:
        async with broker.subscribe("t", name="me") as records:
            assert values(await read(records, 7)) == [b"%d" % number for number in range(3, 10)]
        with pytest.raises(runnel.InvalidOption, match="holds a position on 't'"):
            async with broker.subscribe("u", name="me"):
                pass


async def test_a_time_and_a_pattern_start_where_they_should() -> None:
    async with open_cluster() as broker:
        await broker.publish("a.x", b"old")
        async with broker.subscribe("a.x", start="earliest") as records:
            (old,) = await read(records, 1)
        await broker.publish("a.y", b"new")
        async with broker.subscribe("a.*", start=old.time + timedelta(microseconds=1)) as records:
            assert values(await read(records, 1)) == [b"new"]


async def test_a_group_keeps_the_order_of_each_key_over_two_members_and_failures() -> None:
    async with open_cluster() as broker:
        seen: dict[bytes | None, list[bytes]] = {}
        keys = [b"k%d" % (number % 5) for number in range(60)]
        await broker.topic("jobs").publish_many([b"%d" % number for number in range(60)], keys=keys)
        for number in range(60, 80):
            await broker.publish("jobs", b"%d" % number, key=b"k%d" % (number % 5))
        left = 80

        async def work(member: str) -> None:
            nonlocal left
            async with broker.subscribe("jobs", group="g", name=member, prefetch=8) as deliveries:
                async for delivery in deliveries:
                    if int(delivery.value) % 7 == 0 and delivery.attempt == 1:
                        await delivery.nack(delay=0)
                        continue
                    seen.setdefault(delivery.key, []).append(delivery.value)
                    await delivery.ack()
                    left -= 1
                    if not left:
                        done.set()

        done = asyncio.Event()
        members = [asyncio.create_task(work(name)) for name in ("one", "two")]
        await soon(done.wait())
        for task in members:
            task.cancel()
        await asyncio.gather(*members, return_exceptions=True)
        for key, found in seen.items():
            assert [int(one) for one in found] == [number for number in range(80) if b"k%d" % (number % 5) == key]


async def test_what_a_member_did_not_settle_goes_to_the_next_and_what_it_settled_does_not() -> None:
    async with open_cluster() as broker:
        await broker.topic("jobs").publish_many([b"0", b"1", b"2", b"3"])  # one message
        async with broker.subscribe("jobs", group="g") as deliveries:
            one, two, _three = [await soon(anext(deliveries)) for _ in range(3)]
            await one.ack()
            await two.ack(durable=True)
        async with broker.subscribe("jobs", group="g") as deliveries:
            found = [await soon(anext(deliveries)) for _ in range(2)]
            assert [(delivery.value, delivery.attempt) for delivery in found] == [(b"2", 2), (b"3", 1)]
            await found[0].reject("no good")
            await found[1].ack(durable=True)
        async with broker.subscribe("dead-letters.g", start="earliest") as letters:
            (letter,) = await read(letters, 1)
        assert (letter.value, letter.headers["runnel-dead-letter-reason"]) == (b"2", "no good")


async def test_a_lease_that_ends_gives_the_record_to_another_member() -> None:
    async with open_cluster() as broker:
        await broker.publish("jobs", b"a")
        async with broker.subscribe("jobs", group="g", ack_wait=1.0) as slow:
            held = await soon(anext(slow))
            async with broker.subscribe("jobs", group="g") as other:
                again = await soon(anext(other))
                assert (again.value, again.attempt) == (b"a", 2)
                with pytest.raises(runnel.LeaseEnded):
                    await held.ack()
                await again.ack()


async def test_a_delayed_record_comes_when_it_is_due_and_an_expired_one_does_not() -> None:
    async with open_cluster() as broker:
        async with broker.subscribe("t", start="earliest") as records:
            due = datetime.now(UTC) + timedelta(seconds=0.5)
            await broker.publish("t", b"late", delay=0.5)
            await broker.publish("t", b"short", expires=0.001)
            await broker.publish("t", b"now")
            found = {record.value: record for record in await read(records, 2)}
            while b"late" not in found:
                found |= {record.value: record for record in await read(records, 1)}
        assert found[b"late"].time >= due
        assert b"now" in found


async def test_a_transaction_is_there_as_a_whole_and_its_marker_makes_it_happen_once() -> None:
    async with open_cluster() as broker:
        for _ in range(2):
            async with broker.transaction() as tx:
                tx.publish("a", b"1", key=b"k")
                tx.publish("a", b"2")
                tx.publish("b", b"3")
                tx.mark("import", 7)
        assert not tx.applied
        assert await broker.mark("import") == 7
        async with broker.subscribe(">", start="earliest") as records:
            assert values(await read(records, 3)) == [b"1", b"2", b"3"]
        await broker.publish("jobs", b"x")
        async with broker.subscribe("jobs", group="g") as deliveries:
            with pytest.raises(runnel.NotSupported, match="mark"):
                async with broker.transaction() as tx:
                    tx.ack(await soon(anext(deliveries)))


async def test_a_typed_topic_is_validated_in_every_process() -> None:
    class Order(msgspec.Struct):
        id: int

    stream = new_stream()
    async with open_cluster(stream) as broker:
        await broker.topic("orders", Order).publish(Order(1))
        async with broker.topic("orders", Order).subscribe(start="earliest") as orders:
            assert (await soon(anext(orders))).value == Order(1)
    async with open_cluster(stream) as broker:
        with pytest.raises(runnel.ValidationFailed):
            await broker.publish("orders", b'{"id": "one"}')


async def test_what_a_cluster_cannot_do_is_refused_with_the_reason() -> None:
    async with open_cluster() as broker:
        unkept: list[dict[str, Any]] = [
            {"retention_bytes": 9},
            {"retention_count": 9},
            {"compact": True},
            {"durable": False},
        ]
        for options in unkept:
            with pytest.raises(runnel.NotSupported):
                broker.topic("t", **options)
        unread: list[dict[str, Any]] = [{"policy": "block"}, {"name": "n", "hold": True}]
        for options in unread:
            with pytest.raises(runnel.NotSupported):
                broker.subscribe("t", **options)
        with pytest.raises(runnel.NotSupported, match="priority"):
            await broker.publish("t", b"x", priority=3)
        with pytest.raises(runnel.NotSupported):
            broker.producer("p")


async def test_opening_warns_where_writes_are_not_synced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = Nodes(tmp_path, 1, sync="").start()
    try:
        with caplog.at_level(logging.WARNING, "runnel"):
            async with runnel.open(nodes.url, monitor=nodes.nodes[0].monitor) as broker:
                assert broker.backend.fsync == "interval"
        assert "sync_interval: always" in caplog.text
        caplog.clear()
    finally:
        nodes.stop()


async def test_statistics_and_groups_answer_on_the_event_loop_too() -> None:
    async with open_cluster() as broker:
        await broker.publish("jobs", b"a")
        async with broker.subscribe("jobs", group="g") as deliveries:
            delivery = await soon(anext(deliveries))
            group = broker.group("g", "jobs")
            assert group.statistics().in_flight == 1
            await delivery.ack(durable=True)
            assert group.statistics().lag == 0
            group.reset("earliest")
            assert (await soon(anext(deliveries))).value == b"a"
        assert broker.statistics().topics["jobs"].end > 0


async def _publish_all(broker: Broker, count: int) -> None:
    for number in range(count):
        await broker.publish("t", b"%d" % number)


async def test_a_deleted_topic_ends_its_readers_and_begins_anew() -> None:
    async with open_cluster() as broker:
        await _publish_all(broker, 2)
        async with broker.subscribe("t", start="earliest") as records:
            await read(records, 2)
            await broker.delete("t")
            with pytest.raises(runnel.TopicDeleted):
                await read(records, 1)
        assert await broker.topics() == []
        again = await broker.publish("t", b"new")
        async with broker.subscribe("t", start="earliest") as records:
            (record,) = await read(records, 1)
        assert (record.value, record.position) == (b"new", again)


async def test_a_reply_beyond_the_limit_of_the_cluster_is_refused_and_the_connection_stays() -> None:
    async with open_cluster() as broker, broker.subscribe("ask") as questions:
        asked = asyncio.ensure_future(broker.request("ask", b"all of it", timeout=60))
        question = await soon(anext(questions))
        with pytest.raises(runnel.TooLarge, match="max_payload"):
            await broker.reply(question, bytes(2 << 20))
        await broker.reply(question, b"some of it")
        assert (await soon(asked)).value == b"some of it"
        assert broker.connection.connections == 1


async def test_closing_ends_requests_that_wait_for_their_reply() -> None:
    async with open_cluster() as broker, broker.subscribe("ask") as questions:
        asked = [
            asyncio.ensure_future(one)
            for one in (broker.request("ask", b"?"), broker.request_many("ask", b"?", timeout=60))
        ]
        await soon(anext(questions))
        await soon(anext(questions))
        broker.close()
        for one in asked:
            with pytest.raises(runnel.BrokerClosed):
                await soon(one)


async def test_a_publish_whose_earlier_attempt_is_not_decided_is_repeated_until_it_is() -> None:
    async with open_cluster() as broker:
        link, calls = broker.backend.link, list[str]()
        start_request = link.start_request

        def under_way(subject: str, payload: bytes, head: bytes | None = None) -> asyncio.Future[Message]:
            answer: asyncio.Future[Message] = start_request(subject, payload, head)
            if ".t." not in subject or len(calls) == 2:
                return answer
            calls.append(subject)
            error = {"code": 409, "err_code": 10158, "description": "duplicate message id is in process"}
            refused: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            refused.set_result(Message(1, subject, None, None, json.dumps({"error": error}).encode()))
            return refused

        link.start_request = under_way
        at = await broker.publish("t", b"x")
        assert len(calls) == 2
        async with broker.subscribe("t", start="earliest") as records:
            assert [record.position for record in await read(records, 1)] == [at]
        assert broker.statistics().topics["t"].published == 1


async def test_a_durable_ack_whose_answer_was_lost_counts_though_others_have_noted_since() -> None:
    stream = new_stream()
    async with open_cluster(stream) as one, open_cluster(stream) as two:
        async with one.subscribe("jobs", group="g", prefetch=1, ack_wait=1000) as deliveries:
            await one.topic("jobs").publish_many([b"0", b"1", b"2"])
            first, js = await soon(anext(deliveries)), one.backend.js
            (member,) = one.backend._group("g", "jobs").members
            (held,) = member._held.values()
            subject, store = member.consumers.note_subject(held.sequence), js.store

            async def store_and_forget(to: str, payload: bytes, headers: dict[str, str]) -> Any:
                """Store it, let another member claim the message, and answer as a cluster that forgot the id."""
                await store(to, payload, headers)
                noted = await two.backend.js.last(subject)
                kept = msgspec.msgpack.decode(noted.payload, type=SettledNote)
                kept.writes.append("other")
                await two.backend.js.store(
                    subject, msgspec.msgpack.encode(kept), {"Nats-Expected-Last-Subject-Sequence": str(noted.sequence)}
                )
                raise runnel.ClusterRefused("a publish", 400, 10071, "wrong last sequence")

            js.store = store_and_forget
            await soon(first.ack(durable=True))  # it is settled, as the other member knows
            js.store = store
            second = await soon(anext(deliveries))
            with pytest.raises(runnel.LeaseEnded):
                await soon(second.ack(durable=True))


async def test_a_message_is_held_while_the_durable_ack_of_its_last_record_is_stored() -> None:
    async with open_cluster() as broker, broker.subscribe("jobs", group="g", ack_wait=1) as deliveries:
        await broker.publish("jobs", b"x")
        job, js = await soon(anext(deliveries)), broker.backend.js
        store, go_on = js.store, asyncio.Event()

        async def late(*arguments: Any) -> Any:
            await go_on.wait()
            return await store(*arguments)

        js.store = late
        acked = asyncio.ensure_future(job.ack(durable=True))
        await asyncio.sleep(2.5)  # longer than the cluster waits for a sign of life
        go_on.set()
        await soon(acked)
        js.store = store
        (group,) = (await soon(broker.backend.snapshot())).groups
        assert (group.lag, group.in_flight, group.redelivered) == (0, 0, 0)


async def test_what_an_earlier_member_settled_is_not_given_out_before_that_is_known() -> None:
    stream = new_stream()
    async with open_cluster(stream) as one, open_cluster(stream) as two:
        async with one.subscribe("jobs", group="g") as deliveries:
            await one.topic("jobs").publish_many([b"0", b"1", b"2"])
            await (await soon(anext(deliveries))).ack(durable=True)
        js, go_on = two.backend.js, asyncio.Event()
        last = js.last

        async def late(subject: str) -> Any:
            await go_on.wait()
            return await last(subject)

        js.last = late
        async with two.subscribe("jobs", group="g") as deliveries:
            await one.publish("jobs", b"3")
            other = await soon(anext(deliveries))
            await other.ack()
            await asyncio.sleep(0)  # it looks for more to give out
            go_on.set()
            rest = [await soon(anext(deliveries)) for _ in range(2)]
            js.last = last
            assert [other.value, *(one.value for one in rest)] == [b"3", b"1", b"2"]
