"""Publishing to a topic of a server: what is sent, when, and what comes back."""

import asyncio
import sys
import threading
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from runnel.client.writer import RemoteWriter
from runnel.core.batch_format import JSON, MSGPACK, pack, read_batch_header, unpack
from runnel.core.errors import InvalidOption, InvalidValue, NotSupported, Stalled, ValidationFailed
from runnel.core.position import Position, Span
from runnel.core.publishing import Append, PublishDetails, append_of, append_of_many
from runnel.core.schema import Schema
from tests.client.scripted_server import Caller, Frame, Joined


class Order(msgspec.Struct):
    id: int


async def answered(caller: Caller, work: Any, first: int = 0) -> tuple[Frame, Any]:
    """The frame that `work` makes the client send, and what comes out of it when it is stored at `first`."""
    task = asyncio.ensure_future(work)
    asked = await caller.next()
    caller.publish(asked, first)
    return asked, await task


async def test_a_plain_publish_says_nothing_beside_its_value(joined: Joined) -> None:
    async with joined() as (broker, caller):
        asked, position = await answered(caller, broker.topic("a").publish("é"), 3)
        assert position == Position(1, 3)
        assert asked.publish.topic == "a"
        assert asked.publish.about is None
        assert asked.values == ("é".encode(),)
        header = unpack(asked.publish.batch).header
        assert (header.producer > 0, header.producer_sequence, header.content_type) == (True, 0, 0)


async def test_what_a_record_carries_travels_with_it(joined: Joined) -> None:
    async with joined() as (broker, caller):
        topic = broker.topic("a")
        publishing = topic.publish(b"x", key="k", headers={"h": "v"}, delay=5, expires=9, priority=7)
        broker.backend.link._skew = 1000.0
        before = broker.clock.time()
        asked, _ = await answered(caller, publishing)
        (meta,) = unpack(asked.publish.batch).metas.values()
        assert (meta.key, meta.headers["h"], meta.priority) == (b"k", "v", 7)
        assert meta.due is not None
        assert meta.expires is not None
        assert 1005 <= meta.due - before < 1015  # by the server's clock
        assert 3.5 < meta.expires - meta.due < 4.5


async def test_records_with_and_without_a_key_are_gathered_in_order(joined: Joined) -> None:
    async with joined() as (broker, caller):
        topic, other = broker.topic("a"), broker.topic("a")
        topic.publish_nowait(b"0")
        topic.publish_nowait(b"1")
        other.publish_nowait(b"2", key=b"k")
        topic.publish_nowait(b"3")
        other.publish_nowait(b"4", key=b"l")
        topic.publish_nowait(b"5")
        asked = await caller.next()
        unpacked = unpack(asked.publish.batch)
        assert unpacked.values == (b"0", b"1", b"2", b"3", b"4", b"5")
        assert unpacked.keys == (None, None, b"k", None, b"l", None)


@pytest.mark.parametrize(("encoding", "content_type"), [("json", JSON), ("msgpack", MSGPACK)])
async def test_a_typed_topic_is_encoded_and_checked_here(joined: Joined, encoding: str, content_type: int) -> None:
    async with joined() as (broker, caller):
        topic = broker.topic("a", Order, encoding=encoding)
        asked, _ = await answered(caller, topic.publish(Order(1)))
        assert unpack(asked.publish.batch).header.content_type == content_type
        about = asked.publish.about
        assert about is not None
        assert about.schema == Schema(encoding, msgspec.json.schema(Order))
        assert about.options == {"encoding": encoding}
        with pytest.raises(ValidationFailed, match="id"):
            await topic.publish(Order("x"))  # type: ignore[arg-type]
        with pytest.raises(ValidationFailed):
            topic.publish_nowait(b"{}")


async def test_options_go_with_every_publish(joined: Joined) -> None:
    async with joined() as (broker, caller):
        topic = broker.topic("a", retention_count=5, compression="zstd")
        for first in range(2):
            asked, _ = await answered(caller, topic.publish(bytes(1000)), first)
            assert asked.publish.about is not None
            assert asked.publish.about.options == {"retention_count": 5, "compression": "zstd"}
            assert unpack(asked.publish.batch).header.compression == "zstd"


async def test_what_only_one_publish_says_travels_alone(joined: Joined) -> None:
    async with joined() as (broker, caller):
        topic = broker.topic("a", retention_count=5)
        asked, _ = await answered(caller, topic.publish(b"1", message_id="m"))
        about = asked.publish.about
        assert about is not None
        assert (about.message_id, about.options) == ("m", {"retention_count": 5})
        assert unpack(asked.publish.batch).header.producer == 0  # its id tells it apart
        asked, _ = await answered(caller, topic.publish(b"2", expected_offset=1), 1)
        assert asked.publish.about is not None
        assert asked.publish.about.expected_offset == 1
        asked, span = await answered(caller, topic.publish_many([b"3", b"4"], expected_offset=2), 2)
        assert asked.publish.about is not None
        assert asked.publish.about.expected_offset == 2
        assert span == Span(Position(1, 2), Position(1, 3))
        topic.publish_nowait(b"5", message_id="n")
        asked = await caller.next()
        assert asked.publish.about is not None
        assert asked.publish.about.message_id == "n"


