"""Where the contract is tested: every place that `runnel.open` knows. A new place adds one line to PLACES."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

import runnel
from runnel import Broker
from runnel.testing.clock import JumpingClock

Opens = Callable[..., AbstractAsyncContextManager[Broker]]

PLACES: dict[str, Opens] = {
    "memory": lambda **options: runnel.open(**options),
}


class Place:
    """One place: opens brokers there, on a clock that the test moves."""

    def __init__(self, name: str, clock: JumpingClock) -> None:
        self.name, self.clock = name, clock

    def open(self, **options: Any) -> AbstractAsyncContextManager[Broker]:
        """A broker of its own, closed when the block is left."""
        return PLACES[self.name](clock=self.clock, **options)


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture(params=sorted(PLACES))
def place(request: pytest.FixtureRequest, clock: JumpingClock) -> Place:
    return Place(request.param, clock)


@pytest.fixture
async def broker(place: Place) -> AsyncIterator[Broker]:
    async with place.open() as opened:
        yield opened
