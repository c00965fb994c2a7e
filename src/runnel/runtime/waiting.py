"""Waiting for futures with a timeout on the broker's clock, so that a test can move it; and resolving waiters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from runnel.core.clock import Clock


def resolve_waiter(waiter: asyncio.Future[Any], error: BaseException | None = None) -> None:
    """Complete a waiter with its result or error, unless its loop is closed."""
    if waiter.done():
        return
    try:
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
    except RuntimeError:
        if not waiter.get_loop().is_closed():
            raise


async def wait_all(futures: Iterable[asyncio.Future[Any]], timeout: float | None, clock: Clock) -> bool:
    """Wait until every future is done, at most `timeout` seconds; whether they are."""
    alarm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = None if timeout is None else clock.call_later(timeout, alarm.cancel)
    pending = {future for future in futures if not future.done()}
    try:
        while pending and not alarm.done():
            await asyncio.wait({*pending, alarm}, return_when=asyncio.FIRST_COMPLETED)
            pending = {future for future in pending if not future.done()}
    finally:
        alarm.cancel()
        if timer is not None:
            timer.cancel()
    return not pending
