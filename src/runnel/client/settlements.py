"""What a member says of its leases, gathered for one frame: acks side by side are one range.

Pure. Below: lease, wire.messages. Above: group_subscription.
"""

from __future__ import annotations

from runnel.client.lease import RemoteLease
from runnel.wire.messages import Settlement, Verb

_JOINED = (Verb.ACK, Verb.REJECT, Verb.NACK)


class Settlements:
    """What was said and not sent yet, in order."""

    __slots__ = ("_begun", "_said")

    def __init__(self) -> None:
        self._begun: dict[RemoteLease, tuple[int, int]] = {}
        self._said: list[Settlement] = []

    def __bool__(self) -> bool:
        return bool(self._said or self._begun)

    def begin(self, lease: RemoteLease, first: int, end: int) -> None:
        """The user has the records at [first, end). What one lease hands out is in order."""
        known = self._begun.get(lease)
        self._begun[lease] = (first if known is None else known[0], end)

    def say(
        self,
        lease: RemoteLease,
        verb: Verb,
        first: int,
        end: int,
        number: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Something about the places [first, end) of a lease."""
        said = self._said
        if said and verb in _JOINED:
            _, other, before, start, last, *rest = said[-1]
            if other == lease.number and before == verb and last == first and rest == [number, reason]:
                said[-1] = Settlement(0, lease.number, verb, start, end, number, reason)
                return
        said.append(Settlement(0, lease.number, verb, first, end, number, reason))

    def taken(self, subscription: int) -> list[Settlement]:
        """All of it, to be sent for the subscription of that id. What is begun comes first.

        Where all that was begun is settled by now there is no need to say so, except for the first of a lease.
        """
        found: list[Settlement] = []
        for lease, (first, end) in self._begun.items():
            if not lease.ended and (not lease.begun or lease.open_ranges(first, end)):
                lease.begun = True
                found.append(Settlement(subscription, lease.number, Verb.BEGIN, first, end))
        found += [one._replace(subscription=subscription) for one in self._said]
        self.clear()
        return found

    def clear(self) -> None:
        """None of it counts any more."""
        self._begun.clear()
        self._said.clear()