async def test_many_are_one_batch_and_the_callers_own_list_stays_its_own(joined: Joined) -> None:
    async with joined() as (broker, caller):
        values: list[bytes | str] = [b"1", "2", b"3"]
        publishing = asyncio.create_task(broker.topic("a").publish_many(values, keys=[b"k", None, "l"]))
        await asyncio.sleep(0)
        values.clear()
        asked = await caller.next()
        assert asked.values == (b"1", b"2", b"3")
        assert unpack(asked.publish.batch).keys == (b"k", None, b"l")
        caller.publish(asked, 7)
        assert await publishing == Span(Position(1, 7), Position(1, 9))


async def test_publishing_and_waiting_is_the_servers_work(joined: Joined) -> None:
    async with joined(timeout=0.001) as (broker, caller):
        asked, _ = await answered(caller, broker.topic("a").publish_and_wait(b"1", timeout=600.0, key="k"))
        assert asked.publish.about is not None
        assert (asked.publish.about.wait, asked.publish.about.timeout) == (True, 600.0)
        publishing = asyncio.create_task(broker.topic("a").publish_and_wait(b"2", timeout=600.0))
        caller.refuse(await caller.next(), Stalled("a", 1, ["slow"], 2.0))
        with pytest.raises(Stalled) as caught:
            await publishing
        assert caught.value.subscribers == ("slow",)


async def test_a_publish_names_the_subscriptions_that_its_own_task_reads(joined: Joined) -> None:
    class Blocker:
        id, task = 9, asyncio.current_task()

    async with joined() as (broker, caller):
        topic = broker.topic("a")
        await answered(caller, topic.publish(b"0"))
        broker.backend.link.blockers.add(Blocker())
        publishing = asyncio.ensure_future(topic.publish(b"1"))  # another task
        asked = await caller.next()
        assert asked.publish.about is None
        Blocker.task = publishing
        caller.publish(asked, 0)
        await publishing

        async def own() -> None:
            Blocker.task = asyncio.current_task()
            topic.publish_nowait(b"gathered")
            await topic.publish(b"2")

        task = asyncio.create_task(own())
        asked = await caller.next()
        assert (asked.values, asked.publish.about) == ((b"gathered",), None)
        caller.publish(asked, 1)
        asked = await caller.next()
        caller.publish(asked, 2)
        await task
        assert asked.publish.about is not None
        assert asked.publish.about.reads == [9]


async def test_other_threads_publish_too(joined: Joined) -> None:
    async with joined() as (broker, caller):
        topic = broker.topic("a")
        found: list[Any] = []

        def work() -> None:
            topic.publish_nowait(b"nowait")
            found.append(asyncio.run(topic.publish(b"one")))
            found.append(asyncio.run(topic.publish_many([b"2", b"3"])))

        thread = threading.Thread(target=work)
        thread.start()
        values: list[bytes] = []
        while len(values) < 4:
            asked = await caller.next()
            caller.publish(asked, len(values))
            values += asked.values
        await asyncio.to_thread(thread.join)
        assert values == [b"nowait", b"one", b"2", b"3"]
        assert found == [Position(1, 1), Span(Position(1, 2), Position(1, 3))]


async def test_what_cannot_be_published_is_refused_here(joined: Joined) -> None:
    async with joined() as (broker, _):
        topic = broker.topic("a")
        with pytest.raises(InvalidValue):
            await topic.publish(3)
        with pytest.raises(InvalidValue):
            topic.publish_nowait(None)
        with pytest.raises(InvalidOption):
            await topic.publish(b"x", expected_offset=-1)
        with pytest.raises(InvalidOption):
            await topic.publish_many([])


async def test_a_tombstone_is_published_where_the_topic_is_compacted(joined: Joined) -> None:
    async with joined() as (broker, caller):
        asked, _ = await answered(caller, broker.topic("a", compact=True).publish(None, key="k"))
        assert asked.values == (b"",)
        publishing = asyncio.create_task(broker.topic("a").publish(None, key="k"))
        caller.reply(await caller.next_call("describe"), {"options": {"compact": True}})
        asked = await caller.next()
        assert asked.values == (b"",)
        caller.publish(asked, 1)
        await publishing
        publishing = asyncio.create_task(broker.topic("b").publish(None, key="k"))
        caller.reply(await caller.next_call("describe"), None)
        with pytest.raises(InvalidValue):
            await publishing


