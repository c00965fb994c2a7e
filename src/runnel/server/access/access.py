"""`Access`: one peer that has logged in. Decisions are cached; a change of rights ends what they no longer allow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from runnel.core.clock import Timer
from runnel.core.errors import AccessRevoked, LimitExceeded, NotAuthorized, RunnelError, TokenExpired
from runnel.core.options import SubscribeOptions
from runnel.security.principal import ConsoleRole, Limits, Principal, authorize, can_see, of_ticket, refusal
from runnel.security.usage import LONGEST_PAUSE, Rate

if TYPE_CHECKING:
    from runnel.security.policy import Identity
    from runnel.server.access.owners import OwnedNames

MAX_CACHED = 4096  # decisions of one peer
PRUNE_AT = 64  # readers that are kept before those that ended are forgotten
MAX_MADE = 10_000  # topics, and groups, of one address that are remembered
CONSOLE = "console"
_TICKET = "a ticket is for reading its topics, without a name; log in with a token for more"
_RATES = ("publish_bytes", "publish_records")


class Control(Protocol):
    """The parts of the server's access control that an access uses."""

    owners: OwnedNames

    def knows_topic(self, topic: str) -> bool:
        """Whether the topic exists, by local knowledge."""

    def refused(self, access: Access, action: str, target: str, error: RunnelError) -> None:
        """Note a refusal in the security log."""

    def audited(self, access: Access, action: str, target: str) -> Awaitable[None]:
        """Write an admin action to the security log; `AuditFailed` if that cannot be."""

    def created(self, access: Access, topic: str) -> None:
        """The principal makes a topic; `LimitExceeded` if it has as many as it may have."""

    def deleted(self, topic: str) -> Awaitable[None]:
        """The topic was deleted: it no longer counts, and creating it again needs the right."""

    def now(self) -> float:
        """Seconds since 1970."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Have it called after so many seconds."""


class Usage:
    """The joint usage of all logins of one principal, or of one address, on this server. `of`: its name in errors."""

    def __init__(self, limits: Limits, of: str = "limits") -> None:
        self._of = of
        self.connections = 0
        self.readers: list[Any] = []
        self.storage_bytes = 0
        self.topics: dict[str, None] = {}  # made from this address; those of a principal have owners
        self.groups: dict[str, None] = {}
        self._rates: dict[str, Rate] = {}
        self.adjust(limits)

    def is_idle(self, now: float) -> bool:
        """Whether it can be forgotten: nothing is open, was made or is owed."""
        self.readers = [one for one in self.readers if not one.ended]
        owed = any(rate.debt(now) > 0 for rate in self._rates.values())
        return not (self.connections or self.readers or self.topics or self.groups or owed)

    def adjust(self, limits: Limits) -> None:
        """The limits are these now. A rate that stays the same keeps its debt."""
        self.limits = limits
        for name in _RATES:
            rate, known = getattr(limits, name), self._rates.get(name)
            if rate is None:
                self._rates.pop(name, None)
            elif known is None or known.rate != rate:
                self._rates[name] = Rate(rate)
        self.is_limited = bool(self._rates)

    def exceeded(self, name: str, value: float, allowed: float) -> LimitExceeded:
        """The error that names a limit."""
        return LimitExceeded(f"{self._of}.{name}", value, allowed)

    def connect(self) -> None:
        """Count a connection."""
        allowed = self.limits.connections
        if allowed is not None and self.connections >= allowed:
            raise self.exceeded("connections", self.connections + 1, allowed)
        self.connections += 1

    def add_reader(self, reader: Any) -> None:
        """Count an open subscription."""
        allowed = self.limits.subscriptions
        if len(self.readers) >= (PRUNE_AT if allowed is None else min(allowed, PRUNE_AT)):
            self.readers = [one for one in self.readers if not one.ended]
        if allowed is not None and len(self.readers) >= allowed:
            raise self.exceeded("subscriptions", len(self.readers) + 1, allowed)
        self.readers.append(reader)

    def check_storage(self) -> None:
        """Raise if its topics take more than they may."""
        allowed = self.limits.storage_bytes
        if allowed is not None and self.storage_bytes > allowed:
            raise self.exceeded("storage_bytes", self.storage_bytes, allowed)

    def check_count(self, name: str, made: int) -> None:
        """Raise unless one more may be made, of `topics` or `groups`."""
        allowed: int | None = getattr(self.limits, name)
        if allowed is not None and made >= allowed:
            raise self.exceeded(name, made + 1, allowed)

    def note_made(self, name: str, what: str) -> None:
        """A topic or a group was made from this address: counted where its number or size is limited."""
        if getattr(self.limits, name) is None and (name == "groups" or self.limits.storage_bytes is None):
            return
        made: dict[str, None] = getattr(self, name)
        made[what] = None
        if len(made) > MAX_MADE:
            del made[next(iter(made))]

    def check_rates(self, now: float) -> None:
        """Raise if a publish would have to wait for longer than a peer can be left unread."""
        for name, rate in self._rates.items():
            if (debt := rate.debt(now)) > LONGEST_PAUSE:
                raise self.exceeded(name, round(rate.rate * (1 + debt)), round(rate.rate))

    def delay(self, size: int, records: int, now: float) -> float:
        """Count a publish; the seconds for which the peer is to be read from no more."""
        taken = {"publish_bytes": size, "publish_records": records}
        return max((rate.take(taken[name], now) for name, rate in self._rates.items()), default=0.0)


