"""Where records come from: a folder on this host, or a server. One look, the same from both.

Below: folder_reading, server_reading, chosen by the place. Above: course, selection, and the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Protocol

from runnel.core.bounds import TopicBounds
from runnel.core.errors import NotSupported
from runnel.core.pattern import is_pattern
from runnel.journal.found import Lost
from runnel.spark.options import Place
from runnel.spark.portion import Portion
from runnel.spark.ranges import OffsetRange


class Reading(Protocol):
    """Topics that can be read by ranges. It belongs to one thread."""

    @property
    def journal(self) -> str:
        """The id of what is read: sequences and epochs of another one mean other records."""

    def bounds(self, patterns: Sequence[str], time: datetime | None = None) -> list[TopicBounds]:
        """Where the topics of these names and patterns begin and end now, by name."""

    def read(self, wanted: OffsetRange) -> Iterator[Portion | Lost]:
        """The records of a range in order, and what of it cannot be read any more. It ends when all was read."""

    def close(self) -> None:
        """Let go of it. Harmless twice."""


def open_reading(place: Place) -> Reading:
    """The reading of a place."""
    if place.path is not None:
        from runnel.spark.folder_reading import FolderReading

        return FolderReading(place.path)
    from runnel.spark.server_reading import ServerReading

    assert place.url is not None, "a place is one or the other"
    return ServerReading(place.url, place.client)


def durable(found: Sequence[TopicBounds], patterns: Sequence[str]) -> list[TopicBounds]:
    """Those that are on disk. One that was asked for by its name and is not is an error."""
    for one in found:
        if not one.durable and one.topic in patterns and not is_pattern(one.topic):
            raise NotSupported(
                f"reading topic {one.topic!r} with Spark", "it is kept in memory only, and its records go at any moment"
            )
    return [one for one in found if one.durable]
