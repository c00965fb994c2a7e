"""Fixtures of the local broker: a disk made by hand, a clock that stands still, a broker in memory and in a folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import runnel
from runnel import Broker
from runnel.testing import JumpingClock
from tests.broker.durable_broker import Disk


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture(params=["memory", "folder"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path, clock: JumpingClock) -> AsyncIterator[Broker]:
    where = None if request.param == "memory" else tmp_path
    async with runnel.open(where, clock=clock) as opened:
        yield opened
