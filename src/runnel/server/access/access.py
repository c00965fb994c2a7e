"""`Access`: one peer that has logged in. Decisions are cached; a change of rights ends what they no longer allow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from runnel.core.errors import AccessRevoked, LimitExceeded, NotAuthorized, RunnelError, TokenExpired
from runnel.core.options import SubscribeOptions
from runnel.security.principal import ConsoleRole, Principal, authorize, can_see
from runnel.security.usage import Rate

if TYPE_CHECKING:
    from runnel.security.policy import Identity
    from runnel.server.access.owners import OwnedNames

MAX_CACHED = 4096  # decisions of one peer
PRUNE_AT = 64  # readers that are kept before those that ended are forgotten


class Control(Protocol):
    """What an access needs of the access control of its server."""

    owners: OwnedNames

    def knows_topic(self, topic: str) -> bool:
        """Whether the topic exists, as far as is known here."""

    def refused(self, access: Access, action: str, target: str, error: RunnelError) -> None:
        """Note a refusal in the security log."""

    def audited(self, access: Access, action: str, target: str) -> Awaitable[None]:
        """Write an admin action to the security log; `AuditFailed` if that cannot be."""

    def created(self, access: Access, topic: str) -> None:
        """The principal makes a topic; `LimitExceeded` if it has as many as it may have."""

    def now(self) -> float:
        """Seconds since 1970."""


class Usage:
    """What all peers of one principal use together, on this server."""

    def __init__(self, principal: Principal) -> None:
        self.connections = 0
        self.readers: list[Any] = []
        self.storage_bytes = 0
        self.adjust(principal)

    def adjust(self, principal: Principal) -> None:
        """The limits are those of `principal` now."""
        limits = principal.limits
        self.bytes = None if limits.publish_bytes is None else Rate(limits.publish_bytes)
        self.records = None if limits.publish_records is None else Rate(limits.publish_records)
        self.is_limited = self.bytes is not None or self.records is not None

    def add_reader(self, reader: Any, allowed: int | None) -> None:
        """Count an open subscription."""
        if len(self.readers) >= (PRUNE_AT if allowed is None else min(allowed, PRUNE_AT)):
            self.readers = [one for one in self.readers if not one.ended]
        if allowed is not None and len(self.readers) >= allowed:
            raise LimitExceeded("subscriptions", len(self.readers) + 1, allowed)
        self.readers.append(reader)

    def delay(self, size: int, records: int, now: float) -> float:
        """Count a publish; the seconds for which the peer is to be read from no more."""
        waits = [self.bytes.take(size, now)] if self.bytes is not None else []
        if self.records is not None:
            waits.append(self.records.take(records, now))
        return max(waits, default=0.0)


class Access:
    """One peer, its principal, and what it has open.

    `on_end` is called with the reason when its login ends. `on_slow` is called with seconds when it publishes faster
    than its principal may: the listener reads nothing from it for so long.
    """

    def __init__(
        self, control: Control, identity: Identity, principal: Principal, usage: Usage, peer: str, listener: str
    ) -> None:
        self.control, self.identity, self.principal, self.usage = control, identity, principal, usage
        self.peer, self.listener = peer, listener
        self.ended: RunnelError | None = None
        self.on_end: Callable[[RunnelError], None] | None = None
        self.on_slow: Callable[[float], None] | None = None
        self.session = ""  # of a browser
        self.topics: tuple[str, ...] | None = None  # patterns that a ticket is for; None: all that its rules allow
        self._decided: dict[tuple[str, str], bool] = {}
        self._open: list[tuple[Any, str, tuple[str, ...]]] = []  # readers and members, with action and patterns
        self.publishable: set[str] = set()  # topics that exist and may be published to: see the guard
        self._timer: asyncio.TimerHandle | None = None
        self._is_counted = False

    def __repr__(self) -> str:
        return f"<Access of {self.principal.name!r} from {self.peer} at {self.listener}>"

    # -- deciding -----------------------------------------------------------------------------------------------

    def may(self, action: str, topic: str) -> bool:
        """Whether `authorize` allows it to its principal."""
        key = action, topic
        found = self._decided.get(key)
        if found is None:
            if len(self._decided) >= MAX_CACHED:
                self._decided.clear()
            found = self._decided[key] = authorize(self.principal, action, topic)
        return found

    def check(self, action: str, topic: str) -> None:
        """Raise unless its principal may do it. The refusal goes to the security log."""
        if self.ended is not None:
            raise self.ended
        if not self.may(action, topic):
            allowed = list(self.principal.rules.get(action, ()))
            self.refuse(action, topic, NotAuthorized(self.principal.name, action, topic, allowed))

    def refuse(self, action: str, target: str, error: RunnelError) -> None:
        """Log a refusal, and raise it."""
        self.control.refused(self, action, target, error)
        raise error

    def check_role(self, role: ConsoleRole, doing: str) -> None:
        """Raise unless its principal has this role of the console, or a higher one."""
        if self.ended is not None:
            raise self.ended
        if self.principal.console < role and not (role is ConsoleRole.OPERATOR and self.may("admin", ">")):
            self.refuse(doing, role.name.lower(), NotAuthorized(self.principal.name, doing, role.name.lower()))

    def sees(self, topic: str) -> bool:
        """Whether a listing may name the topic."""
        if self.topics is not None:
            return False
        return self.principal.console >= ConsoleRole.VIEWER or can_see(self.principal, topic)

    async def admin(self, action: str, topic: str) -> None:
        """An admin action on a topic: allowed by a rule, and in the security log before it is done."""
        self.check("admin", topic)
        await self.control.audited(self, action, topic)

    # -- what it has open ---------------------------------------------------------------------------------------

    def opened(self, reader: Any, action: str, patterns: tuple[str, ...]) -> None:
        """It has a reader, or a member of a group: ended when it may not read that any more."""
        self.usage.add_reader(reader, self.principal.limits.subscriptions)
        if len(self._open) >= PRUNE_AT and len(self._open) & (len(self._open) - 1) == 0:
            self._open = [one for one in self._open if not one[0].ended]
        self._open.append((reader, action, patterns))

    def readable(self, patterns: tuple[str, ...], options: SubscribeOptions) -> tuple[str, ...]:
        """The patterns that a subscription reads: those that were asked for, or with `partial` the allowed parts."""
        from runnel.security.rules import covered_parts

        action = "subscribe" if options.group is None else "group"
        if self.topics is not None:
            for pattern in patterns:
                if pattern not in self.topics:
                    self.refuse(action, pattern, NotAuthorized(self.principal.name, action, pattern, self.topics))
        if not options.partial:
            for pattern in patterns:
                self.check(action, pattern)
            return patterns
        allowed = self.principal.rules.get(action, ())
        parts = tuple(dict.fromkeys(part for one in patterns for part in covered_parts(allowed, one)))
        if not parts:
            self.check(action, patterns[0])
        return parts

    # -- its life -----------------------------------------------------------------------------------------------

    def begin(self, *, connection: bool) -> None:
        """It is used from now on: count it as a connection, and end it when its token expires."""
        if connection:
            allowed = self.principal.limits.connections
            if allowed is not None and self.usage.connections >= allowed:
                raise LimitExceeded("connections", self.usage.connections + 1, allowed)
            self.usage.connections += 1
            self._is_counted = True
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.identity.expires is not None:
            left = self.identity.expires - self.control.now()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, left), self.end, TokenExpired())

    def replace(self, identity: Identity, principal: Principal) -> None:
        """Go on with a new token of the same principal."""
        self.identity = identity
        self._arm()
        self.renew(principal)

    def renew(self, principal: Principal | None) -> None:
        """The rules or tokens changed: go on with what `principal` may do, and end the rest. None: end all."""
        if principal is None:
            self.end(AccessRevoked(self.principal.name))
            return
        self.principal = principal
        self._decided.clear()
        self.publishable.clear()
        for reader, action, patterns in self._open:
            if not reader.ended and not all(self.may(action, pattern) for pattern in patterns):
                reader.end(NotAuthorized(principal.name, action, " ".join(patterns), principal.rules.get(action, ())))
        self._open = [one for one in self._open if not one[0].ended]

    def end(self, error: RunnelError) -> None:
        """The login is over: end everything that it has open. Records that a member holds return to their groups.

        A connection that ends takes all of it along. Its client comes back, if it can get a new token, and resumes:
        were the subscriptions ended one by one, their users would see the error.
        """
        if self.ended is not None:
            return
        self.ended = error
        self.publishable.clear()
        if self.on_end is not None:
            self.on_end(error)
        else:
            for reader, _, _ in self._open:
                if not reader.ended:
                    reader.end(error)
        self.release()

    def release(self) -> None:
        """The peer is gone."""
        self._open.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_counted:
            self._is_counted = False
            self.usage.connections -= 1
