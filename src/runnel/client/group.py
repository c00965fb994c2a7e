"""Administration of a group on a server: statistics, pause, resume, reset. Each call blocks until it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from runnel.client.member import forget_leases
from runnel.core.pattern import is_pattern
from runnel.core.position import Start, check_start
from runnel.core.statistics import GroupStatistics
from runnel.wire.msgpack_messages import wire_start

if TYPE_CHECKING:
    from runnel.client.server_link import ServerLink


class RemoteGroup:
    """One group on one topic or pattern; `UnknownGroup` if it was never joined."""

    def __init__(self, link: ServerLink, name: str, pattern: str) -> None:
        self._link, self.name, self.pattern = link, name, pattern
        self.label = f"{name} on {pattern}"
        self.statistics()  # raises where there is none

    def __repr__(self) -> str:
        return f"<Group {self.label!r}>"

    def statistics(self) -> GroupStatistics:
        """The progress of the group, and the records that each member holds."""
        return msgspec.convert(self._ask("group"), GroupStatistics)

    def pause(self) -> None:
        """Grant no more leases; granted ones can still be settled."""
        self._ask("group_pause")

    def resume(self) -> None:
        """Continue after a pause."""
        self._ask("group_resume")

    def reset(self, start: Start) -> None:
        """Continue from `start`, whatever was settled. Leases are void: settling them raises LeaseEnded."""
        check_start(start, self.pattern, is_pattern=is_pattern(self.pattern))
        self._ask("group_reset", start=wire_start(start))
        if self._link.loop_owner.is_here():  # members of this very broker know at once; others learn it from the server
            forget_leases(self._link, self.name, self.pattern)

    def _ask(self, method: str, **args: Any) -> Any:
        return self._link.ask(method, {"name": self.name, "pattern": self.pattern, **args})
