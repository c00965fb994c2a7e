"""A session of the native listener, over real sockets: hello, publishing, subscribing, settling, goodbye."""

import asyncio
import gc
import logging
import weakref
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runnel
from runnel.broker.group.member import LocalMember
from runnel.core.batch_format import pack, unpack
from runnel.core.errors import (
    BadBatch,
    InvalidName,
    InvalidOption,
    LeaseEnded,
    LimitExceeded,
    ProtocolError,
    RecordsMissed,
    SequenceGap,
    SubscriptionEnded,
    TopicDeleted,
    WouldDeadlock,
)
from runnel.server.native.connection import NativeConnection
from runnel.server.server import Server
from runnel.testing.clock import JumpingClock
from runnel.wire.binary_messages import credit_frame, publish_frame, read_grant, unsubscribe_frame
from runnel.wire.frames import PREFACE, FrameKind, frame
from runnel.wire.msgpack_messages import (
    Goodbye,
    Hello,
    PublishDetails,
    Settlement,
    SettleVerb,
    Subscribe,
    WirePolicy,
    call_payload,
    encode_message,
    read_gap,
    read_lapsed,
    settle_payload,
)
from tests.broker.durable_broker import Disk, open_on
from tests.brokers import local_broker
from tests.patience import PATIENCE
from tests.server.native_client import Raw, connected, serving, until

# -- hello ------------------------------------------------------------------------------------------------------


async def test_a_hello_is_welcomed_with_what_the_server_is(server: Server) -> None:
    async with connected(server) as raw:
        welcome = raw.welcome
        assert welcome is not None
        assert (welcome.version, welcome.durable, welcome.fsync) == (1, False, None)
        assert welcome.journal == server.broker.id
        assert welcome.server == f"runnel {runnel.__version__}"
        assert (welcome.max_frame, welcome.ping) == (server.options.max_frame, 15.0)
        assert "transactions" in welcome.features
        assert abs(welcome.time - server.broker.clock.time()) < 60


