"""A server works on asyncio's own loop and on uvloop: what is said to clients is tested on both."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop

HERE = Path(__file__).parent
ON_BOTH = [
    HERE / "http" / "test_event_stream.py",
    HERE / "http" / "test_listener.py",
    HERE / "http" / "test_websocket.py",
    HERE / "native" / "test_session.py",
    HERE / "test_server_over_client.py",
    HERE / "test_server.py",
]


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if item.path in ON_BOTH:
        factories["uvloop"] = uvloop.new_event_loop
    return factories
