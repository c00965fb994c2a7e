"""A server, as the commands on topics, groups, subscriptions and marks see it: what `runnel.open(url)` can do.

The facts have the names that those of a folder have, where a server knows them. What only the folder can tell is
refused, with the reason.
Below: runnel.open. Above: target.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

import runnel
from runnel.cli.problem import USAGE, Refused, unknown_group, unknown_topic
from runnel.cli.start import Start, moment, start_of
from runnel.core.errors import InvalidOption, OffsetOutOfRange
from runnel.core.pattern import is_pattern

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
    from runnel.core.mark import MarkValue
    from runnel.core.statistics import Statistics

Facts = dict[str, Any]
T = TypeVar("T")


@contextmanager
def connected(url: str) -> Iterator[ServerTarget]:
    """The server, while the block lasts. It is reached at once or not at all."""
    with asyncio.Runner() as runner:
        broker = runnel.open(url)
        runner.run(_entered(broker))
        try:
            yield ServerTarget(url, broker, runner)
        finally:
            runner.run(_left(broker))


async def _entered(broker: Broker) -> None:
    await broker.__aenter__()


async def _info(broker: Broker) -> Facts:
    """What a server says of itself; a broker that is none says nothing."""
    info = getattr(broker, "info", None)
    return {} if info is None else dict(await info())


async def _left(broker: Broker) -> None:
    await broker.__aexit__(None, None, None)


class ServerTarget:
    """A server, to look at and to change; whoever else uses it sees the change at once."""

    def __init__(self, url: str, broker: Broker, runner: asyncio.Runner) -> None:
        self.name = url
        self._broker, self._runner = broker, runner

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def statistics(self) -> Statistics:
        """What the server did and holds."""
        return self._broker.statistics()

    def info(self) -> Facts:
        """What the server is, and did since it started."""
        seen, said = self.statistics(), self._do(_info(self._broker))
        sums = ("published", "published_bytes", "delivered", "dropped")
        held = {"topics": len(seen.topics), "groups": len(seen.groups)}
        return {"server": self.name} | said | held | {name: getattr(seen, name) for name in sums}

    # -- topics -------------------------------------------------------------------------------------------------

    def topics(self) -> list[Facts]:
        """Every topic, and what it holds."""
        return [
            {
                "topic": one.name,
                "epoch": one.epoch,
                "first": one.first,
                "end": one.end,
                "bytes": one.kept_bytes,
                "published": one.published,
                "subscribers": one.subscribers,
            }
            for _, one in sorted(self.statistics().topics.items())
        ]

    def topic(self, name: str) -> Facts:
        """One topic, with the groups and the subscriptions on it."""
        seen = self.statistics()
        found = next((one for one in self.topics() if one["topic"] == name), None)
        if found is None:
            raise unknown_topic(name, self.name)
        return found | {
            "groups": [one.name for one in seen.groups if one.pattern == name],
            "cursors": [one.name for one in seen.subscriptions if one.pattern == name and one.name],
        }

    def create(self, name: str, options: Facts) -> Facts:
        """Make a topic, or find that it is there already with the same options."""
        made = name not in self._do(self._broker.topics())
        self._do(self._broker.topic(name, **options).declare())
        return {"topic": name, "epoch": self.topic(name)["epoch"], "options": options, "made": made}

    def configure(self, name: str, given: Facts) -> Facts:
        """The options of a topic are changed in a folder that nobody has open."""
        raise Refused(
            "needs_folder",
            f"the options of a topic are changed while nobody has its folder open, and {self.name!r} is being served: "
            "stop that, and say --data DIR",
            USAGE,
        )

    def delete(self, name: str) -> Facts:
        """Delete a topic, its records and the groups on it."""
        found = self.topic(name)
        self._do(self._broker.delete(name))
        return {one: found[one] for one in ("topic", "epoch", "first", "end", "groups")}

    def trim_place(self, name: str, start: Start, *, force: bool) -> Facts:
        """Where a topic would begin; by a time only the server can tell, so that is asked of it."""
        found = self.topic(name)
        first, end = found["first"], found["end"]
        if start.offset is not None and start.offset > end:
            raise OffsetOutOfRange(name, start.offset, first, end)
        before: int | datetime = end if start.word == "latest" else first
        if start.offset is not None:
            before = max(first, start.offset)
        elif start.time is not None:
            before = moment(start.time)
        return {"topic": name, "epoch": found["epoch"], "before": first, "first": before, "end": end}

    def trim(self, name: str, before: int | datetime, *, force: bool) -> int:
        """Take away the records before an offset or a time; where the topic begins then."""
        return self._do(self._broker.topic(name).trim(before, force=force))

    # -- groups and subscriptions -------------------------------------------------------------------------------

    def groups(self) -> list[Facts]:
        """Every group, how far it has come, and its members."""
        return [_renamed(one, name="group") for one in self.statistics().groups]

    def reset(self, name: str, pattern: str, start: Start) -> Facts:
        """Have a group go on somewhere else."""
        if start.offset is not None and is_pattern(pattern):
            raise InvalidOption("to", start.offset, f"offsets differ between the topics of {pattern!r}; give a time")
        self._group(name, pattern)
        self._do(self._steer(name, pattern, "reset", start_of(start)))
        return {"group": name, "pattern": pattern, "lag": self._group(name, pattern)["lag"]}

    def pause(self, name: str, pattern: str) -> None:
        """Have a group grant nothing more."""
        self._do(self._steer(name, pattern, "pause"))

    def resume(self, name: str, pattern: str) -> None:
        """Have a group go on."""
        self._do(self._steer(name, pattern, "resume"))

    async def _steer(self, name: str, pattern: str, verb: str, *start: object) -> None:
        getattr(self._broker.group(name, pattern), verb)(*start)

    def forget_group(self, name: str, pattern: str) -> Facts:
        """Forget a group that has no members."""
        lag = self._group(name, pattern)["lag"]
        self._do(self._broker.forget_group(name, pattern))
        return {"group": name, "pattern": pattern, "lag": lag}

    def _group(self, name: str, pattern: str) -> Facts:
        for one in self.groups():
            if (one["group"], one["pattern"]) == (name, pattern):
                return one
        raise unknown_group(name, pattern, self.name)

    def cursors(self) -> list[Facts]:
        """The named subscriptions: those that are open now, and where the others stand."""
        seen = self.statistics()
        opened: list[Facts] = [
            {"name": one.name, "pattern": one.pattern, "lag": one.lag, "delivered": one.delivered}
            for one in seen.subscriptions
            if one.name
        ]
        return opened + [msgspec.to_builtins(one) for one in seen.cursors]

    def cursor(self, name: str) -> Facts:
        """What is known of a named subscription that is to be forgotten; of one that is not there, its name."""
        found = next((one for one in self.statistics().cursors if one.name == name), None)
        return {"name": name} if found is None else msgspec.to_builtins(found)

    def forget(self, name: str) -> None:
        """Forget a named subscription that is closed."""
        self._do(self._broker.forget(name))

    def marks(self) -> dict[str, MarkValue]:
        """Every mark."""
        return self._do(self._broker.marks())

    def producers(self, names: list[str]) -> list[Facts]:
        """The next numbers of producers that are named; which ones there are, only the folder can tell."""
        return [{"producer": one.id, "name": one.name, "next": one.next} for one in map(self._broker.producer, names)]


def _renamed(found: Any, **names: str) -> Facts:
    """A struct's fields as facts, some under another name."""
    return {names.get(name, name): value for name, value in msgspec.to_builtins(found).items()}
