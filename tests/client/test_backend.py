"""What a broker asks of a server, call by call. That all backends do the same: tests/contract."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import runnel
from runnel import Policy, Position
from runnel.api.broker import Broker
from runnel.client.backend import RemoteBackend
from runnel.client.member import RemoteMember
from runnel.client.reader import RemoteReader
from runnel.core.errors import BadAddress, InvalidName, InvalidOption, NotSupported
from runnel.core.schema import Schema
from runnel.core.stages import StageInfo
from runnel.core.statistics import Statistics, SubscriberTotals
from runnel.core.topic_bounds import TopicBounds
from runnel.wire.msgpack_messages import Subscribe
from tests.client.memory_link import joined, subscribe
from tests.client.scripted_server import Joined, Peer


@pytest.mark.parametrize(
    ("work", "method", "args", "result", "found"),
    [
        (
            lambda b: b.bounds("t", time=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
            "bounds",
            {"patterns": ["t"], "time": 1_000_000},
            [{"topic": "t", "epoch": 1, "first": 2, "end": 5, "bytes": 9, "schema": ["json", {}], "later": True}],
            [TopicBounds("t", 1, 2, 5, 9, schema=Schema("json", {}))],
        ),
        (lambda b: b.bounds(), "bounds", {"patterns": [">"], "time": None}, [], []),
        (lambda b: b.info(), "info", {}, {"version": "1"}, {"version": "1"}),
        (lambda b: b.topics(), "topics", {}, ["a"], ["a"]),
        (lambda b: b.delete("a"), "delete", {"topic": "a"}, None, None),
        (lambda b: b.mark("m"), "mark", {"name": "m"}, 5, 5),
        (lambda b: b.marks("m"), "marks", {"prefix": "m"}, {"m1": b"x"}, {"m1": b"x"}),
        (lambda b: b.forget("n"), "forget", {"name": "n"}, None, None),
        (lambda b: b.forget_group("g", "a.>"), "forget_group", {"name": "g", "pattern": "a.>"}, None, None),
        (lambda b: b.replay("a", limit=3), "replay", {"topic": "a", "limit": 3}, 2, 2),
        (lambda b: b.replay("a", offsets=(3,)), "replay", {"topic": "a", "limit": None, "offsets": [3]}, 1, 1),
        (lambda b: b.discard("a", [3, 4]), "discard", {"topic": "a", "offsets": [3, 4]}, 2, 2),
        (lambda b: b.discard("a"), "discard", {"topic": "a", "offsets": None}, 2, 2),
        (
            lambda b: b.stages(),
            "stages",
            {},
            [msgspec.to_builtins(StageInfo(1, "w", 2, 3, 4, "a", 5, 6, 7.0))],
            [StageInfo(1, "w", 2, 3, 4, "a", 5, 6, 7.0)],
        ),
    ],
)
async def test_what_is_asked_of_it_is_asked_of_the_server(
    joined: Joined, work: Callable[[Broker], Any], method: str, args: Any, result: Any, found: Any
) -> None:
    async with joined() as (broker, caller):
        task = asyncio.ensure_future(work(broker))
        asked = await caller.next()
        assert asked.call == (method, args)
        caller.reply(asked, result)
        assert await task == found


@pytest.mark.parametrize(
    "work",
    [
        lambda backend: backend.history("t", "earliest", 10, 1000),
        lambda backend: backend.dead_letter_topics(),
        lambda backend: backend.dead_letters("t", 0, 10, 1000),
        lambda backend: backend.end_sequence(),
        lambda backend: backend.sample(),
    ],
)
async def test_a_server_of_an_earlier_version_is_distinguished_from_a_wrong_option(
    joined: Joined, work: Callable[[RemoteBackend], Any]
) -> None:
    async with joined() as (broker, caller):
        task = asyncio.ensure_future(work(broker.backend))
        asked = await caller.next()
        method, _ = asked.call
        caller.refuse(asked, InvalidOption("method", method, "there is no such call"))
        with pytest.raises(NotSupported, match="of an earlier version"):
            await task


async def test_publishes_by_name_are_gathered(joined: Joined) -> None:
    async with joined() as (broker, caller):
        tasks = [asyncio.create_task(broker.publish("a", value)) for value in (b"1", "2")]
        asked = await caller.next()
        assert asked.values == (b"1", b"2")
        caller.publish(asked, 0)
        await asyncio.gather(*tasks)


async def test_its_statistics_are_the_servers_but_for_the_handlers(joined: Joined, peer: Peer) -> None:
    told = Statistics({}, (), (), (), {("a", "x"): SubscriberTotals(1, 2, 3, 4)}, 5, 6, 7, 8, 9)
    async with joined() as (broker, _):

        async def work(value: bytes) -> None: ...

        broker.on("a")(work)
        task = asyncio.create_task(asyncio.to_thread(broker.statistics))
        caller = await peer.accept()
        sent = msgspec.structs.asdict(told)
        sent["flowed"] = [["a", "x", msgspec.to_builtins(SubscriberTotals(1, 2, 3, 4))]]
        caller.reply(await caller.next_call("statistics"), sent)
        found = await task
        assert [handler.pattern for handler in found.handlers] == ["a"]
        assert msgspec.structs.replace(found, handlers=()) == told
        assert broker.handlers() == found.handlers


def test_what_cannot_be_opened_is_refused_when_it_is_said() -> None:
    with pytest.raises(BadAddress):
        RemoteBackend.at("http://a")
    with pytest.raises(InvalidOption, match="did you mean 'timeout'"):
        runnel.open("runnel://a", timout=3)
    with pytest.raises(NotSupported, match="the server's to say"):
        runnel.open("runnel://a", auto_create=False)
    assert runnel.open("runnel://a?timeout=7", timeout=8).backend.link.options.timeout == 8


async def test_what_can_never_succeed_does_not_travel(joined: Joined) -> None:
    async with joined() as (broker, _):
        with pytest.raises(InvalidName):
            broker.topic("a b")
        with pytest.raises(InvalidName):
            await broker.publish("a..b", b"x")
        with pytest.raises(NotSupported, match="cannot run your function"):
            await broker.replay("a", where=lambda record: True)
        with pytest.raises(InvalidOption, match="give the handler a group"):
            broker.on("a", retries=3)
        with pytest.raises(InvalidOption):
            await broker.replay("a", limit=0)


async def test_it_is_not_entered_twice_nor_after_it_was_closed(joined: Joined) -> None:
    async with joined() as (broker, _):
        assert await broker.__aenter__() is broker
        assert broker.loop is asyncio.get_running_loop()
    with pytest.raises(Exception, match="entering it again"):
        await broker.__aenter__()


# -- What a subscriber asks for: what is wrong is said before the server is asked, the rest travels as it is ----


@pytest.mark.parametrize(
    ("pattern", "options", "option"),
    [
        ("t", {"start": "newest"}, "start"),
        ("t", {"start": datetime(2026, 1, 1)}, "start"),
        ("a.*", {"start": 5}, "start"),
        ("t", {"buffer": 0}, "buffer"),
        ("t", {"buffer_bytes": True}, "buffer_bytes"),
        ("t", {"name": ""}, "name"),
        ("t", {"hold": True}, "hold"),
        ("t", {"policy": "drop"}, "policy"),
        ("t", {"dead_letter": "t"}, "dead_letter"),
        ("t", {"prefetch": 5}, "prefetch"),
        ("t", {"ack_wait": 5}, "ack_wait"),
        ("t", {"group": "g", "policy": "block"}, "policy"),
        ("t", {"group": "g", "strict": True}, "strict"),
        ("t", {"group": "g", "prefetch": 0}, "prefetch"),
        ("t", {"group": "g", "start": "newest"}, "start"),
    ],
)
async def test_what_is_wrong_is_said_at_once(pattern: str, options: dict[str, Any], option: str) -> None:
    async with joined() as (_, link):
        with pytest.raises(runnel.InvalidOption) as caught:
            subscribe(link, pattern, **options)
        assert caught.value.option == option
        assert link.kinds == []


async def test_a_wrong_pattern_is_refused_and_nothing_is_held_in_memory() -> None:
    async with joined() as (_, link):
        with pytest.raises(runnel.InvalidPattern):
            subscribe(link, "a..b")
        with pytest.raises(runnel.NotSupported, match="memory"):
            subscribe(link, hold=True, name="n")


async def test_what_was_asked_for_travels() -> None:
    async with joined(credit=777) as (_, link):
        when = datetime(2026, 1, 1, tzinfo=UTC)
        one = subscribe(link, start=when, name="n", policy=Policy.block(5), buffer=7, on_drop=print)
        reader = one._source
        assert isinstance(reader, RemoteReader)
        asked = reader._asked
        assert isinstance(asked, Subscribe)
        assert asked.start == {"time": when.isoformat()}
        assert asked.policy is not None
        assert (asked.policy.kind, asked.policy.timeout) == ("block", 5)
        assert (asked.name, asked.buffer, asked.drops, asked.credit, asked.resume) == ("n", 7, True, 777, False)
        assert (one.label, one.name, one.pattern) == ("n", "n", "t")
        assert subscribe(link, start=Position(3, 4))._source._asked.start == {"epoch": 3, "offset": 4}
        deliveries = subscribe(link, group="g", prefetch=3, backoff=(1, 2), max_deliver=5)
        member = deliveries._source
        assert isinstance(member, RemoteMember)
        assert (deliveries.prefetch, deliveries.group) == (member.prefetch, member.group) == (3, "g")
        assert (member._asked.backoff, member._asked.max_deliver) == ((1, 2), 5)


async def test_two_without_a_name_have_labels_of_their_own() -> None:
    async with joined() as (_, link):
        assert subscribe(link).label != subscribe(link).label
        assert subscribe(link, group="g").label != subscribe(link, group="g").label
