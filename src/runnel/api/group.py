"""The handle on a group of consumers: look at it, pause it, resume it, move it.

The members of a group subscribe with `group=`; this handle is for operators and for tests.
"""

from __future__ import annotations

from runnel.core.backend import GroupAdmin
from runnel.core.position import Start
from runnel.core.statistics import GroupStatistics


class Group:
    """One group on one topic or pattern. Made by `broker.group(name, pattern)`.

    >>> broker.group("billing", "orders").pause()
    >>> broker.group("billing", "orders").statistics().lag
    """

    __slots__ = ("_admin",)

    def __init__(self, admin: GroupAdmin) -> None:
        self._admin = admin

    def __repr__(self) -> str:
        return f"<Group {self.label!r}>"

    @property
    def name(self) -> str:
        """The name that its members subscribe with."""
        return self._admin.name

    @property
    def pattern(self) -> str:
        """The topic or pattern it reads."""
        return self._admin.pattern

    @property
    def label(self) -> str:
        """Its name in errors and statistics."""
        return f"{self.name} on {self.pattern}"

    def statistics(self) -> GroupStatistics:
        """The progress of the group, and what each member holds."""
        return self._admin.statistics()

    def pause(self) -> None:
        """Stop deliveries; records that members hold can still be settled."""
        self._admin.pause()

    def resume(self) -> None:
        """Deliver again after a pause."""
        self._admin.resume()

    def reset(self, start: Start) -> None:
        """Continue from `start`, regardless of what was settled. Settling an earlier delivery raises `LeaseEnded`."""
        self._admin.reset(start)
