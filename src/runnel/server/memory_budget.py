"""One bound on the memory that the peers of a server can take, over all listeners.

What counts is what a peer can make the server keep by being slow: messages of which only a part has arrived, and bytes
to be sent that the peer has not read. Beyond the bound a connection is closed: of the peer address that holds most, the
connection that holds most.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from runnel.core.errors import LimitExceeded

SHARE = 4  # by default, the budget is one part in so many of the memory of the machine or container
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


class MemoryHolder(Protocol):
    """A holder of bytes for a peer: a connection, or a request whose body is being read. It is hashable by identity."""

    peer_address: str  # without the port; the same for all connections of a machine

    def over_budget(self, error: LimitExceeded) -> None:
        """Free the bytes, tell the peer why, and close. It is not counted any more, and reports nothing more."""


class MemoryBudget:
    """The bytes that connections hold for their peers, and the most that they may hold together.

    A holder reports what it holds now whenever that changes much; 0 when it holds nothing or is closed. The amount is a
    total, not a difference, so that a report that is missed or repeated does not spoil the count.

    >>> budget = MemoryBudget(64 << 20)
    >>> budget.hold(connection, 1 << 20)
    >>> budget.held
    1048576
    """

    def __init__(self, limit: int | None = None) -> None:
        self.adopt(limit)
        self.held = 0
        self.exceeded = 0  # holders that were closed
        self._holders: dict[MemoryHolder, int] = {}  # the one that reported last is last

    def __repr__(self) -> str:
        return f"<MemoryBudget {self.held:,} of {self.limit:,} bytes, {len(self._holders)} holders>"

    def adopt(self, limit: int | None) -> None:
        """The bound from now on; None: a share of the memory that there is."""
        self.limit = memory_available() // SHARE if limit is None else limit

    def hold(self, holder: MemoryHolder, size: int) -> None:
        """`holder` holds `size` bytes from now on. Too much in all: the holder with the most is closed."""
        self.held += size - self._holders.pop(holder, 0)
        if size:
            self._holders[holder] = size
            while self.held > self.limit:
                self._close_one()

    def _close_one(self) -> None:
        by_address: dict[str, int] = {}
        for holder, size in self._holders.items():
            by_address[holder.peer_address] = by_address.get(holder.peer_address, 0) + size
        address = max(by_address, key=by_address.__getitem__)
        # Of equal ones the newest: the others have waited longer, and are nearer to their end.
        candidates = (one for one in reversed(self._holders) if one.peer_address == address)
        victim = max(candidates, key=self._holders.__getitem__)
        error = LimitExceeded("max_held_bytes", self.held, self.limit)
        self.held -= self._holders.pop(victim)
        self.exceeded += 1
        victim.over_budget(error)


def memory_available() -> int:
    """The bytes of memory that this process may use: those of the machine, or fewer in a container."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_cgroup_limits()])


def _cgroup_limits() -> Iterator[int]:
    """The limits of the control groups of this process, of version 2 and 1, where there are any."""
    files = [CGROUPS / "memory" / "memory.limit_in_bytes"]
    try:
        own = OWN_CGROUPS.read_text().splitlines()
    except OSError:  # no Linux
        return
    for line in own:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            group = CGROUPS / path.lstrip("/")
            files += [one / "memory.max" for one in (group, *group.parents) if one.is_relative_to(CGROUPS)]
        elif "memory" in controllers.split(","):
            files.append(CGROUPS / "memory" / path.lstrip("/") / "memory.limit_in_bytes")
    for file in files:
        try:
            yield int(file.read_text())
        except (OSError, ValueError):  # not there, or "max"
            pass
