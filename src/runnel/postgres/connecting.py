"""Connections to PostgreSQL, and the tasks that work on them together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import psycopg


async def connect(dsn: str, name: str, **options: Any) -> psycopg.AsyncConnection[Any]:
    """A connection of the relay, in autocommit mode. A server that is cut off is noticed within half a minute."""
    alive = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
    return await psycopg.AsyncConnection.connect(dsn, autocommit=True, application_name=name[:63], **(alive | options))


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Run all of it; what one raises cancels the others, and is raised.

    A TaskGroup would raise a group, and turn a cancellation into an error if a connection fails while it is closed.
    """
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
