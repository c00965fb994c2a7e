"""A watch of a table: a read of it may be given up and repeated, and nothing is lost."""

import asyncio
from typing import Any

import pytest

from runnel import Broker
from tests.patience import PATIENCE


async def test_a_read_behind_a_gap_that_is_given_up_is_continued(
    runnel_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = runnel_broker.table("settings", int)
    backend = runnel_broker.backend
    history, gate, asked = type(backend).history, asyncio.Event(), asyncio.Event()

    async def slow(self: Any, *arguments: Any) -> Any:
        asked.set()
        await gate.wait()
        return await history(self, *arguments)

    async with table.watch() as changes:
        await table.put("a", 1)
        for number in range(1500):  # more than its buffer in memory holds
            await runnel_broker.publish("settings", b"%d" % number, key=f"key-{number % 2}")
        monkeypatch.setattr(type(backend), "history", slow)
        reading = asyncio.ensure_future(anext(changes))
        await asyncio.wait_for(asked.wait(), PATIENCE)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        gate.set()
        seen: dict[str, int | None] = {}
        while seen != {"a": 1, "key-0": 1498, "key-1": 1499}:
            entry = await asyncio.wait_for(anext(changes), PATIENCE)
            seen[entry.key] = entry.value
