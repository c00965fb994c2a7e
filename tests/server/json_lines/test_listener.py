"""A JSON connection from its first byte to its last: limits, slow readers, and how it ends."""

import asyncio
import json
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel.server.json_lines import listener as module
from tests.held_time import held_time
from tests.patience import PATIENCE
from tests.server.json_lines_client import Client, Place, json_listener

SUB = b'{"command": "SUB", "topic": "test"}\n'
PUB = b'{"command": "PUB", "topic": "test", "payload": "100"}\n'


# -- from a terminal --------------------------------------------------------------------------------------------


def netcat(port: int, text: bytes) -> list[bytes]:
    """What `nc` prints for `text`, up to the end; where there is no `nc`, the same with a socket: half closed."""
    if (nc := shutil.which("nc") or shutil.which("ncat")) is not None:
        done = subprocess.run(
            [nc, "127.0.0.1", str(port)], input=text, capture_output=True, timeout=PATIENCE, check=False
        )
        return done.stdout.splitlines()
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(4096), b"")).splitlines()


async def test_what_a_user_tries_first_works_from_netcat() -> None:
    async with json_listener() as listener:
        text = SUB + PUB + b'{"command": "UNSUB", "topic": "test"}\n{"command": "QUIT"}\n'
        lines = [json.loads(line) for line in await asyncio.to_thread(netcat, listener.port, text)]
        events = [line["event"] for line in lines if line["event"] != "message"]
        assert events == ["subscribed", "published", "unsubscribed", "bye"]


async def test_a_command_without_end_of_line_is_done_at_the_end_of_input() -> None:
    async with json_listener() as listener:
        lines = await asyncio.to_thread(netcat, listener.port, PUB + PUB.rstrip())
        assert [json.loads(line)["offset"] for line in lines] == [0, 1]


async def test_a_command_that_was_cut_is_refused_and_not_half_understood() -> None:
    async with json_listener() as listener:
        lines = await asyncio.to_thread(netcat, listener.port, PUB[:-3])
        assert [json.loads(line)["code"] for line in lines] == ["bad_command"]
        assert await listener.broker.topics() == []


# -- bytes ------------------------------------------------------------------------------------------------------


async def test_a_command_may_come_byte_by_byte_and_with_crlf() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        for byte in PUB.replace(b"\n", b"\r\n"):
            client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.event())["event"] == "published"


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b"{\n", b'{"command": "NOPE"}\n', b"\x00\n", b'{"a": "\\ud800"}\n'])
async def test_what_is_no_command_is_answered_and_the_connection_goes_on(line: bytes) -> None:
    async with json_listener() as listener:
        client = await listener.client()
        client.send(line)
        assert (await client.event())["code"] == "bad_command"
        assert (await client.ask(command="PING"))["event"] == "pong"


async def test_a_line_that_is_too_long_names_the_limit_and_ends_the_connection() -> None:
    async with json_listener(max_line=1_000) as listener:
        client = await listener.client()
        client.send(PUB, b'{"command": "PUB", "topic": "t", "payload": "' + b"x" * 10_000_000)
        first, last = await client.rest()
        assert first["event"] == "published"
        assert last["code"] == "limit_exceeded"
        assert "max_line=1,000" in last["message"]


async def test_a_large_line_within_the_limit_is_taken() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        payload = "x" * 900_000
        answer = await client.ask(command="PUB", topic="t", payload=payload)
        assert answer["event"] == "published"


async def test_a_web_page_cannot_have_a_browser_publish() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        client.send(b"POST / HTTP/1.1\r\nHost: localhost:7789\r\n\r\n" + PUB)
        answer = await client.reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"this is the JSON lines listener" in answer
        assert await listener.broker.topics() == []


async def test_a_native_client_gets_an_error_that_names_the_listener() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        client.send(b"RNL\x01")
        (only,) = await client.rest()
        assert only["code"] == "wrong_listener"


# -- limits -----------------------------------------------------------------------------------------------------


async def test_connections_beyond_the_limit_get_an_error() -> None:
    async with json_listener(max_connections=1) as listener:
        first = await listener.client()
        await first.ask(command="PING")
        (only,) = await (await listener.client()).rest()
        assert only["code"] == "limit_exceeded"
        assert "max_connections=1" in only["message"]
        assert (await first.ask(command="PING"))["event"] == "pong"


