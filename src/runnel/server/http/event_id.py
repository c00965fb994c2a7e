"""Event ids: one short opaque value that says from where to go on, whatever was subscribed to.

It holds a few bytes that stand for the broker, so that an id never passes for one of another; the sequence to go on
from, which is a place in all topics; and the position in the record's own topic, which is exact, and quick to find.
Of several topics a check of which ones there were is behind it: so it shows when one was deleted since.
Below: nothing. Above: sse, events.
"""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from typing import NamedTuple

from runnel.core.errors import InvalidOption

MARK = 5  # bytes that stand for a broker
_ALL = (1 << 64) - 1
MAX_ID = 96  # characters, in any case
_FORM = re.compile(r"[A-Za-z0-9_-]{10,64}(?:\.[A-Za-z0-9_-]{16})?")


class Place(NamedTuple):
    """From where to go on. Epoch 0: the id stands between records, of no topic in particular."""

    mark: bytes
    sequence: int
    epoch: int = 0
    offset: int = 0
    known: Known | None = None


class Known(NamedTuple):
    """The topics that there were: the highest epoch, and a check of all of them."""

    highest: int
    check: int


def mark_of(broker: str) -> bytes:
    """What stands for a broker in its ids."""
    return hashlib.blake2b(broker.encode(), digest_size=MARK).digest()


def write(mark: bytes, sequence: int, epoch: int = 0, offset: int = 0) -> bytes:
    """The id to go on from there."""
    parts = [one.to_bytes((one.bit_length() + 7) // 8, "big") for one in (sequence, epoch, offset)]
    lengths = bytes((len(parts[0]) << 4 | len(parts[1]), len(parts[2])))
    return urlsafe_b64encode(b"".join((mark, lengths, *parts))).rstrip(b"=")


def write_known(known: Known) -> bytes:
    """What is put behind an id that stands for several topics."""
    return b"." + urlsafe_b64encode(known.highest.to_bytes(8, "big") + known.check.to_bytes(4, "big"))


def known_of(epochs: Iterable[int], up_to: int | None = None) -> Known:
    """The check of these topics; of those made later than `up_to` it takes no notice."""
    highest, check = 0, 0
    for epoch in epochs:
        if up_to is None or epoch <= up_to:
            highest = max(highest, epoch)
            check ^= _mixed(epoch)
    return Known(highest if up_to is None else up_to, check)


class Covered:
    """The topics of one stream, and what goes behind its ids for them.

    A topic that came counts at once; one that was deleted only when the stream has told what was lost with it. So an id
    never stands for more than the browser knows.
    """

    def __init__(self) -> None:
        self._epochs: set[int] = set()
        self._highest = self._check = 0
        self.tail = write_known(Known(0, 0))

    def join(self, epochs: Iterable[int]) -> None:
        """These are covered, now."""
        for epoch in set(epochs) - self._epochs:
            self._epochs.add(epoch)
            self._highest = max(self._highest, epoch)
            self._check ^= _mixed(epoch)
        self.tail = write_known(Known(self._highest, self._check))

    def leave(self, epochs: Iterable[int]) -> None:
        """Only these are left, and all that was lost is told."""
        for epoch in self._epochs.difference(epochs):
            self._epochs.discard(epoch)
            self._check ^= _mixed(epoch)
        self.tail = write_known(Known(self._highest, self._check))


def _mixed(epoch: int) -> int:
    """32 bits that look random, so that no few topics cancel each other out: epochs are neighbours."""
    mixed = epoch * 0x9E3779B97F4A7C15 & _ALL
    mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & _ALL
    return mixed >> 32


def read(text: str) -> Place:
    """What an id says; `InvalidOption` if it is none."""
    try:
        if len(text) > MAX_ID or not _FORM.fullmatch(text):
            raise ValueError
        body, _, tail = text.partition(".")
        data = urlsafe_b64decode(body + "=" * (-len(body) % 4))
        first, second, third = data[MARK] >> 4, data[MARK] & 15, data[MARK + 1]
        numbers = data[MARK + 2 :]
        if len(numbers) != first + second + third or max(first, second, third) > 8:
            raise ValueError
        sequence, epoch, offset = (
            int.from_bytes(one, "big")
            for one in (numbers[:first], numbers[first : first + second], numbers[first + second :])
        )
        known = None
        if tail:
            told = urlsafe_b64decode(tail)
            known = Known(int.from_bytes(told[:8], "big"), int.from_bytes(told[8:], "big"))
        return Place(data[:MARK], sequence, epoch, offset, known)
    except (ValueError, IndexError):
        shown = text if len(text) <= MAX_ID else text[:MAX_ID] + "…"
        raise InvalidOption("Last-Event-ID", shown, "expected an id as an event had it, unchanged") from None