class Access:
    """One peer, its principal, and what it has open.

    `on_end` is called with the reason when its login ends. `on_slow` is called with seconds when it publishes faster
    than its principal may: the listener reads nothing from it for so long.
    """

    def __init__(
        self,
        control: Control,
        identity: Identity,
        principal: Principal,
        usages: tuple[Usage, ...],
        peer: str,
        listener: str,
    ) -> None:
        self.control, self.identity, self.principal = control, identity, principal
        self.usages = usages  # of its principal, and of its address
        self.peer, self.listener = peer, listener
        self.ended: RunnelError | None = None
        self.on_end: Callable[[RunnelError], None] | None = None
        self.on_slow: Callable[[float], None] | None = None
        self.session = ""  # of a browser
        self.serving: Any = None  # the served broker as its requests over HTTP use it, made by the first
        self.follows = False  # whether it reads the journal, as a standby: that is in the security log
        self._topics: tuple[str, ...] | None = None  # patterns that a ticket is for; None: all that its rules allow
        self._decided: dict[tuple[str, str], bool] = {}
        self._open: list[tuple[Any, str, tuple[str, ...]]] = []  # readers and members, with action and patterns
        self.publishable: set[str] = set()  # topics that exist and may be published to: see the guard
        self.keeps_count = False  # whether each publish is counted, for a rate or for storage
        self._timer: Timer | None = None
        self._is_counted = False
        self.is_gone = False  # and uses nothing any more
        self._note_limits()

    def __del__(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

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

    def may_some(self, action: str) -> bool:
        """Whether its principal may do it with some topic."""
        return bool(self.principal.rules.get(action))

    def check(self, action: str, topic: str) -> None:
        """Raise unless its principal may do it. The refusal goes to the security log."""
        if self.ended is not None:
            raise self.ended
        if not self.may(action, topic):
            self.refuse(action, topic, refusal(self.principal, action, topic))

    def refuse(self, action: str, target: str, error: RunnelError) -> None:
        """Log a refusal, and raise it."""
        self.control.refused(self, action, target, error)
        raise error

    def check_role(self, role: ConsoleRole, doing: str) -> None:
        """Raise unless its principal has this role of the console, or a higher one."""
        if self.ended is not None:
            raise self.ended
        if not self._has_role(role):
            self.refuse(doing, role.name.lower(), self._needs_role(role, doing))

    def _needs_role(self, role: ConsoleRole, doing: str) -> NotAuthorized:
        name = role.name.lower()
        advice = (
            f"it needs a role that has console = {name!r} in the file of --auth: `runnel token create NAME --role ROLE`"
        )
        return NotAuthorized(self.principal.name, doing, "", advice=advice)

    def _has_role(self, role: ConsoleRole) -> bool:
        return self.principal.console >= role or (role is ConsoleRole.OPERATOR and self.may("admin", ">"))

    def sees(self, topic: str) -> bool:
        """Whether a listing may name the topic."""
        return self.principal.console >= ConsoleRole.VIEWER or can_see(self.principal, topic)

    async def admin(self, action: str, topic: str) -> None:
        """An admin action on a topic: allowed by a rule, and in the security log before it is done."""
        self.check("admin", topic)
        await self.control.audited(self, action, topic)

    # -- what it has open ---------------------------------------------------------------------------------------

    def opened(self, reader: Any, action: str, patterns: tuple[str, ...]) -> None:
        """It has a reader, or a member of a group: ended when it may not read that any more.

        The action `CONSOLE` is to look at figures.
        """
        for usage in self.usages:
            usage.add_reader(reader)
        if len(self._open) >= PRUNE_AT and len(self._open) & (len(self._open) - 1) == 0:
            self._open = [one for one in self._open if not one[0].ended]
        self._open.append((reader, action, patterns))

    def readable(self, patterns: tuple[str, ...], options: SubscribeOptions) -> tuple[str, ...]:
        """The patterns that a subscription reads: the requested ones, or with `partial` their allowed parts."""
        action = "subscribe" if options.group is None else "group"
        if options.name is not None and not self.principal.has_names:
            self.refuse(
                action, options.name, NotAuthorized(self.principal.name, "use a name with a ticket", "", advice=_TICKET)
            )
        if not options.partial:
            for pattern in patterns:
                self.check(action, pattern)
            return patterns
        if self.ended is not None:
            raise self.ended
        parts = self._allowed_parts(action, patterns)
        if not parts:
            self.check(action, patterns[0])
        return parts

    def _allowed_parts(self, action: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
        from runnel.security.rules import covered_parts

        allowed = self.principal.rules.get(action, ())
        return tuple(dict.fromkeys(part for one in patterns for part in covered_parts(allowed, one)))

    # -- its life -----------------------------------------------------------------------------------------------

    def restrict(self, topics: tuple[str, ...] | None) -> None:
        """It came with a ticket for these topics; None: with a login of its own."""
        if topics is not None:
            self._topics, self.principal = topics, of_ticket(self.principal, topics)

    def begin(self, *, connection: bool) -> None:
        """It is used from now on: count it as a connection, and end it when its token expires."""
        if connection:
            self._connect()
            self._is_counted = True
        self._arm()

    def _connect(self) -> None:
        for at, usage in enumerate(self.usages):
            try:
                usage.connect()
            except LimitExceeded:
                for counted in self.usages[:at]:
                    counted.connections -= 1
                raise

    @contextmanager
    def connected(self) -> Iterator[None]:
        """A request over HTTP is under way: its connection is the principal's for so long."""
        self._connect()
        try:
            yield
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        for usage in self.usages:
            usage.connections -= 1

    def _note_limits(self) -> None:
        self.keeps_count = any(usage.is_limited or usage.limits.storage_bytes is not None for usage in self.usages)

    def pay(self, size: int, records: int, now: float) -> float:
        """Count a publish; the seconds for which the peer is to be read from no more. `LimitExceeded` if too long."""
        for usage in self.usages:
            usage.check_rates(now)
        return min(LONGEST_PAUSE, max((usage.delay(size, records, now) for usage in self.usages), default=0.0))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.identity.expires is not None:
            left = self.identity.expires - self.control.now()
            # Weakly: a login that nothing uses any more is not kept until its token expires.
            self._timer = self.control.call_later(max(0.0, left), partial(_expire, ref(self)))

    def replace(self, identity: Identity, principal: Principal) -> None:
        """Continue with a new token of the same principal."""
        self.identity = identity
        self._arm()
        self.renew(principal)

    def renew(self, principal: Principal | None) -> None:
        """The rules or tokens changed: continue what `principal` may do, and end the rest. None: end all."""
        if principal is None:
            self.end(AccessRevoked(self.principal.name))
            return
        self.principal = principal if self._topics is None else of_ticket(principal, self._topics)
        self._decided.clear()
        self.publishable.clear()
        self._note_limits()
        for reader, action, patterns in self._open:
            if reader.ended:
                continue
            if action == CONSOLE:
                if not self._has_role(ConsoleRole.VIEWER):
                    reader.end(self._needs_role(ConsoleRole.VIEWER, "look at the console"))
            elif not all(self.may(action, pattern) for pattern in patterns):
                reader.end(refusal(principal, action, " ".join(patterns)))
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
        """The peer disconnected."""
        self.is_gone = True
        self._open.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_counted:
            self._is_counted = False
            self._disconnect()


def _expire(access: ref[Access]) -> None:
    """The token of a login expires now."""
    if (found := access()) is not None:
        found.end(TokenExpired())
