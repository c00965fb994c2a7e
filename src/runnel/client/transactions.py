"""Commit a transaction on a server: everything goes out in one call.

If the connection drops during that call, the outcome is unknown and `OutcomeUnknown` is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runnel.client.server_link import HEARING
from runnel.client.writer import RemoteWriter
from runnel.core.errors import BrokerClosed, ConnectionLost, NoAnswer, OutcomeUnknown
from runnel.core.markers import Marker, NoExpectation
from runnel.core.position import Position
from runnel.core.publishing import Append, Publication, PublishDetails
from runnel.core.transaction import TransactionRequest

if TYPE_CHECKING:
    from runnel.client.server_link import ServerLink

_NO_DETAILS = PublishDetails()


async def commit(link: ServerLink, request: TransactionRequest) -> None:
    """Return when the server has committed all of it, or raise."""
    link.loop_owner.check_usable("committing a transaction")
    acks = ClaimedAcks(request)
    try:
        asked = _asked(request, acks.claim())
        request.has_begun = True
        said = await link.call("transact", asked, again=False)
    except (ConnectionLost, NoAnswer, BrokerClosed) as error:
        acks.give_back()
        if isinstance(error, BrokerClosed) and error.doing != HEARING:
            raise  # raised by the server: nothing was committed
        raise OutcomeUnknown(str(error), committing=True) from error
    except BaseException:
        acks.give_back()
        raise
    if not said["applied"]:
        acks.give_back(done=True)
        return
    acks.settle()
    every = [*(planned.publication for planned in request.publishes), *request.stages.values()]
    for publication, span in zip(every, said["spans"], strict=True):
        _set_position(publication, span)


class ClaimedAcks:
    """The deliveries that one transaction acks. While the server commits it, no task here can settle them."""

    __slots__ = ("_claims", "_request")

    def __init__(self, request: TransactionRequest) -> None:
        self._request = request
        self._claims: list[tuple[Any, Any, int, int]] = []  # a member, its lease, and a range of places

    def claim(self) -> list[tuple[int, int, int, int]]:
        """Claim all acks before the commit is sent: (subscription, lease, first, end) each. Raises if one is late."""
        self._request.check_acks()
        for member in {ack.member for ack in self._request.acks}:
            member.flush()  # earlier settlements are sent first
        for member, lease, first, end, _ in self._request.acks:
            for low, high in lease.open_ranges(first, end):
                lease.settle(low, high)
                self._claims.append((member, lease, low, high))
        return [(member.id, lease.number, first, end) for member, lease, first, end in self._claims]

    def settle(self) -> None:
        """The commit succeeded."""
        self._request.settle()
        for member, lease, _, _ in self._claims:
            member.let_go(lease)

    def give_back(self, *, done: bool = False) -> None:
        """Nothing was committed: release the claims. `done`: an earlier transaction with the same mark was."""
        claims, self._claims = self._claims, []
        for _, lease, first, end in claims:
            lease.reopen(first, end)
        self._request.forget(done=done)


def _asked(request: TransactionRequest, acks: list[tuple[int, int, int, int]]) -> dict[str, Any]:
    return {
        "publishes": [_publish(writer, append) for writer, append, _ in request.publishes],
        "acks": acks,
        "marks": [_mark(marker) for marker in request.markers.values()],
        "commits": list(request.stages),
    }


def _publish(writer: Any, append: Append) -> list[Any]:
    assert isinstance(writer, RemoteWriter), "writers are of the backend that commits"
    details = writer.details(append)
    return [writer.topic, writer.pack(append), None if details == _NO_DETAILS else details]


def _mark(marker: Marker) -> list[Any]:
    if isinstance(marker.expected, NoExpectation):
        return [marker.name, marker.value]
    return [marker.name, marker.value, marker.expected]


def _set_position(publication: Publication, span: list[Any] | None) -> None:
    """Set the positions of a publication. Of a stage, its topic and size are known only now."""
    if span is None:
        return
    epoch, first, last, *topic = span
    publication.holds(topic[0] if topic else publication.topic, last - first + 1)
    publication.put(Position(epoch, first))
