"""Records of one topic that travel in one frame, from the first publish to the answer.

Below: core.packing. Above: outbox, which sends them; topic, which fills them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from runnel.core.checksum import crc_of
from runnel.core.packing import BYTES, pack, unpack
from runnel.core.record import Meta

LANES = 64
UNSAID = -1.0  # of a timeout: as in the options
OVERHEAD = 48  # what a record costs beside its bytes, about: an empty one is not free


class Route(NamedTuple):
    """What all parcels of one handle have in common: where they go, and how they are packed."""

    topic: str
    name: bytes  # the topic, as it travels
    lane: int
    said: bytes | None = None  # an About, encoded: the options and the type of the handle
    content_type: int = BYTES
    compression: str | None = None

    @classmethod
    def to(
        cls, topic: str, said: bytes | None = None, content_type: int = BYTES, compression: str | None = None
    ) -> Route:
        """The way to `topic`."""
        name = topic.encode()
        return cls(topic, name, crc_of(name) % LANES, said, content_type, compression)


class Parcel:
    """Records that are sent together. It takes more while its `size` is below its `cap`; sealed, that is 0.

    A `whole` one was published by one call and is answered as one; others gather what many calls published.
    `waiters` are pairs of an index and whoever waits for the record there.
    """

    __slots__ = (
        "abandoned",
        "batch",
        "born",
        "cap",
        "count",
        "epoch",
        "first",
        "id",
        "lane",
        "metas",
        "number",
        "numbered",
        "order",
        "patience",
        "producer",
        "route",
        "said",
        "sent",
        "size",
        "tries",
        "values",
        "waiters",
        "whole",
    )

    def __init__(
        self,
        route: Route,
        values: list[bytes],
        metas: list[Meta | None] | None = None,
        *,
        size: int = 0,
        cap: int = 0,
        whole: bool = False,
        numbered: bool = True,
        said: bytes | None = None,
        batch: bytes | None = None,
    ) -> None:
        self.route, self.values, self.metas = route, values, metas
        self.size, self.cap, self.whole, self.numbered = size, cap, whole, numbered
        self.said = said or route.said
        self.waiters: list[list[Any]] = []
        self.count = len(values)
        self.batch = batch  # once it was sent; the values are let go then
        self.producer = self.number = 0
        self.id = 0  # of its frame; 0: it is not under way
        self.sent = False  # at least once
        self.lane: Any = None  # that it waits in, or is under way in; None: it is answered
        self.order = 0  # among all that was ever published by this client
        self.epoch = self.first = 0  # where it is, once that is known
        self.tries = 0  # how often its numbers did not fit
        self.abandoned = False  # nobody waits for it any more, and nobody is to have it
        self.born = 0.0
        self.patience: float | None = UNSAID  # seconds that its waiters wait

    def __repr__(self) -> str:
        state = f"under way as {self.id}" if self.id else "waiting to be sent"
        return f"<Parcel of {self.count or len(self.values)} records for {self.route.topic!r}, {state}>"

    def add(self, value: bytes, meta: Meta | None, size: int) -> int:
        """Take in one more record; its index. One that carries nothing may be appended to `values` as well."""
        index = len(self.values)
        if meta is not None:
            self._fill_metas()
            if self.metas is None:
                self.metas = [None] * index
            self.metas.append(meta)
        self.values.append(value)
        self.size += size
        return index

    def _fill_metas(self) -> None:
        """Have as many metas as values, if there are any."""
        if self.metas is not None and len(self.metas) < len(self.values):
            self.metas += [None] * (len(self.values) - len(self.metas))

    def pack(self, producer: int, number: int) -> bytes:
        """The batch, with its numbers; packed now if it was not before. Nothing can be added or taken out any more."""
        if self.batch is None:
            self._fill_metas()
            self.count = len(self.values)
            route = self.route
            self.batch = pack(
                self.values,
                self.metas,
                compression=route.compression,
                content_type=route.content_type,
                producer=producer if self.numbered else 0,
                producer_sequence=number if self.numbered else 0,
            )
            self.producer, self.number = producer, number
            self.values, self.metas = [], None
        return self.batch

    def withdraw(self, waiter: Any) -> int:
        """Take out the record that `waiter` waits for, of a parcel that was never sent; the bytes that are free now."""
        place = next((place for place, (_, other) in enumerate(self.waiters) if other is waiter), None)
        if place is None:
            return 0
        index, _ = self.waiters.pop(place)
        if self.whole:
            freed, self.size = self.size, 0
            self.values, self.metas, self.batch = [], None, None
            return freed
        self._fill_metas()
        freed = cost(self.values[index], None if self.metas is None else self.metas[index])
        del self.values[index]
        if self.metas is not None:
            del self.metas[index]
        for pair in self.waiters[place:]:
            pair[0] -= 1
        self.size -= freed
        return freed

    def is_awaited(self) -> bool:
        """Whether anybody still wants to have it sent: one who waits, or one who never did."""
        if any(not waiter.done() for _, waiter in self.waiters):
            return True
        return not self.waiters if self.whole else len(self.waiters) < (self.count or len(self.values))

    def halves(self) -> tuple[Parcel, Parcel]:
        """The same records in two parcels, with the same numbers. It was packed, and has two records at least."""
        assert self.batch is not None, "what was refused was packed"
        unpacked = unpack(self.batch, verify=False)
        metas = unpacked.metas
        middle = self.count // 2
        made = []
        for start, end in ((0, middle), (middle, self.count)):
            found = [metas.get(index) for index in range(start, end)] if metas else None
            values = list(unpacked.values[start:end])
            half = Parcel(self.route, values, found, size=weight(values, found), said=self.said)
            half.waiters = [[index - start, waiter] for index, waiter in self.waiters if start <= index < end]
            half.born, half.patience, half.lane, half.order = self.born, self.patience, self.lane, self.order
            half.pack(self.producer, self.number + start)
            half.sent = True
            made.append(half)
        return made[0], made[1]


def cost(value: bytes, meta: Meta | None) -> int:
    """What a record counts towards the bound of what may be on its way."""
    return len(value) + OVERHEAD if meta is None else len(value) + OVERHEAD + meta.weight


def weight(values: Sequence[bytes], metas: Sequence[Meta | None] | None) -> int:
    """What records count together."""
    size = sum(map(len, values)) + OVERHEAD * len(values)
    return size if metas is None else size + sum(meta.weight for meta in metas if meta is not None)
