"""What each command of the JSON listener does, and how it is answered."""

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runnel
from runnel.server.json_lines import session
from runnel.testing.clock import JumpingClock
from tests.contract.reading import until
from tests.server.json_lines_client import Client, json_listener


async def group_client(client: Client, **options: Any) -> None:
    """Join a group on jobs."""
    assert (await client.ask(command="SUB", topic="jobs", group="work", **options))["event"] == "subscribed"


# -- requests ---------------------------------------------------------------------------------------------------


async def test_a_request_is_answered_by_another_connection() -> None:
    async with json_listener() as listener:
        asking, answering = await listener.client(), await listener.client()
        await answering.ask(command="SUB", topic="square")
        asking.send(
            {"command": "REQUEST", "topic": "square", "payload": 12, "key": "k", "headers": {"h": "v"}, "id": 7}
        )
        question = await answering.event()
        assert (question["payload"], question["key"], question["headers"]["h"]) == ("12", "k", "v")
        said = {"command": "REPLY", "reply_to": question["headers"]["runnel-reply-to"]}
        assert await answering.ask(**said, payload="/wA=", encoding="base64", headers={"by": "me"}) == {
            "event": "replied",
            "taken": True,
        }
        told = await asking.event()
        told["headers"].pop("traceparent", None)  # as the question's
        assert told == {
            "event": "reply",
            "topic": "square",
            "payload": "/wA=",
            "encoding": "base64",
            "headers": {"by": "me"},
            "id": 7,
        }
        assert await answering.ask(**said, payload="again", id="r") == {"event": "replied", "taken": False, "id": "r"}


async def test_a_reply_that_takes_long_holds_nothing_back() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        await client.ask(command="SUB", topic="ask")
        client.send({"command": "REQUEST", "topic": "ask", "payload": "?", "timeout": 60, "id": 1})
        question = await client.event()
        assert (await client.ask(command="PING"))["event"] == "pong"
        client.send({"command": "REPLY", "reply_to": question["headers"]["runnel-reply-to"], "payload": "!"})
        found = {one["event"]: one for one in [await client.event(), await client.event()]}
        assert (found["reply"]["payload"], found["replied"]["taken"]) == ("!", True)


async def test_replies_of_many_responders_come_in_one_line() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        async with listener.broker.subscribe("ask") as good, listener.broker.subscribe("ask") as bad:
            client.send({"command": "REQUEST", "topic": "ask", "payload": "?", "limit": 2, "timeout": 60})
            await listener.broker.reply(await anext(good), {"a": 1})
            await listener.broker.reply(await anext(bad), "no tea", headers={"runnel-error": "sold_out"})
            told = await client.event()
            del told["replies"][0]["headers"]  # the trace of the question
            assert told == {
                "event": "replies",
                "topic": "ask",
                "replies": [{"payload": '{"a":1}'}],
                "failures": [{"error": "sold_out", "why": "no tea"}],
            }


async def test_a_request_that_fails_says_why() -> None:
    async with json_listener() as listener:
        client = await listener.client()

        async def code(**said: Any) -> str:
            answer = await client.ask(command="REQUEST", topic="ask", payload="?", **said)
            assert (answer["event"], answer["command"]) == ("error", "REQUEST")
            found: str = answer["code"]
            return found

        assert await code() == "no_responders"
        assert await code(timeout=301) == "limit_exceeded"
        assert await code(delay=3) == "bad_command"
        async with listener.broker.subscribe("ask") as questions:
            assert await code(timeout=0.01) == "request_timeout"
            await anext(questions)
            client.send({"command": "REQUEST", "topic": "ask", "payload": "?"})
            await listener.broker.reply(await anext(questions), "no", headers={"runnel-error": "sold_out"})
            told = await client.event()
            assert (told["code"], "sold_out: no" in told["message"]) == ("request_failed", True)
        answer = await client.ask(command="REPLY", reply_to="$runnel.telemetry.x", payload="x")
        assert answer["code"] == "invalid_name"


async def test_a_client_that_leaves_takes_its_requests_along() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        async with listener.broker.subscribe("ask") as questions:
            client.send({"command": "REQUEST", "topic": "ask", "payload": "?", "timeout": 60})
            question = await anext(questions)
            await client.gone()
            await until(lambda: not len(listener.broker.backend.inboxes))
            assert await listener.broker.reply(question, "!") is False


# -- publishing and reading -------------------------------------------------------------------------------------


