"""Where the contract is tested: every place that `runnel.open` knows. A new place adds one line to PLACES."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel import Broker
from runnel.testing.clock import JumpingClock
from tests.contract.lives import Folder
from tests.contract.reading import at_rest, opened

Opens = Callable[..., Broker]

PLACES: dict[str, Opens] = {
    "memory": lambda folder, **options: runnel.open(**options),
    "folder": lambda folder, **options: runnel.open(folder / "data", **options),
}


class PatientClock(JumpingClock):
    """Between two timers all that is on its way to a disk lands, too."""

    @staticmethod
    async def _rest() -> None:
        await at_rest()


class Place:
    """One place: opens brokers there, on a clock that the test moves."""

    def __init__(self, name: str, clock: JumpingClock, folder: Path) -> None:
        self.name, self.clock, self._folder = name, clock, folder
        self._opened = 0

    def open(self, **options: Any) -> AbstractAsyncContextManager[Broker]:
        """A broker of its own, closed when the block is left."""
        self._opened += 1
        broker = PLACES[self.name](self._folder / str(self._opened), clock=self.clock, **options)
        opened.add(broker)
        return broker


@pytest.fixture
def clock() -> JumpingClock:
    return PatientClock()


@pytest.fixture(params=sorted(PLACES))
def place(request: pytest.FixtureRequest, clock: JumpingClock, tmp_path: Path) -> Place:
    return Place(request.param, clock, tmp_path)


@pytest.fixture
async def broker(place: Place) -> AsyncIterator[Broker]:
    async with place.open() as opened:
        yield opened


@pytest.fixture(params=["closed", "killed"])
def folder(request: pytest.FixtureRequest, clock: JumpingClock, tmp_path: Path) -> Folder:
    """A folder that brokers live in one after the other; each is closed, or each is killed."""
    return Folder(tmp_path / "life-1", clock, killed=request.param == "killed")


@pytest.fixture
def data(clock: JumpingClock, tmp_path: Path) -> Folder:
    """A folder whose brokers are closed."""
    return Folder(tmp_path / "life-1", clock, killed=False)
