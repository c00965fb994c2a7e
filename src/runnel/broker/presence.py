"""The presence of a topic, derived from its attached readers. Only their times are stored for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from runnel.broker.group.reader import GroupReader
from runnel.broker.read.reader import LocalReader
from runnel.core.presence import MAX_PRESENT, Present, present_id

if TYPE_CHECKING:
    from runnel.broker.parts import BrokerParts
    from runnel.broker.topic.readers import TopicReader


def present(backend: BrokerParts, topic: str) -> list[Present]:
    """The subscriptions that read `topic`, also those of patterns, in the order in which they came."""
    log = backend.catalog.logs.get(topic)  # event streams and patterns wait for topics that are not there yet
    readers = backend.readers.patterns.covering(topic) if log is None else log.topic_readers or ()
    return sorted(islice(_present(list(readers)), MAX_PRESENT), key=attrgetter("since"))


def _present(readers: list[TopicReader]) -> Iterator[Present]:
    for reader in readers:
        if isinstance(reader, LocalReader) and reader.pattern[0] != "$":
            _seen(reader.on_presence)
            name, since = reader.label, reader.since
            yield Present(present_id(name, None, since), name, since, None, reader.options.presence, reader.principal)
        elif isinstance(reader, GroupReader):
            for member in reader.subscriptions.values():
                _seen(member.on_presence)
                name, since, group = member.label, member.since, reader.name
                yield Present(present_id(name, group, since), name, since, group, member.presence, member.principal)


def _seen(on_presence: Callable[[], None] | None) -> None:
    """A server has connections watched closely while others ask who is there."""
    if on_presence is not None:
        on_presence()