async def test_the_welcome_of_a_folder_names_its_journal(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data") as broker:
        async with serving(broker) as server, connected(server) as raw:
            assert raw.welcome is not None
            assert (raw.welcome.durable, raw.welcome.fsync) == (True, "commit")
            assert raw.welcome.journal == broker.id


async def test_each_connection_has_its_own_number(server: Server) -> None:
    async with connected(server) as one, connected(server) as other:
        assert one.welcome is not None
        assert other.welcome is not None
        assert one.welcome.connection != other.welcome.connection


async def test_a_newer_client_is_answered_in_the_servers_version(server: Server) -> None:
    async with connected(server, version=7) as raw:
        assert raw.welcome is not None
        assert raw.welcome.version == 1


async def test_a_version_that_never_was_is_refused(server: Server) -> None:
    async with connected(server, hello=False) as raw:
        with pytest.raises(ProtocolError, match="version 0"):
            await raw.hello(version=0)
        await raw.eof()


async def test_a_hello_may_come_byte_by_byte(server: Server) -> None:
    async with connected(server, hello=False) as raw:
        for byte in PREFACE + frame(FrameKind.HELLO, 0, encode_message(Hello(version=1))):
            raw.send(bytes([byte]))
            await asyncio.sleep(0)
        await raw.next(FrameKind.WELCOME)


@pytest.mark.parametrize("verb", [b"GET / HTTP/1.1\r\n\r\n", b"POST /topics/t HTTP/1.1\r\n\r\n"])
async def test_an_http_request_gets_an_http_answer(server: Server, verb: bytes) -> None:
    async with connected(server, hello=False) as raw:
        raw.send(verb)
        answer = await raw.reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"native listener" in answer


async def test_a_line_of_json_gets_a_line_of_json_that_names_the_right_listener() -> None:
    async with serving(json_port=0) as server, connected(server, hello=False) as raw:
        raw.send(b'{"command": "SUB", "topic": "test"}\n')
        answer = await raw.reader.read()
        assert b'"wrong_listener"' in answer
        assert str(server.listeners[-1].port).encode() in answer


@pytest.mark.parametrize("said", [b"\x16\x03\x01\x02\x00\x01", b"SSH-2.0-OpenSSH\r\n", b"RNL\x02", b"RNX"])
async def test_anything_else_gets_an_error_frame(server: Server, said: bytes) -> None:
    async with connected(server, hello=False) as raw:
        raw.send(said)
        assert isinstance(await raw.error(), ProtocolError)
        await raw.eof()


async def test_what_comes_before_the_hello_is_refused(server: Server) -> None:
    async with connected(server, hello=False) as raw:
        raw.send(PREFACE)
        raw.publish("t", b"too early")
        assert "HELLO" in str(await raw.error())
        await raw.eof()


async def test_a_second_hello_is_refused(raw: Raw) -> None:
    raw.send(frame(FrameKind.HELLO, 0, encode_message(Hello(version=1))))
    assert "second HELLO" in str(await raw.error())


async def test_an_unknown_kind_ends_the_connection_and_no_other(server: Server, raw: Raw) -> None:
    async with connected(server) as other:
        raw.send(frame(99, 1))
        assert isinstance(await raw.error(), ProtocolError)
        await raw.eof()
        assert await other.published(other.publish("t", b"fine"))


async def test_a_ping_is_answered_with_its_own_bytes(raw: Raw) -> None:
    raw.send(frame(FrameKind.PING, 7, b"are you there"))
    assert (await raw.next(FrameKind.PONG))[3:] == (7, b"are you there")


# -- publishing -------------------------------------------------------------------------------------------------


async def test_pipelined_publishes_are_answered_in_order(raw: Raw) -> None:
    ids = [raw.publish("t", b"%d" % number, b"again") for number in range(200)]
    spans = [await raw.published(id) for id in ids]
    assert [(first, last) for _, first, last in spans] == [(2 * at, 2 * at + 1) for at in range(200)]


async def test_a_published_batch_arrives_in_the_very_same_bytes(raw: Raw) -> None:
    subscription = raw.subscribe("t")
    await raw.subscribed(subscription)
    batch = pack([b"one", b"two"])
    raw.publish_batch("t", batch)
    assert (await raw.deliver(subscription)).batch == batch


async def test_a_durable_publish_is_answered_when_it_is_on_disk(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data") as broker:
        async with serving(broker) as server, connected(server) as raw:
            ids = [raw.publish("t", b"%d" % number) for number in range(50)]
            for number, id in enumerate(ids):
                assert (await raw.published(id))[1] == number
    async with runnel.open(tmp_path / "data") as broker, broker.subscribe("t", start="earliest") as records:
        found: list[bytes] = []
        async for batch in records.batches():
            found += batch.values
            if len(found) == 50:
                break
    assert found == [b"%d" % number for number in range(50)]


async def test_what_is_wrong_with_a_publish_is_its_own_trouble(raw: Raw) -> None:
    broken = bytearray(pack([b"damaged on the way"]))
    broken[-1] ^= 1
    bad = raw.publish_batch("t", bytes(broken))
    no_name = raw.publish("not a name!", b"x")
    internal = raw.publish("$runnel.inbox.1", b"x")
    good = raw.publish("t", b"fine")
    assert isinstance(await raw.error(bad), BadBatch)
    assert isinstance(await raw.error(no_name), InvalidName)
    assert isinstance(await raw.error(internal), InvalidName)
    assert (await raw.published(good))[1] == 0


async def test_a_batch_that_is_sent_again_is_stored_once_and_a_hole_is_refused(raw: Raw) -> None:
    one = pack([b"one"], producer=7, producer_sequence=0)
    first = await raw.published(raw.publish_batch("t", one))
    assert await raw.published(raw.publish_batch("t", one)) == first
    hole = raw.publish_batch("t", pack([b"three"], producer=7, producer_sequence=2))
    assert isinstance(await raw.error(hole), SequenceGap)


async def test_a_publish_with_an_expected_offset_and_a_message_id(raw: Raw) -> None:
    await raw.published(raw.publish("t", b"zero", about=PublishDetails(expected_offset=0)))
    wrong = raw.publish("t", b"one", about=PublishDetails(expected_offset=5))
    assert (await raw.error(wrong)).code == "offset_conflict"
    first = await raw.published(raw.publish("t", b"one", about=PublishDetails(message_id="m")))
    assert await raw.published(raw.publish("t", b"one", about=PublishDetails(message_id="m"))) == first


async def test_a_blocked_publish_waits_for_room_and_can_be_taken_back(raw: Raw) -> None:
    subscription = raw.subscribe("t", policy=WirePolicy(kind="block"), buffer=1)
    assert not (await raw.subscribed(subscription)).eager
    await raw.published(raw.publish("t", b"one"))
    waiting = raw.publish("t", b"taken back")
    raw.send(frame(FrameKind.CANCEL, waiting))
    later = raw.publish("t", b"two")
    raw.credit(subscription, ask=True)
    got = await raw.deliver(subscription)
    raw.credit(subscription, place=got.offset + 1, ask=True)
    assert await raw.values(subscription, 1) == [b"two"]
    assert (await raw.published(later))[1] == 1


async def test_a_publish_that_would_wait_for_its_own_reader_is_refused(raw: Raw) -> None:
    subscription = raw.subscribe("t", policy=WirePolicy(kind="block"), buffer=1)
    await raw.subscribed(subscription)
    raw.publish("t", b"one")
    doomed = raw.publish("t", b"two", about=PublishDetails(reads=[subscription]))
    assert isinstance(await raw.error(doomed), WouldDeadlock)


async def test_publish_and_wait_is_answered_when_the_reader_asked_for_more(raw: Raw) -> None:
    subscription = raw.subscribe("t")
    await raw.subscribed(subscription)
    waiting = raw.publish("t", b"one", about=PublishDetails(wait=True, timeout=3600.0))
    got = await raw.deliver(subscription)
    assert not [one for one in raw.inbox if one[0] == FrameKind.PUBLISHED]
    raw.credit(subscription, place=got.offset + 1)
    assert (await raw.published(waiting))[1] == 0


# -- subscribing ------------------------------------------------------------------------------------------------


async def test_a_subscription_that_is_refused_says_why_and_the_connection_goes_on(raw: Raw) -> None:
    bad = raw.subscribe("a..b")
    wrong = raw.subscribe("t", policy=WirePolicy(kind="nonsense"))
    far = raw.subscribe("t", start=99)
    assert (await raw.error(bad)).code == "invalid_pattern"
    assert (await raw.error(wrong)).code == "invalid_option"
    assert (await raw.error(far)).code == "offset_out_of_range"
    fine = raw.subscribe("t", start="earliest")
    assert (await raw.subscribed(fine)).position == 0


async def test_an_id_that_is_in_use_breaks_the_protocol(raw: Raw) -> None:
    subscription = raw.subscribe("t")
    await raw.subscribed(subscription)
    raw._ids -= 1
    raw.subscribe("t")
    assert "in use" in str(await raw.error())


async def test_after_unsubscribing_an_end_comes_and_nothing_else(raw: Raw) -> None:
    subscription = raw.subscribe("t")
    await raw.subscribed(subscription)
    raw.send(unsubscribe_frame(subscription))
    await raw.next(FrameKind.END, id=subscription)
    await raw.published(raw.publish("t", b"unheard"))
    assert not raw.inbox


async def test_a_deleted_topic_ends_its_subscriptions_with_an_error(raw: Raw) -> None:
    subscription = raw.subscribe("t")
    await raw.subscribed(subscription)
    await raw.ask("delete", topic="t")
    assert isinstance(await raw.error(subscription), TopicDeleted)


async def test_a_strict_subscription_ends_with_its_gap(raw: Raw) -> None:
    subscription = raw.subscribe("t", strict=True, buffer=2, policy=WirePolicy(kind="drop_oldest"))
    await raw.subscribed(subscription)
    for value in (b"1", b"2", b"3", b"4"):
        await raw.published(raw.publish("t", value))
    raw.credit(subscription, ask=True)
    error = await raw.error(subscription)
    assert isinstance(error, RecordsMissed)
    assert error.gap.count == 2


async def test_a_gap_comes_before_the_records_behind_it(raw: Raw) -> None:
    subscription = raw.subscribe("t", buffer=2, policy=WirePolicy(kind="drop_oldest"))
    await raw.subscribed(subscription)
    for value in (b"1", b"2", b"3", b"4"):
        await raw.published(raw.publish("t", value))
    raw.credit(subscription, ask=True)
    kind, _, _, _, payload = await raw.next(FrameKind.GAP, FrameKind.DELIVER, id=subscription)
    assert kind == FrameKind.GAP
    gap, _ = read_gap(payload)
    assert (gap.first, gap.end, gap.count) == (0, 2, 2)
    assert await raw.values(subscription, 2) == [b"3", b"4"]


# -- groups -----------------------------------------------------------------------------------------------------


async def test_a_lease_is_acked_and_the_next_one_comes(raw: Raw) -> None:
    member = raw.subscribe("t", group="g", prefetch=1)
    await raw.subscribed(member)
    raw.publish("t", b"one", b"two")
    for value in (b"one", b"two"):
        grant = await raw.grant(member)
        assert unpack(grant.batch).values == (value,)
        raw.settle(Settlement(member, grant.lease, SettleVerb.BEGIN, grant.place, grant.place + 1), answered=False)
        await raw.reply(raw.settle(Settlement(member, grant.lease, SettleVerb.ACK, grant.place, grant.place + 1)))
    assert (await raw.ask("group", name="g", pattern="t"))["acked"] == 2


async def test_a_nacked_record_comes_back_with_attempt_two(raw: Raw) -> None:
    member = raw.subscribe("t", group="g")
    raw.publish("t", b"one")
    grant = await raw.grant(member)
    assert grant.attempt == 1
    raw.settle(Settlement(member, grant.lease, SettleVerb.NACK, grant.place, grant.place + 1, 0.0), answered=False)
    again = await raw.grant(member)
    assert (again.attempt, again.offset) == (2, grant.offset)


async def test_a_rejected_record_is_a_dead_letter(raw: Raw) -> None:
    member = raw.subscribe("t", group="g", dead_letter="dead")
    letters = raw.subscribe("dead", start="earliest")
    raw.publish("t", b"poison")
    grant = await raw.grant(member)
    settled = Settlement(member, grant.lease, SettleVerb.REJECT, grant.place, grant.place + 1, None, "no good")
    await raw.reply(raw.settle(settled))
    assert await raw.values(letters, 1) == [b"poison"]


async def test_settling_twice_and_settling_what_is_not_held_are_refused(raw: Raw) -> None:
    member = raw.subscribe("t", group="g")
    raw.publish("t", b"one", b"two")
    grant = await raw.grant(member)
    ack = Settlement(member, grant.lease, SettleVerb.ACK, grant.place, grant.place + 1)
    await raw.reply(raw.settle(ack))
    assert (await raw.error(raw.settle(ack))).code == "already_settled"
    assert isinstance(await raw.error(raw.settle(ack._replace(lease=99))), LeaseEnded)
    assert isinstance(await raw.error(raw.settle(ack._replace(subscription=99))), SubscriptionEnded)
    assert isinstance(await raw.error(raw.settle(ack._replace(first=5, end=9))), InvalidOption)


async def test_of_many_settlements_the_good_are_done_and_the_first_bad_is_reported(raw: Raw) -> None:
    member = raw.subscribe("t", group="g")
    raw.publish("t", b"one", b"two")
    grant = await raw.grant(member)
    good = Settlement(member, grant.lease, SettleVerb.ACK, grant.place + 1, grant.place + 2)
    bad = Settlement(member, 99, SettleVerb.ACK, 0, 1)
    assert isinstance(await raw.error(raw.settle(bad, good)), LeaseEnded)
    assert (await raw.ask("group", name="g", pattern="t"))["acked"] == 1


async def test_when_a_member_vanishes_its_leases_go_to_others_at_once(server: Server, raw: Raw) -> None:
    async with connected(server) as dying:
        first = dying.subscribe("t", group="g", ack_wait=3600.0)
        await dying.subscribed(first)
        await raw.published(raw.publish("t", b"work"))
        assert (await dying.grant(first)).attempt == 1
        second = raw.subscribe("t", group="g", ack_wait=3600.0)
        await raw.subscribed(second)
        dying.cut()
        assert unpack((await raw.grant(second)).batch).values == (b"work",)


async def test_a_lease_that_ran_out_is_reported() -> None:
    clock = JumpingClock()
    async with serving(local_broker(clock=clock)) as server, connected(server) as raw:
        member = raw.subscribe("t", group="g", ack_wait=30.0)
        raw.publish("t", b"slow")
        grant = await raw.grant(member)
        raw.settle(Settlement(member, grant.lease, SettleVerb.BEGIN, grant.place, grant.place + 1), answered=False)
        await raw.ask("topics")  # so that it knows
        await clock.advance(31)
        _, _, _, _, payload = await raw.next(FrameKind.LAPSED, id=member)
        assert read_lapsed(payload) == [(grant.lease, grant.place, grant.place + 1)]


# -- calls ------------------------------------------------------------------------------------------------------


async def test_an_unknown_call_and_wrong_arguments_are_refused_and_nothing_more(raw: Raw) -> None:
    unknown = await raw.error(raw.call("explode"))
    assert isinstance(unknown, InvalidOption)
    assert "topics" in str(unknown)  # those there are
    assert isinstance(await raw.error(raw.call("delete")), InvalidOption)
    assert isinstance(await raw.error(raw.call("delete", topic=7)), InvalidOption)
    assert await raw.ask("topics") == []


async def test_a_request_can_be_cancelled(raw: Raw) -> None:
    subscription = raw.subscribe("ask.me")
    await raw.subscribed(subscription)
    waiting = raw.call("request", topic="ask.me", batch=pack([b"?"]), timeout=3600.0)
    assert await raw.values(subscription, 1) == [b"?"]
    assert (await raw.ask("connections"))[0]["calls"] == 2
    raw.send(frame(FrameKind.CANCEL, waiting))
    assert (await raw.ask("connections"))[0]["calls"] == 1
    assert not [one for one in raw.inbox if one[3] == waiting]


async def test_an_internal_error_is_logged_and_answered(
    server: Server, raw: Raw, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server.broker, "topics", None)
    error = await raw.error(raw.call("topics"))
    assert error.code == "runnel_error"
    assert "log" in str(error)
    assert "TypeError" in caplog.text
    assert await raw.published(raw.publish("t", b"the connection goes on"))


async def test_a_failure_in_a_session_ends_that_connection_alone(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(server) as doomed, connected(server) as other:
        assert server.serving is not None
        publisher = server.serving.publisher
        publish = publisher.publish

        def failing(topic: str, *rest: Any) -> object:
            if topic == "bad":
                raise ZeroDivisionError
            return publish(topic, *rest)

        monkeypatch.setattr(publisher, "publish", failing)
        doomed.publish("bad", b"x")
        assert (await doomed.error()).code == "runnel_error"
        await doomed.eof()
        assert await other.published(other.publish("good", b"x"))
    assert "ZeroDivisionError" in caplog.text


# -- limits -----------------------------------------------------------------------------------------------------


async def test_too_many_subscriptions_are_refused_by_name() -> None:
    async with serving(max_subscriptions=2) as server, connected(server) as raw:
        for id in [raw.subscribe("t"), raw.subscribe("t", group="g")]:
            await raw.subscribed(id)
        error = await raw.error(raw.subscribe("t"))
        assert isinstance(error, LimitExceeded)
        assert (error.limit, error.allowed) == ("max_subscriptions", 2)


async def test_too_many_calls_are_refused_by_name() -> None:
    async with serving(max_calls=2) as server, connected(server) as raw:
        subscription = raw.subscribe("ask")
        await raw.subscribed(subscription)
        waiting = [raw.call("request", topic="ask", batch=pack([b"?"]), timeout=3600.0) for _ in range(2)]
        error = await raw.error(raw.call("topics"))
        assert isinstance(error, LimitExceeded)
        assert error.limit == "max_calls"
        raw.send(frame(FrameKind.CANCEL, waiting[0]))
        assert await raw.ask("topics") == ["ask"]


async def test_a_frame_that_is_too_large_is_refused_by_name_before_it_came() -> None:
    async with serving(max_frame=100_000) as server, connected(server) as raw:
        raw.send(frame(FrameKind.PUBLISH, 1, bytes(100_000))[:12])
        error = await raw.error()
        assert isinstance(error, LimitExceeded)
        assert error.limit == "max_frame"
        await raw.eof()


async def test_before_the_hello_no_large_frame_is_taken(server: Server) -> None:
    async with connected(server, hello=False) as raw:
        raw.send(PREFACE + frame(FrameKind.HELLO, 0, bytes(70_000))[:12])
        assert isinstance(await raw.error(), LimitExceeded)


async def test_one_connection_too_many_gets_an_error() -> None:
    async with serving(max_connections=1) as server, connected(server):
        with pytest.raises(LimitExceeded) as refused:
            async with connected(server):
                pass
        assert refused.value.limit == "max_connections"
        assert server.connections == 1


async def test_half_a_hello_holds_a_connection_no_longer_than_the_hello_time() -> None:
    async with serving(hello_timeout=0.1) as server, connected(server, hello=False) as raw:
        raw.send(PREFACE[:2])
        error = await raw.error()
        assert isinstance(error, LimitExceeded)
        assert error.limit == "hello_timeout"
        await raw.eof()


async def test_beyond_the_pending_bytes_nothing_is_read_until_some_are_answered() -> None:
    async with serving(max_pending_bytes=10_000) as server, connected(server) as raw:
        subscription = raw.subscribe("t", policy=WirePolicy(kind="block"), buffer=1)
        await raw.subscribed(subscription)
        large = bytes(6_000)
        ids = [raw.publish("t", large) for _ in range(5)]
        await raw.published(ids[0])
        async with connected(server) as looking:
            while (about := (await looking.ask("connections"))[0])["pending_bytes"] < 10_000:
                pass
            assert about["pending_bytes"] < 20_000  # two of them; the others wait in the socket
            raw.cut()  # nobody reads from it, and still it is noticed, and what it held is let go
            while len(await looking.ask("connections")) > 1:
                pass
            assert server.broker.statistics().waiting_publishers == 0


async def test_what_is_compressed_counts_as_what_it_unfolds_to() -> None:
    async with serving(max_pending_bytes=10_000) as server, connected(server) as raw, connected(server) as looking:
        subscription = raw.subscribe("t", policy=WirePolicy(kind="block"), buffer=1)
        await raw.subscribed(subscription)
        await raw.published(raw.publish("t", b"one"))
        small = pack([bytes(8_000)], compression="zstd")
        assert len(small) < 200
        for _ in range(5):
            raw.publish_batch("t", small)
        while (pending := (await looking.ask("connections"))[0]["pending_bytes"]) < 10_000:
            pass
        assert pending < 20_000
        raw.cut()


async def test_what_was_held_back_by_the_pending_bytes_is_read_when_there_is_room() -> None:
    async with serving(max_pending_bytes=10_000) as server, connected(server) as raw, connected(server) as reader:
        subscription = reader.subscribe("t", policy=WirePolicy(kind="block"), buffer=1)
        await reader.subscribed(subscription)
        ids = [raw.publish("t", bytes(6_000)) for _ in range(8)]
        for number, id in enumerate(ids):
            reader.credit(subscription, place=number, ask=True)
            assert (await reader.deliver(subscription)).offset == number
            assert (await raw.published(id))[1] == number


# -- goodbye ----------------------------------------------------------------------------------------------------


async def test_after_a_goodbye_the_rest_is_delivered_and_then_the_end(raw: Raw) -> None:
    subscription = raw.subscribe("t", credit=1)
    await raw.subscribed(subscription)
    ids = [raw.publish("t", b"%d" % number) for number in range(3)]
    for id in ids:
        await raw.published(id)
    raw.goodbye()
    assert await raw.values(subscription, 1) == [b"0"]
    raw.credit(subscription, given=10_000)
    assert await raw.values(subscription, 2) == [b"1", b"2"]
    await raw.next(FrameKind.END, id=subscription)
    await raw.eof()


async def test_a_goodbye_waits_for_what_is_under_way(raw: Raw, server: Server) -> None:
    async with connected(server) as other:
        subscription = other.subscribe("ask")
        await other.subscribed(subscription)
        asking = raw.call("request", topic="ask", batch=pack([b"?"]), timeout=3600.0)
        got = await other.deliver(subscription)
        raw.goodbye()
        inbox = unpack(got.batch).metas[0].headers["runnel-reply-to"]
        assert await other.ask("reply", reply_to=inbox, batch=pack([b"!"])) is True
        assert unpack((await raw.reply(asking))["batch"]).values == (b"!",)
        await raw.eof()


async def test_a_goodbye_refuses_what_waits_for_room(raw: Raw) -> None:
    subscription = raw.subscribe("t", policy=WirePolicy(kind="block"), buffer=1)
    await raw.subscribed(subscription)
    await raw.published(raw.publish("t", b"fits"))
    publish = raw.publish("t", b"waits")
    transaction = raw.call("transact", publishes=[["t", pack([b"waits too"]), None]])
    await raw.ask("topics")
    raw.goodbye()
    assert (await raw.error(publish)).code == (await raw.error(transaction)).code == "broker_closed"
    raw.credit(subscription, ask=True)
    assert await raw.values(subscription, 1) == [b"fits"]
    await raw.next(FrameKind.END, id=subscription)
    await raw.eof()


async def test_after_a_goodbye_what_is_on_its_way_to_disk_is_still_delivered(tmp_path: Path) -> None:
    async with serving(runnel.open(tmp_path)) as server, connected(server) as raw:
        subscription = raw.subscribe("t")
        await raw.subscribed(subscription)
        publish = raw.publish("t", b"a")
        raw.goodbye()
        assert await raw.values(subscription, 1) == [b"a"]
        await raw.published(publish)
        await raw.next(FrameKind.END, id=subscription)
        await raw.eof()


async def test_a_server_that_stops_does_not_wait_for_what_waits_for_room(raw: Raw, server: Server) -> None:
    subscription = raw.subscribe("t", policy=WirePolicy(kind="block"), buffer=1)
    await raw.subscribed(subscription)
    await raw.published(raw.publish("t", b"fits"))
    raw.publish("t", b"waits")
    await raw.ask("topics")
    closing = asyncio.create_task(server.close(3600))
    await raw.next(FrameKind.GOODBYE)
    await raw.eof()
    assert not raw.inbox, "it is not answered: the client sends it again, to the next server"
    raw.cut()
    await asyncio.wait_for(closing, PATIENCE)


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_publish_never_waits_for_the_very_task_that_publishes(raw: Raw, group: str | None) -> None:
    policy = WirePolicy(kind="block") if group is None else None
    reader = raw.subscribe("t", group=group, policy=policy, buffer=3)
    await raw.subscribed(reader)
    await raw.published(raw.publish("t", b"1", b"2"))
    own = raw.publish("t", b"3", b"4", about=PublishDetails(reads=[reader]))
    assert (await raw.error(own)).code == "would_deadlock"
    raw.publish_batch("t", pack([b"3", b"4"], producer=7))  # another task's: it waits
    await raw.ask("topics")
    behind = raw.publish_batch("t", pack([b"5"], producer=7, producer_sequence=2), about=PublishDetails(reads=[reader]))
    assert (await raw.error(behind)).code == "would_deadlock"
    fits = raw.publish("u", b"5", about=PublishDetails(reads=[reader]))
    await raw.published(fits)


async def test_a_member_that_is_not_alone_may_wait_for_the_others(raw: Raw) -> None:
    members = [raw.subscribe("t", group="g", buffer=1, prefetch=1) for _ in range(2)]
    for member in members:
        await raw.subscribed(member)
    await raw.published(raw.publish("t", b"1"))
    own = raw.publish("t", b"2", about=PublishDetails(reads=[members[0]]))
    await raw.ask("topics")
    grant = next(frame for frame in raw.inbox if frame[0] == FrameKind.GRANT)
    lease = read_grant(grant[2], grant[4])
    raw.settle(Settlement(grant[3], lease.lease, SettleVerb.ACK, lease.place, lease.place + 1))
    await raw.published(own)


async def test_a_call_that_was_taken_back_is_over_before_the_next_one_begins(raw: Raw, server: Server) -> None:
    async with connected(server) as other:
        subscription = other.subscribe("ask")
        await other.subscribed(subscription)
        asking = raw.call("request", topic="ask", batch=pack([b"?"]), timeout=3600.0)
        got = await other.deliver(subscription)
        inbox = unpack(got.batch).metas[0].headers["runnel-reply-to"]
        raw.send(frame(FrameKind.CANCEL, asking))
        assert await raw.ask("reply", reply_to=inbox, batch=pack([b"!"])) is False


async def test_a_transaction_that_is_being_written_cannot_be_taken_back(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path) as broker, serving(broker) as server, connected(server) as raw:
        await raw.published(raw.publish("t", b"before"))
        disk.hold("sync")
        transaction = raw.call("transact", publishes=[["t", pack([b"a"]), None]])
        await disk.reached()
        raw.send(frame(FrameKind.CANCEL, transaction))
        assert (await raw.error(transaction)).code == "outcome_unknown"
        disk.go_on()


async def test_after_a_goodbye_nothing_waits_for_room(raw: Raw, server: Server) -> None:
    async with connected(server) as other:
        subscription = other.subscribe("t", policy=WirePolicy(kind="block"), buffer=1)
        await other.subscribed(subscription)
        kept = raw.subscribe("u", credit=1)
        await raw.subscribed(kept)
        await raw.published(raw.publish("u", b"1"))
        await raw.published(raw.publish("u", b"2"))
        await raw.published(raw.publish("t", b"fits"))
        raw.goodbye()
        assert (await raw.error(raw.publish("t", b"waits"))).code == "broker_closed"


async def test_nothing_is_left_of_a_client_that_vanished(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with connected(server) as raw:
        for id in [raw.subscribe("t"), raw.subscribe("a.*"), raw.subscribe("t", group="g")]:
            await raw.subscribed(id)
        blocking = raw.subscribe("t", policy=WirePolicy(kind="block"), buffer=1)
        await raw.subscribed(blocking)
        await raw.published(raw.publish("t", b"one"))
        raw.publish("t", b"waits for room")
        raw.call("request", topic="t", batch=pack([b"?"]), timeout=3600.0)
        await raw.ask("topics")
        raw.cut()
    connections = server._serving.connections  # type: ignore[union-attr]
    await connections.emptied()
    statistics = server.broker.statistics()
    assert statistics.subscriptions == ()
    assert [group.members for group in statistics.groups] in ([], [()])
    assert statistics.waiting_publishers == 0
    await until(lambda: not [name for name in server.broker.backend.catalog.logs if name.startswith("$")])  # its inbox


async def test_a_publish_that_waits_for_others_goes_with_its_client(server: Server, raw: Raw) -> None:
    subscription = raw.subscribe("t", policy=WirePolicy(kind="block"), buffer=1)
    await raw.subscribed(subscription)
    async with connected(server) as gone:
        await gone.published(gone.publish("t", b"one"))
        gone.publish("t", b"never seen")
        await gone.ask("topics")
        assert server.broker.statistics().waiting_publishers == 1
        gone.cut()
    while len(await raw.ask("connections")) > 1:
        pass
    assert server.broker.statistics().waiting_publishers == 0
    await raw.ask("topics")
    raw.credit(subscription, ask=True)
    got = await raw.deliver(subscription)
    raw.credit(subscription, place=got.offset + 1, ask=True)
    await raw.published(raw.publish("t", b"two"))
    assert await raw.values(subscription, 1) == [b"two"]


async def test_a_settlement_is_answered_when_it_is_on_disk(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path) as broker, serving(broker) as server, connected(server) as raw:
        member = raw.subscribe("t", group="g")
        await raw.published(raw.publish("t", b"work"))
        grant = await raw.grant(member)
        disk.hold("sync")
        id = raw.settle(Settlement(member, grant.lease, SettleVerb.ACK, grant.place, grant.place + 1))
        await disk.reached()
        await raw.ask("topics")
        assert not [one for one in raw.inbox if one[3] == id]
        disk.go_on()
        assert await raw.reply(id) is None


async def test_memory_is_free_as_soon_as_a_client_is_gone(server: Server) -> None:
    gone: list[weakref.ref[object]] = []
    gc.disable()  # nothing may depend on it: with thousands of clients it comes late
    try:
        for _ in range(5):
            async with connected(server) as raw:
                for id in [raw.subscribe("t"), raw.subscribe("t", group="g")]:
                    await raw.subscribed(id)
                await raw.published(raw.publish("t", bytes(300_000)))
                await raw.ask("topics")
                for peer in server._serving.connections:  # type: ignore[union-attr]
                    assert isinstance(peer, NativeConnection)
                    gone += [weakref.ref(peer), weakref.ref(peer.session)]
                del peer
                raw.cut()
            await server._serving.connections.emptied()  # type: ignore[union-attr]
        await until(lambda: all(ref() is None for ref in gone))
    finally:
        gc.enable()


@settings(max_examples=60)
@given(st.data())
def test_whatever_bytes_come_the_server_lives_and_others_notice_nothing(data: st.DataObject) -> None:
    good = [
        frame(FrameKind.SUBSCRIBE, 1, encode_message(Subscribe(pattern="t"))),
        frame(FrameKind.SUBSCRIBE, 2, encode_message(Subscribe(pattern="t", group="g"))),
        b"".join(publish_frame(3, b"t", pack([b"x"]), PublishDetails(message_id="m"))),
        frame(FrameKind.CALL, 4, call_payload("transact", {"acks": [[2, 1, 0, 1]], "marks": [["a", 1]]})),
        frame(FrameKind.CALL, 5, call_payload("topics", {})),
        frame(FrameKind.SETTLE, 6, settle_payload([Settlement(2, 1, SettleVerb.ACK, 0, 1)])),
        credit_frame(1, 100, 1, ask=True),
        frame(FrameKind.CANCEL, 4),
        unsubscribe_frame(1, 1),
        frame(FrameKind.GOODBYE, 0, encode_message(Goodbye())),
    ]
    stream = bytearray()
    for part in data.draw(st.lists(st.sampled_from(good) | st.binary(max_size=40), max_size=8)):
        stream += part
    for _ in range(data.draw(st.integers(0, 4))):
        if stream:
            stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))

    async def main() -> None:
        async with serving(max_frame=100_000) as server, connected(server) as other:
            async with connected(server) as raw:
                raw.send(bytes(stream))
                raw.writer.write_eof()
                await raw.eof()
            id = other.subscribe("still")
            await other.subscribed(id)
            await other.published(other.publish("still", b"here"))
            assert await other.values(id, 1) == [b"here"]

    asyncio.run(main())


async def test_columns_that_are_not_read_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers may be far larger than questions: a thousand of them must not fill the memory."""
    high = 64 << 10
    async with serving(high_water=high, max_calls=2000) as server, connected(server) as other, connected(server) as raw:
        for id in [other.call("declare", topic=f"a.topic.with.a.rather.long.name.{n}") for n in range(2000)]:
            await other.reply(id)
        one = len(call_payload("", {"": await other.ask("topics")}))
        worked_out: list[int] = []
        topics = server.broker.topics

        async def noted() -> list[str]:
            worked_out.append(1)
            return await topics()

        monkeypatch.setattr(server.broker, "topics", noted)
        ids = [raw.new_id() for _ in range(500)]
        raw.send(b"".join(frame(FrameKind.CALL, id, call_payload("topics", {})) for id in ids))
        peer = [*server.serving.connections][-1] if server.serving is not None else None
        assert isinstance(peer, NativeConnection)
        await until(lambda: peer.room <= 0)
        await other.ask("info")
        assert peer.describe()["unsent_bytes"] <= high + one + 100
        assert len(worked_out) < 200  # the system's own buffers take some of them
        for id in ids:
            assert len(await raw.reply(id)) == 2000


async def test_an_ack_is_on_disk_when_it_is_answered_though_the_member_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[LocalMember] = []

    def noted(member: LocalMember) -> Awaitable[None]:
        flushed.append(member)
        return flush(member)

    flush = LocalMember.flushed
    monkeypatch.setattr(LocalMember, "flushed", noted)
    async with serving(runnel.open(tmp_path)) as server:
        async with connected(server) as raw:
            await raw.published(raw.publish("t", b"1"))
            member = raw.subscribe("t", group="g")
            grant = await raw.grant(member)
            id = raw.settle(Settlement(member, grant.lease, SettleVerb.ACK, grant.place, grant.place + 1))
            raw.send(unsubscribe_frame(member))
            assert await raw.reply(id) is None
            assert flushed


async def test_very_many_settlements_at_once_are_all_answered(tmp_path: Path) -> None:
    async with serving(runnel.open(tmp_path), max_calls=2) as server, connected(server) as raw:
        await raw.published(raw.publish("t", *[b"x"] * 50))
        member = raw.subscribe("t", group="g", prefetch=50)
        grant = await raw.grant(member)
        ids = [raw.settle(Settlement(member, grant.lease, SettleVerb.ACK, at, at + 1)) for at in range(50)]
        for id in ids:
            assert await raw.reply(id) is None


async def test_names_that_would_act_on_a_terminal_are_refused() -> None:
    evil = "a\x1b[2J"
    async with serving() as server, connected(server) as raw:
        for id in (
            raw.subscribe("t", name=evil),
            raw.subscribe("t", group="g", name=evil),
            raw.call("transact", marks=[[evil, 1]]),
            raw.call("place", places=[[evil, "t", 0, 0]]),
        ):
            assert "control character" in str(await raw.error(id))
