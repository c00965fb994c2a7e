"""Rounds: everybody who was woken is served, a handful at a time, whatever one of them does."""

import asyncio
from typing import Any

import pytest

from runnel.core.backend import SharedSteps
from runnel.server.http import event_stream
from runnel.server.http.event_stream import StreamScheduler
from tests.server.native_client import until


class One:
    def __init__(self, all: list[tuple[int, SharedSteps]], number: int, again: StreamScheduler | None = None) -> None:
        self.all, self.number, self.again = all, number, again

    def serve(self, steps: SharedSteps) -> None:
        self.all.append((self.number, steps))
        if self.number == 13:
            raise RuntimeError("a bug")
        if self.again is not None:
            self.again.add(One(self.all, self.number + 100))


async def test_a_handful_shares_a_moment_and_others_have_their_turn_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "STREAMS_PER_TURN", 3)
    served: list[tuple[int, SharedSteps]] = []
    made, turns = StreamScheduler(), []
    for number in range(7):
        made.add(One(served, number))
    assert served == []  # nobody is served while somebody publishes
    while len(served) < 7:
        await asyncio.sleep(0)
        turns.append(len(served))
    assert [number for number, _ in served] == list(range(7))
    assert {3, 6, 7} <= set(turns)
    assert len({id(steps) for _, steps in served}) == 3


async def test_who_comes_while_others_are_served_is_served_too() -> None:
    served: list[tuple[int, SharedSteps]] = []
    made = StreamScheduler()
    for turn in range(2):
        made.add(One(served, len(served), made))
        await until(lambda turn=turn: len(served) == 2 * turn + 2)  # type: ignore[misc]
    assert [number for number, _ in served] == [0, 100, 2, 102]


async def test_one_that_fails_does_not_keep_the_others_waiting() -> None:
    served: list[tuple[int, SharedSteps]] = []
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    made = StreamScheduler()
    for number in (12, 13, 14):
        made.add(One(served, number))
    await until(lambda: len(served) == 3)
    made.add(One(served, 15))
    await until(lambda: len(served) == 4)
    assert [number for number, _ in served] == [12, 13, 14, 15]
    assert len(told) == 1