async def test_what_is_asked_of_a_topic_is_asked_of_the_server(joined: Joined) -> None:
    async with joined() as (broker, caller):
        topic = broker.topic("a", Order, retention_count=5)
        schema = ["json", msgspec.json.schema(Order)]
        noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
        for work, method, args, result in (
            (topic.declare(), "declare", {"topic": "a", "options": {"retention_count": 5}, "schema": schema}, None),
            (topic.trim(5, force=True), "trim", {"topic": "a", "before": 5, "force": True}, 5),
            (topic.trim(noon), "trim", {"topic": "a", "before": {"time": noon.isoformat()}, "force": False}, 2),
            (topic.delete(), "delete", {"topic": "a"}, None),
        ):
            task = asyncio.ensure_future(work)
            asked = await caller.next()
            assert asked.call == (method, args)
            caller.reply(asked, result)
            assert await task == result
        with pytest.raises(InvalidOption, match="zone"):
            await topic.trim(datetime(2026, 1, 1))
        with pytest.raises(InvalidOption, match="offset"):
            await topic.trim(True)


async def test_a_server_in_memory_has_no_durable_topics(joined: Joined) -> None:
    async with joined() as (broker, _):
        broker.backend.link.welcome.durable = False
        with pytest.raises(NotSupported, match="in memory only"):
            broker.topic("a", durable=True)
        broker.backend.link.welcome.durable = True
        with pytest.raises(NotSupported, match="durable=False"):
            broker.topic("a", durable=False, compact=True)
        assert repr(broker.topic("a", Order)) == "<Topic 'a' of Order>"


async def test_members_of_groups_that_others_read_do_not_make_every_publish_slow(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere:
        id, task = 9, asyncio.current_task()

    async with joined() as (broker, caller):
        topic, slow = broker.topic("a"), []
        real = RemoteWriter.append

        async def counted(self: RemoteWriter, append: Append) -> Position:
            slow.append(append.values[0])
            return await real(self, append)

        monkeypatch.setattr(RemoteWriter, "append", counted)
        monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)  # or each may be part of a span
        broker.backend.link.blockers.add(Elsewhere())
        publishing = [asyncio.create_task(topic.publish(b"%d" % number)) for number in range(3)]
        asked = await caller.next()
        caller.publish(asked, 0)
        await asyncio.gather(*publishing)
        assert (asked.values, slow) == ((b"0", b"1", b"2"), [b"0"])


async def test_what_another_thread_published_in_vain_is_counted(
    joined: Joined, caplog: pytest.LogCaptureFixture
) -> None:
    async with joined(max_pending_bytes=1000) as (broker, caller):
        topic = broker.topic("a")
        topic.publish_nowait(bytes(900))
        await asyncio.to_thread(topic.publish_nowait, bytes(900))
        asked = await caller.next()
        assert len(asked.values) == 1
        caller.publish(asked, 0)
        assert broker.connection.failed == 1
        assert "another thread published was refused" in caplog.text


# -- What a writer sends: the batch with what its records carry, and what it has to say of its topic ---------


def writer_of(topic: Any) -> RemoteWriter:
    assert isinstance(topic._writer, RemoteWriter)
    return topic._writer


async def test_a_plain_one_says_nothing_about_itself(remote: Any) -> None:
    writer = writer_of(remote.topic("t"))
    append = append_of(writer, b"a")
    assert writer.details(append) == PublishDetails()
    assert unpack(writer.pack(append)).values == (b"a",)


async def test_types_options_and_expectations_go_along(remote: Any) -> None:
    writer = writer_of(remote.topic("t", Order, retention_count=5))
    append = append_of(writer, Order(1), "k", {"h": "1"}, None, None, 3, "id", 7)
    details = writer.details(append)
    assert (details.message_id, details.expected_offset) == ("id", 7)
    assert details.options == {"retention_count": 5}
    assert details.schema is not None
    header = read_batch_header(writer.pack(append, producer=9, sequence=4))
    assert (header.content_type, header.producer, header.producer_sequence) == (JSON, 9, 4)
    meta = unpack(writer.pack(append)).metas[0]
    assert (meta.key, dict(meta.headers), meta.priority) == (b"k", {"h": "1"}, 3)


async def test_what_came_packed_goes_on_as_it_is(remote: Any) -> None:
    data = pack([b"1", b"2"], producer=3, producer_sequence=4)
    assert writer_of(remote.topic("t")).pack(Append((b"1", b"2"), None, 2, packed=data)) is data


async def test_many_are_taken_as_they_are_when_they_are_published(remote: Any) -> None:
    mine: list[Any] = [b"1", "2"]
    writer = writer_of(remote.topic("t"))
    assert unpack(writer.pack(append_of_many(writer, mine))).values == (b"1", b"2")
