"""A server works on asyncio's own loop and on uvloop: what is said to clients is tested on both."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

ON_BOTH = ("test_door.py", "test_gateway.py", "test_native.py", "test_server.py", "test_stream.py", "test_websocket.py")


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if item.path.name in ON_BOTH:
        factories["uvloop"] = uvloop.new_event_loop
    return factories
