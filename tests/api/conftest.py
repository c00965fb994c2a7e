"""The broker of most tests of handles: one in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import runnel
from runnel import Broker


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with runnel.open() as opened:
        yield opened