@pytest.mark.parametrize("begun", [b"", b"\n \n", b'{"command": "PI'])
async def test_a_first_line_that_does_not_come_is_not_waited_for(begun: bytes) -> None:
    async with json_listener(hello_timeout=0.05) as listener:
        client = await listener.client()
        client.send(begun)
        (only,) = await client.rest()
        assert only["code"] == "limit_exceeded"
        assert "hello_timeout=0.05" in only["message"]
        client.close()
        await listener.connections.emptied()


async def test_a_line_that_has_begun_must_be_whole_in_time() -> None:
    async with json_listener(frame_timeout=1.0) as listener:
        with held_time() as later:
            client = await listener.client()

            async def received(size: int) -> None:
                while listener.connections.describe()[0]["receive_bytes"] != size:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0)
                await later(0)

            await client.ask(command="SUB", topic="t")  # who has a subscription may be silent, but not within a line
            await later(1.5)
            for _ in range(4):
                client.send(b" " * 10)
                await received(10)
                await later(0.5)
                client.send(b"\n")
                await received(0)
            client.send(b'{"command": "PI')
            for _ in range(3):
                await received(len(b'{"command": "PI'))
                await later(0.3)
            assert len(listener.connections) == 1
            client.send(b"NG")  # a few bytes now and then do not help
            await received(len(b'{"command": "PING'))
            await later(0.2)
            (only,) = await client.rest()
            assert (only["code"], "frame_timeout=1" in only["message"]) == ("limit_exceeded", True)


async def test_unfinished_lines_of_many_connections_are_bounded_together() -> None:
    async with json_listener(max_held_bytes=1_500_000) as listener:
        first, second = await listener.client(), await listener.client()
        for client in (first, second):
            client.send(PUB, b'{"command": "PUB", "topic": "test", "payload": "' + b"x" * 900_000)
            assert (await client.event())["event"] == "published"
            await listener.until(lambda one: one["receive_bytes"] > 900_000)
        (only,) = await first.rest()  # it had more than the other when there was too much
        assert (only["code"], "max_held_bytes" in only["message"]) == ("limit_exceeded", True)
        assert listener.memory.held < 1_500_000
        second.send(b'"}\n')
        assert (await second.event())["event"] == "published"
        assert listener.memory.held == 0


