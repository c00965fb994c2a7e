"""The groups of a broker, by name and pattern. They outlive their members."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from runnel.broker.group.logic.group import GroupOptions
from runnel.broker.group.reader import GroupReader
from runnel.broker.topic.catalog import TopicCatalog
from runnel.broker.topic.log import Log
from runnel.broker.topic.publisher import Publisher
from runnel.core.errors import GroupInUse, InvalidOption, UnknownGroup
from runnel.core.options import SubscribeOptions
from runnel.core.position import Start
from runnel.journal.format.ledger import GroupState

_OF_TOPICS = ("dead_letter", "max_deliver", "backoff")  # what a topic says for the groups on it


MakeReader = Callable[[str, str, GroupOptions, Start, int | None, int | None], GroupReader]
"""Makes the reader of a group, not attached yet: name, pattern, options, start, buffer in records and in bytes."""


class GroupRegistry:
    """Every group that was ever joined, until the broker closes or its topic is deleted."""

    def __init__(
        self, catalog: TopicCatalog, publisher: Publisher, check_usable: Callable[[str], None], make: MakeReader
    ) -> None:
        self._catalog, self._publisher, self._check_usable, self._make = catalog, publisher, check_usable, make
        self._readers: dict[tuple[str, str], GroupReader] = {}

    def __iter__(self) -> Iterator[GroupReader]:
        return iter(self._readers.values())

    def find(self, name: str, pattern: str) -> GroupReader:
        """A group that has been joined."""
        found = self._readers.get((name, pattern))
        if found is None:
            raise UnknownGroup(name, pattern)
        return found

    def join(self, name: str, pattern: str, asked: SubscribeOptions) -> GroupReader:
        """The group, created if it is new; the requested options must agree with its own."""
        self._check_usable("subscribing")
        said = {option: value for option, value in asked.given().items() if option in GroupOptions.__struct_fields__}
        start, buffer, buffer_bytes = asked.start, asked.buffer, asked.buffer_bytes
        found = self._readers.get((name, pattern))
        if found is None:
            topic = self._catalog.logs.get(pattern)
            given = {} if topic is None else topic.options.given()
            options = GroupOptions(**{option: given[option] for option in _OF_TOPICS if option in given} | said)
            found = self._make(name, pattern, options, start, buffer, buffer_bytes)
            found.keep(None)
            self._add(found)
        elif found.is_revived:
            found.agree(GroupOptions(**msgspec.structs.asdict(found.options) | said), buffer, buffer_bytes)
        for option, value in said.items():
            if (has := getattr(found.options, option)) != value:
                raise InvalidOption(option, value, f"group {name!r} on {pattern!r} has {has!r}; members must agree")
        return found

    def revive(self, known: GroupState) -> None:
        """Bring a group back from an earlier life of the broker, to where it was."""
        options = msgspec.convert(known.options, GroupOptions)
        found = self._make(known.name, known.pattern, options, "earliest", None, None)
        found.keep(GroupState.decode(known.encode()))  # a copy: the journal changes its own
        found.is_revived = True
        self._add(found)

    def _add(self, reader: GroupReader) -> None:
        reader.attachment.attach(reader)
        self._readers[reader.name, reader.pattern] = reader
        reader.on_end = partial(self._forget, reader)

    def remove(self, name: str, pattern: str) -> None:
        """Forget a group without members, and all that it settled."""
        found = self.find(name, pattern)
        if found.subscriptions:
            raise GroupInUse(name, pattern, len(found.subscriptions))
        found.end(UnknownGroup(name, pattern))
        self._publisher.release()  # publishers that waited for it

    @staticmethod
    def unsettled(log: Log) -> int:
        """From which offset on groups still have to settle records of `log`; its end: none has."""
        least = log.end
        for reader in log.topic_readers or ():
            if not isinstance(reader, GroupReader):
                continue
            place = reader.floor()
            if reader.attachment.is_pattern:
                timeline = reader.attachment.timeline
                timeline.cool()  # an open run does not know its end
                if place >= timeline.sequence:
                    continue
                # Which offset has a sequence that left memory is not looked up: then all of the topic counts.
                place = log.offset_behind(place) if log.runs and log.runs[0].sequence <= place else log.first
            least = min(least, place)
        return least

    def unkeep(self, topic: str) -> None:
        """A topic that groups have joined already turns out not to be durable: nor are they."""
        for reader in self._readers.values():
            if reader.pattern == topic:
                reader.unkeep()

    def _forget(self, reader: GroupReader) -> None:
        """The group is over."""
        self._readers.pop((reader.name, reader.pattern), None)