async def test_the_two_lines_that_a_user_tries_first() -> None:
    async with json_listener() as listener:
        reader, writer = await listener.client(), await listener.client()
        reader.send(b'{"command": "SUB", "topic": "test"}\n')
        assert await reader.event() == {"event": "subscribed", "topic": "test"}
        writer.send(b'{"command": "PUB", "topic": "test", "payload": "100"}\n')
        answer = await writer.event()
        assert answer == {"event": "published", "topic": "test", "offset": 0, "epoch": answer["epoch"]}
        told = await reader.event()
        assert (told["event"], told["topic"], told["offset"], told["payload"]) == ("message", "test", 0, "100")
        assert told["epoch"] == answer["epoch"]


async def test_what_is_published_by_line_is_what_others_read_and_the_other_way_round() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        async with listener.broker.subscribe("t") as records:
            client.send({"command": "PUB", "topic": "t", "payload": {"a": 1}, "key": "k", "headers": {"h": "v"}})
            record = await anext(aiter(records))
            assert (record.value, record.key, dict(record.headers)) == (b'{"a": 1}', b"k", {"h": "v"})
        await client.event()
        await client.ask(command="SUB", topic="t", id="s")
        await listener.broker.publish("t", b"\xff\x00", key=b"\xfe", headers={"x": "y"})
        told = await client.event()
        assert base64.b64decode(told["payload"]) == b"\xff\x00"
        assert base64.b64decode(told["key"]) == b"\xfe"
        assert (told["encoding"], told["key_encoding"], told["headers"]) == ("base64", "base64", {"x": "y"})
        assert (told["id"], told["offset"], told["sequence"]) == ("s", 1, 1)


async def test_bytes_come_in_as_base64() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        async with listener.broker.subscribe("t") as records:
            client.send({"command": "PUB", "topic": "t", "payload": "/wA=", "encoding": "base64"})
            assert (await anext(aiter(records))).value == b"\xff\x00"


