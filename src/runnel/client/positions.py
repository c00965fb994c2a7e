"""`RemoteBroker.bounds()` and `place()`: where topics begin and end, and stored positions of named subscriptions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from runnel.core.clock import micros
from runnel.core.pattern import check_pattern
from runnel.core.position import Position, check_start, checked_positions
from runnel.core.topic_bounds import TopicBounds

if TYPE_CHECKING:
    from runnel.client.server_link import ServerLink


class RemotePositions:
    """What a server's broker knows of places in its topics."""

    link: ServerLink

    async def bounds(self, *patterns: str, time: datetime | None = None) -> list[TopicBounds]:
        """Where the topics of these names and patterns begin and end, by name; of all topics if none is named.

        With a `time`, also from which offset on they are not older. Only what is visible counts.
        """
        patterns = tuple(check_pattern(one) for one in patterns or (">",))
        if time is not None:
            check_start(time, patterns[0], is_pattern=False)
        asked = {"patterns": patterns, "time": None if time is None else micros(time)}
        return msgspec.convert(await self.link.call("bounds", asked), list[TopicBounds])

    async def place(self, places: Mapping[str, tuple[str, Position]], *, hold: bool | None = None) -> None:
        """Store where named subscriptions stand, though nobody reads under these names: name to (topic, position).

        For those who read in another way, such as a query of Spark, and want to be seen: their lag is told like any
        other's. With `hold=True` what lies behind their positions is not taken away, with False it may be; None
        leaves it as it is. All of it is stored together, and durable when this returns; or it raises, and nothing is.
        `NameInUse` while somebody reads under one of the names.
        """
        found = checked_positions(places, hold)
        said = [[name, topic, place.epoch, place.offset] for name, (topic, place) in found.items()]
        await self.link.call("place", {"places": said, "hold": hold})
