"""Where topics begin and end, asked of a server. That all backends tell the same: tests/contract/test_bounds.py."""

from datetime import UTC, datetime
from typing import Any

from runnel.client.positions import RemotePositions
from runnel.core.schema import Schema
from runnel.core.topic_bounds import TopicBounds


class Link:
    """Answers one call, and remembers it."""

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        self.asked = method, args
        return [{"topic": "t", "epoch": 1, "first": 2, "end": 5, "bytes": 9, "schema": ["json", {}], "later": True}]


class Asking(RemotePositions):
    """Somebody with a link."""

    def __init__(self) -> None:
        self.asked = Link()
        self.link = self.asked  # type: ignore[assignment]


async def test_a_time_travels_as_microseconds_and_what_is_not_known_is_left_alone() -> None:
    asking = Asking()
    found = await asking.bounds("t", time=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    assert asking.asked.asked == ("bounds", {"patterns": ("t",), "time": 1_000_000})
    assert found == [TopicBounds("t", 1, 2, 5, 9, schema=Schema("json", {}))]
    await asking.bounds()
    assert asking.asked.asked == ("bounds", {"patterns": (">",), "time": None})
