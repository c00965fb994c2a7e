"""A client's way to a server, the same for runnel and its peers, so that one worker can drive all of them.

Which server, which client and which of its calls is a road's name; the call of each is stated beside its figures.
Below: runnel_road, peers. Above: worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

TOPIC = "t"
LIST = 1000
IN_FLIGHT = 16  # lists that are under way at once, for every client that can have several

Keep: TypeAlias = Callable[[Sequence[bytes]], None]
"""What a reader does with values that it has in hand."""


class Road(Protocol):
    """One connection. Everything goes to one topic."""

    async def flood(self, lists: Iterable[list[bytes]]) -> None:
        """Publish all of these, as fast as it goes; return when the server has, or acknowledged, the last one."""

    async def send(self, values: list[bytes]) -> None:
        """Publish one list, the best way there is; return when the server has it."""

    async def hand_over(self, value: bytes) -> None:
        """Publish one value that goes on its way now; do not wait for an answer where that can be left out."""

    async def store(self, value: bytes) -> None:
        """Publish one value; return when the server acknowledged it."""

    async def subscribe(self, keep: Keep) -> None:
        """Begin to read; return when what is published from now on will come."""


def road(name: str, url: str) -> AbstractAsyncContextManager[Road]:
    """The road of that name to the server at `url`."""
    from benchmarks import runnel_road
    from benchmarks.peers import nats_road, redis_road

    opened: AbstractAsyncContextManager[Road] = {
        "runnel": runnel_road.in_lists,
        "runnel by tick": runnel_road.by_tick,
        "nats": nats_road.core,
        "jetstream": nats_road.jetstream,
        "redis": redis_road.streams,
    }[name](url)
    return opened
