"""Who is connected: counted, bounded, told."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from runnel.core.errors import LimitExceeded
from runnel.server.connections import Connections


class Someone:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def describe(self) -> dict[str, Any]:
        return {"door": "test"}

    def drain(self, reason: str, retry: float | None) -> None:
        self.told.append((reason, retry))

    def abort(self) -> None:
        self.told.append("abort")


async def test_the_one_too_many_is_refused_with_the_name_of_the_limit() -> None:
    connections = Connections(2)
    first, second, third = Someone(), Someone(), Someone()
    assert [connections.add(first), connections.add(second)] == [1, 2]
    with pytest.raises(LimitExceeded) as refused:
        connections.add(third)
    assert (refused.value.limit, refused.value.allowed) == ("max_connections", 2)
    connections.remove(first)
    assert connections.add(third) == 3  # a number is never used twice
    assert (len(connections), connections.accepted, connections.refused) == (2, 3, 1)


async def test_whoever_was_one_too_many_does_not_outlive_the_server() -> None:
    connections = Connections(1)
    connections.add(Someone())
    ends: list[Callable[[], None]] = [lambda: connections.drain("closing time", None), connections.abort]
    for end in ends:
        late = Someone()
        with pytest.raises(LimitExceeded):
            connections.add(late)
        end()
        assert late.told == ["abort"]
        connections.remove(late)
        assert len(connections) == 1


async def test_removing_somebody_who_was_never_counted_is_harmless() -> None:
    connections = Connections(1)
    known = Someone()
    connections.add(known)
    connections.remove(Someone())
    assert list(connections) == [known]


async def test_waiting_for_the_last_one_ends_when_it_is_gone() -> None:
    connections = Connections(5)
    await connections.emptied()
    one, other = Someone(), Someone()
    connections.add(one)
    connections.add(other)
    waiting = asyncio.ensure_future(connections.emptied())
    connections.remove(one)
    await asyncio.sleep(0)
    assert not waiting.done()
    connections.remove(other)
    await waiting


async def test_whoever_gives_up_its_seat_and_takes_it_again_is_still_waited_for() -> None:
    connections = Connections(1)
    one, successor = Someone(), Someone()
    connections.add(one)
    waiting = asyncio.ensure_future(connections.emptied())
    await asyncio.sleep(0)
    connections.remove(one)
    connections.add(successor)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    connections.remove(successor)
    await waiting


async def test_everybody_is_told_that_the_server_stops() -> None:
    connections = Connections(5)
    one, other = Someone(), Someone()
    connections.add(one)
    connections.add(other)
    connections.drain("closing time", 2.0)
    assert connections.draining
    connections.abort()
    assert one.told == other.told == [("closing time", 2.0), "abort"]


async def test_each_is_described_with_its_number() -> None:
    connections = Connections(5)
    connections.add(Someone())
    assert connections.describe() == [{"connection": 1, "door": "test"}]
