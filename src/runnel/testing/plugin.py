"""The pytest plugin: `runnel_broker`, a broker for one test, and `runnel_clock`, the clock it uses.

Installed with runnel; works with any async test runner, since a broker binds to the loop that first uses it. Nothing
is imported before a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from runnel.api.broker import Broker
    from runnel.testing.clock import JumpingClock


@pytest.fixture
def runnel_clock() -> JumpingClock:
    """A clock that only the test moves: `await runnel_clock.advance(60)`."""
    from runnel.testing.clock import JumpingClock

    return JumpingClock()


@pytest.fixture
def runnel_broker(runnel_clock: JumpingClock) -> Iterator[Broker]:
    """A broker in memory on `runnel_clock`, closed after the test."""
    from runnel.api.broker import Broker
    from runnel.broker.backend import LocalBackend

    broker = Broker(LocalBackend(clock=runnel_clock))
    yield broker
    broker.close()
