"""The broker of a server: the same API as the one in this process."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from runnel.broker.broker import Broker
from runnel.broker.topic_handle import Topic
from runnel.client.broker import RemoteBroker
from runnel.client.topic import RemoteTopic
from runnel.core.errors import BadAddress, InvalidName, InvalidOption, NotSupported
from runnel.core.stages import StageInfo
from runnel.core.statistics import Statistics, SubscriberTotals
from tests.client.scripted_server import Joined, Peer


def surface(kind: type) -> dict[str, Any]:
    """What users can call, and how."""
    names = [name for name in vars(kind) if not name.startswith("_")]
    return {
        name: list(inspect.signature(found).parameters.values()) if inspect.isfunction(found) else "a property"
        for name in names
        if isinstance(found := vars(kind)[name], property) or inspect.isfunction(found)
    }


def plain(parameters: Any) -> Any:
    """Names, kinds and defaults; the types differ by their names alone."""
    return parameters if isinstance(parameters, str) else [(p.name, p.kind, p.default) for p in parameters]


@pytest.mark.parametrize(("local", "remote"), [(Broker, RemoteBroker), (Topic, RemoteTopic)])
def test_all_that_a_broker_in_this_process_can_be_told(local: type, remote: type) -> None:
    here, there = surface(local), surface(remote)
    assert here.keys() <= there.keys()
    for name, parameters in here.items():
        assert plain(there[name]) == plain(parameters), name


@pytest.mark.parametrize(
    ("work", "method", "args", "result", "found"),
    [
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
    joined: Joined, work: Callable[[RemoteBroker], Any], method: str, args: Any, result: Any, found: Any
) -> None:
    async with joined() as (broker, caller):
        task = asyncio.ensure_future(work(broker))
        asked = await caller.next()
        assert asked.call == (method, args)
        caller.reply(asked, result)
        assert await task == found


async def test_publishes_by_name_are_gathered(joined: Joined) -> None:
    async with joined() as (broker, caller):
        tasks = [asyncio.create_task(broker.publish("a", value)) for value in (b"1", "2")]
        asked = await caller.next()
        assert asked.values == (b"1", b"2")
        caller.publish(asked, 0)
        await asyncio.gather(*tasks)


async def test_handles_of_many_topics_are_not_kept_for_ever(joined: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.client.broker.HANDLES", 2)
    async with joined() as (broker, _):
        for name in ("a", "b", "c"):
            broker._plain(name)
        assert list(broker._topics) == ["c"]


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
        RemoteBroker("http://a")
    with pytest.raises(InvalidOption, match="did you mean 'timeout'"):
        RemoteBroker("runnel://a", timout=3)
    with pytest.raises(NotSupported, match="the server's to say"):
        RemoteBroker("runnel://a", auto_create=False)
    assert RemoteBroker("runnel://a?timeout=7", timeout=8).link.options.timeout == 8


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
