"""Tasks that work together: one failure ends all, and a cancellation stays one."""

from __future__ import annotations

import asyncio

import pytest

from runnel.postgres.connecting import together


async def forever(ended: list[str], name: str, error: Exception | None = None) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)
        if error is not None:
            raise error


async def test_what_one_raises_cancels_the_others_and_is_raised_as_it_is() -> None:
    ended: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await together(forever(ended, "one"), fail(), forever(ended, "other", ValueError("closed under way")))
    assert ended == ["one", "other"]


async def test_a_cancellation_is_not_lost_if_a_task_fails_while_it_is_cancelled() -> None:
    ended: list[str] = []
    task = asyncio.create_task(together(forever(ended, "one", OSError("closed under way")), forever(ended, "other")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == ["one", "other"]