async def test_pipelined_publishes_keep_their_order_and_are_answered_in_it(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data") as broker, json_listener(broker) as listener:
        client = await listener.client()
        count = 500
        client.send(
            *({"command": "PUB", "topic": f"t{n % 3}", "payload": str(n), "id": n} for n in range(count)),
            {"command": "PING"},
        )
        answers = await client.events(count + 1)
        assert [answer.get("id") for answer in answers] == [*range(count), None]
        assert answers[-1] == {"event": "pong"}
        await client.ask(command="SUB", topic="t0", **{"from": "earliest"})
        told = await client.events((count + 2) // 3)
        assert [one["payload"] for one in told] == [str(n) for n in range(0, count, 3)]


async def test_pipelined_publishes_share_their_syncs(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data") as broker, json_listener(broker) as listener:
        client = await listener.client()
        await client.ask(command="PUB", topic="t", payload="")
        journal = broker.statistics().journal
        assert journal is not None
        before = journal.syncs
        client.send(*({"command": "PUB", "topic": "t", "payload": str(n)} for n in range(300)))
        await client.events(300)
        journal = broker.statistics().journal
        assert journal is not None
        assert journal.syncs - before < 100


async def test_a_refused_line_is_answered_in_its_place() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        client.send(
            {"command": "PUB", "topic": "t", "payload": "1"},
            b"nonsense\n",
            {"command": "PUB", "topic": "no good", "payload": "2"},
            {"command": "PUB", "topic": "t", "payload": "!", "encoding": "base64"},
            {"command": "PUB", "topic": "t", "payload": "3", "expected_offset": 7},
            {"command": "PUB", "topic": "t", "payload": "4"},
        )
        told = [event.get("code", event["event"]) for event in await client.events(6)]
        assert told == ["published", "bad_command", "invalid_name", "bad_command", "offset_conflict", "published"]


async def test_an_error_has_the_code_the_command_and_the_id() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        answer = await client.ask(command="PUB", topic="a b", payload="", id=9)
        assert (answer["event"], answer["code"], answer["command"], answer["id"]) == ("error", "invalid_name", "PUB", 9)
        assert "'a b'" in answer["message"]
        assert (await client.ask(command="PING"))["event"] == "pong"


async def test_a_message_id_is_stored_once() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        first = await client.ask(command="PUB", topic="t", payload="1", message_id="m")
        again = await client.ask(command="PUB", topic="t", payload="1", message_id="m")
        assert first == again


async def test_the_type_of_a_topic_holds_for_lines_too() -> None:
    class Order(msgspec.Struct):
        id: int

    async with json_listener() as listener:
        await listener.broker.topic("orders", Order).declare()
        client = await listener.client()
        refused = await client.ask(command="PUB", topic="orders", payload={"id": "x"})
        assert refused["code"] == "validation_failed"
        assert (await client.ask(command="PUB", topic="orders", payload={"id": 1}))["event"] == "published"


# -- subscriptions ----------------------------------------------------------------------------------------------


async def test_a_subscription_starts_where_asked() -> None:
    async with json_listener() as listener:
        epoch = 0
        for n in range(4):
            epoch = (await listener.broker.publish("t", str(n))).epoch
        client = await listener.client()
        for start, first in [("earliest", "0"), (2, "2"), ({"epoch": epoch, "offset": 3}, "3"), (f"{epoch}:1", "1")]:
            await client.ask(command="SUB", topic="t", id="s", **{"from": start})
            assert (await client.event())["payload"] == first
            client.send({"command": "UNSUB", "id": "s"})
            while (await client.event())["event"] != "unsubscribed":
                pass


async def test_a_start_beyond_the_end_is_refused_and_nothing_stays_open() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        assert (await client.ask(command="SUB", topic="t", **{"from": 5}))["code"] == "offset_out_of_range"
        assert (await client.ask(command="SUB", topic="t", **{"from": "yesterday"}))["field"] == "from"
        assert (await client.ask(command="INFO"))["subscriptions"] == 0


async def test_what_was_published_before_a_subscription_is_not_new_to_it() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        client.send(
            {"command": "PUB", "topic": "t", "payload": "before"},
            {"command": "SUB", "topic": "t"},
            {"command": "PUB", "topic": "t", "payload": "after"},
        )
        events = await client.events(4)
        assert [event["payload"] for event in events if event["event"] == "message"] == ["after"]


async def test_a_pattern_reads_many_topics() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        await client.ask(command="SUB", topic="orders.*")
        await listener.broker.publish("orders.eu", "1")
        await listener.broker.publish("orders.us", "2")
        assert [event["topic"] for event in await client.events(2)] == ["orders.eu", "orders.us"]


async def test_nothing_comes_after_unsubscribed() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        await client.ask(command="SUB", topic="t")
        await client.ask(command="SUB", topic="u")
        assert await client.ask(command="UNSUB", topic="t") == {"event": "unsubscribed", "topic": "t", "count": 1}
        await listener.broker.publish("t", "1")
        await listener.broker.publish("u", "2")
        assert (await client.event())["payload"] == "2"


async def test_by_topic_all_its_subscriptions_end_and_by_id_one() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        for id in (1, 2, 3):
            await client.ask(command="SUB", topic="t", id=id)
        one = await client.ask(command="UNSUB", id=2)
        assert one == {"event": "unsubscribed", "topic": "t", "count": 1, "id": 2}
        assert (await client.ask(command="UNSUB", topic="t"))["count"] == 2
        refused = await client.ask(command="UNSUB", topic="t")
        assert (refused["code"], refused["field"]) == ("bad_command", "topic")
        assert (await client.ask(command="UNSUB"))["code"] == "bad_command"


async def test_an_id_is_open_once() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        await client.ask(command="SUB", topic="t", id="x")
        assert (await client.ask(command="SUB", topic="u", id="x"))["field"] == "id"


async def test_there_are_as_many_subscriptions_as_the_limit_says() -> None:
    async with json_listener(max_subscriptions=2) as listener:
        client = await listener.client()
        for topic in ("a", "b"):
            assert (await client.ask(command="SUB", topic=topic))["event"] == "subscribed"
        refused = await client.ask(command="SUB", topic="c")
        assert refused["code"] == "limit_exceeded"
        assert "max_subscriptions=2" in refused["message"]
        await client.ask(command="UNSUB", topic="a")
        assert (await client.ask(command="SUB", topic="c"))["event"] == "subscribed"


async def test_a_name_keeps_the_place(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data") as broker, json_listener(broker) as listener:
        client = await listener.client()
        await client.ask(command="SUB", topic="t", name="me")
        await broker.publish("t", "1")
        assert (await client.event())["payload"] == "1"
        await client.ask(command="UNSUB", topic="t")
        await broker.publish("t", "2")
        other = await listener.client()
        await other.ask(command="SUB", topic="t", name="me")
        while (told := await other.event())["payload"] == "1":
            pass  # sent before, and told again: nobody said that it arrived
        assert told["payload"] == "2"
        assert (await client.ask(command="SUB", topic="t", name="me"))["code"] == "name_in_use"


async def test_records_missed_by_a_slow_subscriber_are_reported_before_the_following_ones() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        await client.ask(command="SUB", topic="t")
        topic = listener.broker.topic("t")
        for n in range(3_000):  # within one turn of the loop: nobody can read meanwhile
            topic.publish_nowait(str(n))
        first = await client.event()
        assert first["event"] == "gap"
        assert (first["topic"], first["first"], first["count"]) == ("t", 0, first["end"])
        assert (await client.event())["offset"] == first["end"]


async def test_a_deleted_topic_ends_its_subscription_with_the_reason() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        await client.ask(command="SUB", topic="t", id="s")
        await listener.broker.publish("t", "1")
        await client.event()
        await listener.broker.delete("t")
        told = await client.event()
        assert (told["event"], told["topic"], told["code"], told["id"]) == ("end", "t", "topic_deleted", "s")
        assert (await client.ask(command="INFO"))["subscriptions"] == 0


async def test_a_broker_that_closes_ends_the_subscriptions() -> None:
    async with runnel.open() as broker, json_listener(broker) as listener:
        client = await listener.client()
        await client.ask(command="SUB", topic="t")
        broker.close()
        assert await client.event() == {"event": "end", "topic": "t"}
        assert (await client.ask(command="PUB", topic="t", payload=""))["code"] == "broker_closed"


# -- groups -----------------------------------------------------------------------------------------------------


async def test_a_delivery_is_acked_by_its_number() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        await group_client(client)
        await listener.broker.publish("jobs", "1")
        told = await client.event()
        assert (told["payload"], told["delivery"], told["attempt"]) == ("1", 1, 1)
        assert await client.ask(command="ACK", delivery=1, id="a") == {"event": "acked", "delivery": 1, "id": "a"}
        assert listener.broker.group("work", "jobs").statistics().acked == 1


async def test_a_delivery_is_settled_once() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        await group_client(client)
        await listener.broker.publish("jobs", "1")
        await client.event()
        await client.ask(command="ACK", delivery=1)
        for verb in ("ACK", "NACK", "REJECT"):
            refused = await client.ask(command=verb, delivery=1)
            assert (refused["code"], refused["field"], refused["command"]) == ("bad_command", "delivery", verb)
        assert "none with this number" in (await client.ask(command="ACK", delivery=99))["message"]


async def test_a_nacked_record_comes_again() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        await group_client(client)
        await listener.broker.publish("jobs", "1")
        await client.event()
        client.send({"command": "NACK", "delivery": 1, "delay": 0})
        events = await client.events(2)
        assert {"event": "nacked", "delivery": 1} in events
        again = next(event for event in events if event["event"] == "message")
        assert (again["payload"], again["delivery"], again["attempt"]) == ("1", 2, 2)


async def test_a_rejected_record_is_a_dead_letter_with_the_reason() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        await group_client(client, dead_letter="dead")
        async with listener.broker.subscribe("dead") as dead:
            await listener.broker.publish("jobs", "1")
            await client.event()
            answer = await client.ask(command="REJECT", delivery=1, reason="no such customer")
            assert answer == {"event": "rejected", "delivery": 1}
            letter = await anext(aiter(dead))
            assert letter.value == b"1"
            assert "no such customer" in letter.headers.values()


async def test_an_extended_delivery_stays() -> None:
    clock = JumpingClock()
    async with runnel.open(clock=clock) as broker, json_listener(broker) as listener:
        client = await listener.client()
        await group_client(client, ack_wait=10)
        await listener.broker.publish("jobs", "1")
        await client.event()
        assert await client.ask(command="EXTEND", delivery=1, seconds=60) == {"event": "extended", "delivery": 1}
        await clock.advance(20)  # twice the time that it would have had
        assert (await client.ask(command="ACK", delivery=1))["event"] == "acked"


async def test_what_was_not_settled_in_time_comes_again_and_the_late_ack_says_so() -> None:
    clock = JumpingClock()
    async with runnel.open(clock=clock) as broker, json_listener(broker) as listener:
        client = await listener.client()
        await group_client(client, ack_wait=10)
        await listener.broker.publish("jobs", "1")
        assert (await client.event())["delivery"] == 1
        await clock.advance(11)
        assert (await client.event())["delivery"] == 2
        assert (await client.ask(command="ACK", delivery=1))["code"] == "lease_ended"


async def test_a_durable_ack_is_answered_when_it_is_on_disk(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data") as broker, json_listener(broker) as listener:
        client = await listener.client()
        await group_client(client)
        await broker.publish("jobs", "1")
        await client.event()
        assert await client.ask(command="ACK", delivery=1, durable=True) == {"event": "acked", "delivery": 1}


async def test_members_of_two_connections_share_the_work() -> None:
    async with json_listener() as listener:
        clients = [await listener.client(), await listener.client()]
        for client in clients:
            await group_client(client, prefetch=1)
        for n in range(2):
            await listener.broker.publish("jobs", str(n))
        assert {(await client.event())["payload"] for client in clients} == {"0", "1"}


async def test_a_member_that_unsubscribes_has_returned_its_records_when_it_is_confirmed() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        await group_client(client, id="w")
        await listener.broker.publish("jobs", "1")
        await client.event()
        client.send({"command": "UNSUB", "id": "w"}, {"command": "INFO"})
        assert (await client.event())["event"] == "unsubscribed"
        assert (await client.event())["deliveries"] == 0
        assert listener.broker.group("work", "jobs").statistics().in_flight == 0


async def test_options_that_mean_nothing_without_a_group_are_refused() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        refused = await client.ask(command="SUB", topic="t", prefetch=5)
        assert refused["code"] == "invalid_option"
        assert "prefetch" in refused["message"]


async def test_a_client_that_never_settles_anything_does_not_fill_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "STALE_DELIVERIES", 8)
    async with json_listener() as listener:
        client = await listener.client()
        await group_client(client, prefetch=4, max_deliver=1_000)
        for n in range(4):
            await listener.broker.publish("jobs", str(n))
        await client.events(4)
        for _ in range(20):
            listener.broker.group("work", "jobs").reset("earliest")
            await client.events(4)
        assert (await client.ask(command="INFO"))["deliveries"] <= 16


# -- asking -----------------------------------------------------------------------------------------------------


async def test_topics_are_listed_with_what_was_published_just_before() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        client.send({"command": "PUB", "topic": "b", "payload": ""}, {"command": "PUB", "topic": "a", "payload": ""})
        client.send({"command": "TOPICS", "id": 1})
        assert (await client.events(3))[-1] == {"event": "topics", "topics": ["a", "b"], "id": 1}


async def test_info_names_the_server_and_the_limits() -> None:
    async with json_listener(max_line=1_000, idle_timeout=None) as listener:
        client = await listener.client()
        told = await client.ask(command="INFO", id=1)
        assert (told["server"], told["id"], told["subscriptions"]) == ("runnel", 1, 0)
        assert told["limits"]["max_line"] == 1_000
        assert told["limits"]["idle_timeout"] is None


async def test_a_client_says_how_much_it_takes() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        await client.ask(command="SUB", topic="t", id="s", credit=2)
        await client.ask(command="SUB", topic="u", id="all")
        await listener.broker.topic("t").publish_many([b"%d" % n for n in range(5)])
        assert [one["payload"] for one in await client.events(2)] == ["0", "1"]
        assert (await client.ask(command="PING"))["event"] == "pong"
        answer = await client.ask(command="CREDIT", topic="t", records=0)
        assert answer == {"event": "credited", "topic": "t", "credit": 0}
        answer = await client.ask(command="CREDIT", id="s", records=10)
        assert answer == {"event": "credited", "topic": "t", "credit": 10, "id": "s"}
        assert [one["payload"] for one in await client.events(3)] == ["2", "3", "4"]
        for wrong, why in (
            ({"id": "all", "records": 1}, "without"),
            ({"id": "none", "records": 1}, "no subscription"),
            ({"records": 1}, "needs a topic or an id"),
            ({"id": "s"}, "records"),
            ({"id": "s", "records": -1}, "whole number"),
        ):
            refused = await client.ask(command="CREDIT", **wrong)
            assert (refused["event"], refused["code"]) == ("error", "bad_command")
            assert why in refused["message"], refused
        refused = await client.ask(command="SUB", topic="t", group="g", credit=1)
        assert (refused["code"], refused["field"]) == ("bad_command", "credit")
        assert "prefetch" in refused["message"]


async def test_help_is_given() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        client.send({"command": "HELP"}, {"command": "PING"})
        commands = []
        while (event := await client.event())["event"] == "help":
            commands.append(event["command"])
        assert commands[:3] == ["AUTH", "SUB", "UNSUB"]


async def test_a_failure_of_the_server_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with json_listener() as listener:

        def broken() -> Any:
            raise ZeroDivisionError

        listener.broker.topics = broken  # type: ignore[method-assign]
        client = await listener.client()
        answer = await client.ask(command="TOPICS", id=4)
        assert (answer["code"], answer["id"]) == ("runnel_error", 4)
        assert "ZeroDivisionError" in caplog.text
        assert (await client.ask(command="PING"))["event"] == "pong"


async def test_a_name_that_would_act_on_a_terminal_is_refused() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        refused = await client.ask(command="SUB", topic="t", name="a\x1b[2J")
        assert (refused["code"], "control character" in refused["message"]) == ("invalid_option", True)