async def test_what_is_not_read_counts_until_it_is_read(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data") as broker, json_listener(broker, high_water=10_000) as listener:
        client = await slow_client(listener)
        await client.ask(command="SUB", topic="t")
        await fill(listener)
        assert listener.memory.held > 10_000
        while listener.memory.held:
            await client.long_event()
        await fill(listener)
        client.vanish()
        await listener.connections.emptied()
        assert listener.memory.held == 0


async def test_a_client_that_is_silent_for_too_long_is_disconnected_with_the_reason() -> None:
    async with json_listener(idle_timeout=0.05) as listener:
        client = await listener.client()
        await client.ask(command="PING")
        (only,) = await client.rest()
        assert only["code"] == "limit_exceeded"
        assert "idle_timeout=0.05" in only["message"]
        client.close()
        await listener.connections.emptied()


async def test_bytes_that_never_make_a_line_are_silence() -> None:
    async with json_listener(idle_timeout=0.1) as listener:
        client = await listener.client()
        reading = asyncio.create_task(client.rest())
        while not reading.done():
            client.send(b" ")
            await asyncio.wait([reading], timeout=0.02)
        assert [event["code"] for event in reading.result()] == ["limit_exceeded"]


async def test_who_has_a_subscription_may_be_silent() -> None:
    async with json_listener(idle_timeout=1.0) as listener:
        with held_time() as later:
            client = await listener.client()
            await client.ask(command="SUB", topic="t")
            for _ in range(5):
                await later(0.9)
            await listener.broker.publish("t", "1")
            assert (await client.event())["payload"] == "1"


async def test_who_never_reads_is_sent_away_too() -> None:
    async with json_listener(idle_timeout=1.0, high_water=10_000) as listener:
        with held_time() as later:
            client = await slow_client(listener)
            await client.ask(command="SUB", topic="t")
            await fill(listener)
            while len(listener.connections):
                await later(0.9)


async def slow_client(listener: Place) -> Client:
    """One whose side takes little that it has not read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", listener.port))
    client = Client(*await asyncio.open_connection(sock=connection, limit=4_096))
    listener.adopt(client)
    return client


async def fill(listener: Place, topic: str = "t") -> None:
    """Publish until the only connection has more to send than it may."""
    while not any(one["unsent_bytes"] > 10_000 for one in listener.connections.describe()):
        await listener.broker.publish(topic, "x" * 50_000)


async def test_a_slow_reader_holds_only_what_the_limit_says(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data") as broker, json_listener(broker, high_water=10_000) as listener:
        client = await slow_client(listener)
        await client.ask(command="SUB", topic="t")
        await fill(listener)
        end = (await broker.topic("t").publish_many([b"x" * 50_000] * 100)).last.offset
        (held,) = listener.connections.describe()
        assert held["unsent_bytes"] < 10_000 + 150_000  # the limit, and what one write may exceed it by
        offsets = [(await client.long_event())["offset"] for _ in range(end + 1)]
        assert offsets == list(range(end + 1))  # on disk nothing is dropped


async def test_who_does_not_read_its_answers_is_not_read_from() -> None:
    async with json_listener(high_water=10_000) as listener:
        client = await slow_client(listener)
        ping = b'{"command": "PING", "id": "' + b"x" * 1_000 + b'"}\n'
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                client.send(ping * 100)
                await client.writer.drain()
                sent += 100

        flooding = asyncio.create_task(flood())
        await listener.until(lambda one: one["unsent_bytes"] > 10_000)
        before = -1
        while before != sent:  # until the sender is stuck: turns of the loop, in which all that can be read is read
            before = sent
            for _ in range(100):
                await asyncio.sleep(0)
            (held,) = listener.connections.describe()
            assert held["unsent_bytes"] < 50_000
            assert held["receive_bytes"] < 1_000_000
        assert before > 0
        while sent == before:  # it is read from again as soon as it reads
            assert (await client.event())["event"] == "pong"
        flooding.cancel()


async def test_publishes_under_way_are_bounded() -> None:
    async with json_listener(max_pending_bytes=20_000) as listener:
        # A subscriber for whom publishers wait, so that publishes stay under way.
        async with listener.broker.subscribe("t", policy="block", buffer=1) as records:
            client = await listener.client()
            client.send(*({"command": "PUB", "topic": "t", "payload": "x" * 1_000, "id": n} for n in range(200)))
            await listener.until(lambda one: one["pending"] == 10)
            (held,) = listener.connections.describe()
            assert held["pending"] == 10
            reading = aiter(records)
            for _ in range(200):
                await anext(reading)
            assert [event["id"] for event in await client.events(200)] == list(range(200))


# -- the end ----------------------------------------------------------------------------------------------------


async def test_quit_answers_what_is_under_way_and_says_goodbye(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data") as broker, json_listener(broker) as listener:
        client = await listener.client()
        client.send(PUB * 50, {"command": "QUIT", "id": "q"}, PUB)
        *published, bye = await client.rest()
        assert [event["offset"] for event in published] == list(range(50))
        assert bye == {"event": "bye", "reason": "you quit", "id": "q"}


@pytest.mark.parametrize("how", ["close", "vanish"])
async def test_what_a_client_held_goes_back_at_once_when_it_goes(how: str) -> None:
    async with json_listener() as listener:
        client, other = await listener.client(), await listener.client()
        await client.ask(command="SUB", topic="jobs", group="g")
        await listener.broker.publish("jobs", "1")
        assert (await client.event())["attempt"] == 1
        await other.ask(command="SUB", topic="jobs", group="g")
        getattr(client, how)()
        again = await other.event()
        assert (again["payload"], again["attempt"]) == ("1", 2)


async def test_an_ack_sent_right_before_going_counts() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        await client.ask(command="SUB", topic="jobs", group="g")
        await listener.broker.publish("jobs", "1")
        await client.event()
        client.send({"command": "ACK", "delivery": 1})
        client.close()
        await listener.connections.emptied()
        assert listener.broker.group("g", "jobs").statistics().acked == 1


async def test_what_was_published_right_before_going_is_stored(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data") as broker, json_listener(broker) as listener:
        client = await listener.client()
        client.send(*({"command": "PUB", "topic": "t", "payload": str(n)} for n in range(1_000)))
        await client.writer.drain()
        client.close()
        async with broker.subscribe("t", start="earliest") as records:
            reading = aiter(records)
            assert [int((await anext(reading)).value) for _ in range(1_000)] == list(range(1_000))


async def test_a_name_is_free_again_when_its_owner_has_gone() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        await client.ask(command="SUB", topic="t", name="me")
        client.close()
        await listener.connections.emptied()
        again = await listener.client()
        assert (await again.ask(command="SUB", topic="t", name="me"))["event"] == "subscribed"


async def test_a_client_that_closed_its_side_still_reads_its_subscription() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        client.send(SUB)
        client.writer.write_eof()
        assert await client.events(2) == [{"event": "subscribed", "topic": "test"}, {"event": "ping"}]
        await listener.broker.publish("test", "1")
        assert (await client.event())["payload"] == "1"


async def test_a_client_that_closed_its_side_lets_go_of_names_and_deliveries_though_it_stays() -> None:
    async with json_listener() as listener:
        client, other = await listener.client(), await listener.client()
        await client.ask(command="SUB", topic="jobs", group="g")
        await client.ask(command="SUB", topic="t", name="me")
        await client.ask(command="SUB", topic="u")
        await listener.broker.publish("jobs", "1")
        await client.event()
        client.writer.write_eof()
        assert await client.event() == {"event": "ping"}
        assert (await other.ask(command="SUB", topic="t", name="me"))["event"] == "subscribed"
        await other.ask(command="SUB", topic="jobs", group="g")
        assert (await other.event())["attempt"] == 2
        await listener.broker.publish("u", "2")
        assert (await client.event())["payload"] == "2"


async def test_a_client_that_closed_its_side_and_went_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_INTERVAL", 0.01)
    async with json_listener(ping=0.01) as listener:
        client = await listener.client()
        await client.ask(command="SUB", topic="t")
        client.close()
        await listener.connections.emptied()
        await only_this_task()
        assert listener.broker.statistics().subscriptions == ()


async def only_this_task() -> None:
    """Return when no task is left but the one that asks."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


async def test_everything_is_let_go_at_the_end_of_each_connection() -> None:
    async with json_listener() as listener:
        for n in range(20):
            client = await listener.client()
            client.send({"command": "SUB", "topic": "t"}, {"command": "SUB", "topic": "jobs", "group": "g"})
            await client.events(2)
            client.vanish() if n % 2 else client.send({"command": "QUIT"})
            if not n % 2:
                await client.rest()
                client.close()
        await listener.connections.emptied()
        await only_this_task()
        assert listener.broker.statistics().subscriptions == ()


@pytest.mark.parametrize("how", ["close", "vanish", "quit"])
async def test_a_publish_that_waits_for_others_is_given_up_some_time_after_its_client(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINGER", 0.01)
    monkeypatch.setattr(module, "PROBE_INTERVAL", 0.01)
    async with json_listener(ping=0.01) as listener:
        async with listener.broker.subscribe("t", policy="block", buffer=1):
            client = await listener.client()
            client.send(
                {"command": "PUB", "topic": "t", "payload": "1"}, {"command": "PUB", "topic": "t", "payload": ""}
            )
            await listener.until(lambda one: one["pending"] == 1)
            if how == "quit":
                client.send({"command": "QUIT"})
            client.vanish() if how == "vanish" else client.close()
            await listener.connections.emptied()
            await only_this_task()


async def test_a_server_that_stops_answers_says_goodbye_and_closes(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data") as broker, json_listener(broker) as listener:
        client = await listener.client()
        await client.ask(command="SUB", topic="other")
        client.send(PUB * 5_000)
        assert (await client.event())["offset"] == 0
        listener.connections.drain("the server stops", None)
        *published, bye = await client.rest()
        assert bye == {"event": "bye", "reason": "the server stops"}
        assert [event["offset"] for event in published] == list(range(1, len(published) + 1))
        client.close()
        await listener.connections.emptied()


async def test_a_server_that_stops_does_not_wait_for_who_sits_there_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LINGER", 3600.0)
    async with json_listener() as listener:
        client = await listener.client()
        await client.ask(command="SUB", topic="t")
        listener.connections.drain("the server stops", None)
        assert (await client.rest())[-1] == {"event": "bye", "reason": "the server stops"}
        await listener.connections.emptied()  # though the client has not closed its side
        client.close()


async def test_it_describes_itself() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        await client.ask(command="SUB", topic="t")
        (found,) = listener.connections.describe()
        assert (found["listener"], found["subscriptions"], found["pending"]) == ("json", 1, 0)
        (peer,) = listener.connections
        assert "1 subscriptions" in repr(peer)


async def test_the_system_watches_over_the_connection() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        await client.ask(command="PING")
        (peer,) = listener.connections
        assert isinstance(peer, module.JsonLinesListener)
        assert peer._transport is not None
        connection: Any = peer._transport.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_who_comes_in_while_the_server_stops_is_not_served() -> None:
    async with json_listener() as listener:
        listener.connections.draining = True
        client = await listener.client()
        assert await client.rest() == []
        await listener.connections.emptied()
