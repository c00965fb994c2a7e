"""Where the contract is tested: every place that `runnel.open` knows. A new place adds one line to PLACES.

A test that is marked `near` states what holds only where the broker is in the same process, and says why.

Every case runs in memory, on a folder and over TCP to a server in memory. Over a Unix socket to a server on a folder,
and through a server that has its topics from another server, `make test` runs the tests that are decorated with
`on_every_socket`, and `make nightly` runs all of them.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

import runnel
from runnel import Broker
from runnel.testing.clock import JumpingClock
from tests.cluster.real_clock import RealClock
from tests.cluster.single import open_cluster
from tests.contract.afar import Served, is_on_every_socket
from tests.contract.lives import Folder
from tests.contract.on_cluster import NOT_ON_CLUSTER
from tests.contract.reading import at_rest, opened

Opens = Callable[..., AbstractAsyncContextManager[Broker]]


def _near(broker: Broker) -> Broker:
    opened.add(broker)
    return broker


NEAR: dict[str, Opens] = {
    "memory": lambda folder, clock, **options: _near(runnel.open(clock=clock, **options)),
    "folder": lambda folder, clock, **options: _near(runnel.open(folder / "data", clock=clock, **options)),
}
PLACES: dict[str, Opens] = NEAR | {
    "tcp": lambda folder, clock, **options: Served(clock, None, options, unix=False),
    "unix": lambda folder, clock, **options: Served(clock, folder / "data", options, unix=True),
    "front": lambda folder, clock, **options: Served(clock, None, options, unix=False, front=True),
}
PLACES["cluster"] = lambda folder, clock, **options: _near(open_cluster(**options))
LATE = {"unix", "front"}  # where `make test` runs what is decorated with `on_every_socket`


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        is_near = metafunc.definition.get_closest_marker("near") is not None
        found = sorted(NEAR) if is_near else places(is_on_every_socket(metafunc.function))
        if not is_near and metafunc.function.__name__ not in NOT_ON_CLUSTER:
            found.append(pytest.param("cluster", marks=[] if _is_soon(metafunc.function) else [pytest.mark.nightly]))
        metafunc.parametrize("place", found, indirect=True)


def places(every_socket: bool) -> list[Any]:
    """The names of all places for `parametrize`; unless `every_socket`, those in LATE are nightly."""
    late = [] if every_socket else [pytest.mark.nightly]
    return [pytest.param(name, marks=late if name in LATE else []) for name in sorted(PLACES) if name != "cluster"]


def _is_soon(test: Callable[..., Any]) -> bool:
    """Whether `make test` runs it on a cluster: every fourth does, and `make nightly` runs all of them."""
    return crc32(test.__name__.encode()) % 4 == 0


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
        return PLACES[self.name](self._folder / str(self._opened), self.clock, **options)


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> JumpingClock:
    parameters = getattr(request.node, "callspec", None)
    return RealClock() if parameters is not None and parameters.params.get("place") == "cluster" else PatientClock()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """To refuse what JetStream cannot do keeps the contract, too: docs/reference/backends.md says what that is."""
    parameters = getattr(item, "callspec", None)
    if parameters is None or parameters.params.get("place") != "cluster":
        return (yield)
    with suppress(runnel.NotSupported):
        yield


@pytest.fixture
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
