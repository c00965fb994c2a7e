"""Whether anybody is still there: asked after a silence, given up on after a longer one.

Time is an argument; whoever uses it sends the pings and closes the connection.
"""

from __future__ import annotations

from enum import Enum


class Pulse(Enum):
    """What to do about a connection."""

    ALIVE = "alive"
    ASK = "ask"  # send a ping
    DEAD = "dead"  # the ping was not answered in time


class Keepalive:
    """The silence of one peer. `look` at it when `next` has come."""

    __slots__ = ("_asked", "_ping", "_timeout", "next")

    def __init__(self, ping: float, timeout: float, now: float) -> None:
        self._ping, self._timeout = ping, timeout
        self._asked: float | None = None  # when the ping was sent that nothing was heard since
        self.next = now + ping

    def look(self, now: float, heard: float, *, deaf: bool = False) -> Pulse:
        """What to do at `now`, when something was last heard at `heard`, and not before `next`.

        `deaf`: nothing is read from the peer for now, so its silence means nothing. It is pinged all the same: where
        there is no peer any more, writing to it fails.
        """
        if self._asked is not None and heard < self._asked and not deaf:
            if now >= self._asked + self._timeout:
                return Pulse.DEAD
            self.next = self._asked + self._timeout
            return Pulse.ALIVE
        if now < heard + self._ping and not deaf:
            self._asked = None
            self.next = heard + self._ping
            return Pulse.ALIVE
        self._asked = now
        self.next = now + self._timeout
        return Pulse.ASK
