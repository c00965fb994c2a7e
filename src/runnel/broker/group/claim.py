"""A claim: places of a lease that are settled together with something else, which is on its way.

Until it is known how that ends, nobody else gets them: not when the lease would expire, nor when
the member leaves. Then they are settled, or at the member again as if nothing had happened.
Below: machine, lease. Above: broker.settling.
"""

from __future__ import annotations

from runnel.broker.group.lease import Lease
from runnel.broker.group.machine import DeadLetter, Group
from runnel.broker.group.member import Member

NOT_COMMITTED = "its transaction was not committed, and its member had left"

_FOR_EVER = float("inf")


class Claim:
    """Places [first, end) of `lease`, all of them open. To the lease they are settled; the group knows better.

    Every claim ends in `settle` or `give_back`, once.
    """

    __slots__ = ("_count", "_group", "_lease", "_own", "end", "first")

    def __init__(self, group: Group, lease: Lease, first: int, end: int, now: float) -> None:
        self.first, self.end = first, end
        self._group, self._lease = group, lease
        self._count = lease.settle_range(first, end)
        group._let_go(lease, self._count, now)
        # A lease of its own, of nobody who could leave, holds the floor and the key, and never expires.
        nobody = Member(group, lease.member.name, 0, None)
        self._own = Lease(nobody, first, end, lease.attempt, _FOR_EVER, lease.stock, lease.item)
        self._own.handed = end
        group._leases.renew(self._own)
        group.outstanding += self._count

    def __repr__(self) -> str:
        return f"<Claim on [{self.first}, {self.end}) of {self._lease!r}{', void' if self.void else ''}>"

    @property
    def void(self) -> bool:
        """Whether the group was reset meanwhile: then nothing of it counts."""
        return self._own.ended

    def settle(self, now: float) -> None:
        """It was done, and is remembered: the group need not note it again."""
        if self.void:
            return
        group, own = self._group, self._own
        self._let_go()
        group._bytes -= own.stock.weight(self.first, self.end)
        group.acked += self._count
        self._lease.member.acked += self._count
        if own.item is not None:
            group._ready.settled(own.item, now)

    def give_back(self, now: float) -> list[DeadLetter]:
        """It was not done. The member has it again, with a fresh deadline; or the group, if the member cannot."""
        if self.void:
            return []
        group, lease, member = self._group, self._lease, self._lease.member
        self._let_go()
        if lease.ended or group.members.get(member.name) is not member:
            dead: list[DeadLetter] = []
            for place in range(self.first, self.end):
                item = lease.item or group._plain_item(place, lease.stock, lease.attempt)
                item.reason = NOT_COMMITTED
                dead += group._again(item, 0.0, now)
            return dead
        was_over = lease.low == lease.end
        lease.reopen(self.first, self.end)
        member.held += self._count
        group.outstanding += self._count
        if lease.item is not None:
            member.held_bytes += lease.item.size
        lease.deadline = max(lease.deadline, now + group.options.ack_wait)
        if was_over:
            group._leases.renew(lease)
        return []

    def _let_go(self) -> None:
        self._group._leases.remove(self._own)
        self._group.outstanding -= self._count
