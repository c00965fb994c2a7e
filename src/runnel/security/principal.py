"""Principals: who a peer turned out to be, what it may do, and how much of it. `authorize` decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

import msgspec

from runnel.core.errors import InvalidOption, NotAuthorized
from runnel.core.pattern import is_pattern
from runnel.security.rules import ACTIONS, Rule, covered_parts, covers


class ConsoleRole(IntEnum):
    """The rights of a principal in the console, and with the figures of the server. Each includes those before it."""

    NONE = 0
    VIEWER = 1  # look: topics, figures, connections, metrics; no record
    OPERATOR = 2  # also replay and discard dead letters, pause and resume groups
    ADMIN = 3  # also tokens, reload and the security log


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much one principal, or one address, may use on each server; None: no limit but those of the server.

    - `connections`: open at once. `subscriptions`: open at once, over all of its connections.
    - `topics`, `groups`: that it has made. `storage_bytes`: that the topics which it made take.
    - `publish_bytes`, `publish_records`: a second. Beyond them it is read from more slowly, far beyond them refused.
    """

    connections: int | None = None
    subscriptions: int | None = None
    topics: int | None = None
    groups: int | None = None
    publish_bytes: int | None = None
    publish_records: int | None = None
    storage_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidOption(name, value, "expected a whole number above 0")

    def over(self, others: Limits) -> Limits:
        """These, and those of `others` where these say nothing."""
        said = {name: getattr(self, name) for name in self.__struct_fields__}
        return Limits(**{name: getattr(others, name) if value is None else value for name, value in said.items()})


NO_LIMITS = Limits()
MAX_NAME = 128


def is_principal_name(name: object) -> bool:
    """Whether a principal may have this name. `@` stands for roles and `$` for the server itself."""
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable() and name[0] not in "@$"


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A peer that has proved who it is. `rules` has the patterns by action."""

    name: str
    roles: tuple[str, ...] = ()
    rules: Mapping[str, tuple[str, ...]] = {}
    console: ConsoleRole = ConsoleRole.NONE
    limits: Limits = NO_LIMITS
    names_of: str | None = None  # the role to which the names that it makes belong; None: to itself
    has_names: bool = True  # False: it came with a ticket, and neither uses nor makes names

    @property
    def owner(self) -> str:
        """The owner of the names that it creates."""
        return self.name if self.names_of is None else f"@{self.names_of}"

    @property
    def owners(self) -> frozenset[str]:
        """The owners of names that this principal may use: itself, and its roles."""
        return frozenset((self.name, *(f"@{role}" for role in self.roles))) if self.has_names else frozenset()


def rules_by_action(rules: Iterable[Rule]) -> dict[str, tuple[str, ...]]:
    """The patterns of `rules` by action, each once."""
    found: dict[str, dict[str, None]] = {}
    for action, pattern in rules:
        found.setdefault(action, {})[pattern] = None
    return {action: tuple(patterns) for action, patterns in found.items()}


def authorize(principal: Principal, action: str, topic: str) -> bool:
    """Whether `principal` may do `action` with a topic, or with every topic of a pattern.

    Every listener, gateway and the console ask this function, through the guard of the backend.
    """
    return any(covers(allowed, topic) for allowed in principal.rules.get(action, ()))


def check(principal: Principal, action: str, topic: str) -> None:
    """Raise `NotAuthorized` unless `authorize` allows it. The error names the allowed topics."""
    if not authorize(principal, action, topic):
        raise refusal(principal, action, topic)


def refusal(principal: Principal, action: str, topic: str) -> NotAuthorized:
    """The error for what `authorize` does not allow. It names what is allowed, and `partial=True` where it helps."""
    allowed = principal.rules.get(action, ())
    partial = action == "subscribe" and is_pattern(topic) and bool(covered_parts(allowed, topic))
    return NotAuthorized(principal.name, action, topic, allowed, partial=partial)


def of_ticket(principal: Principal, topics: Iterable[str]) -> Principal:
    """The rights of the holder of a ticket: subscribe to the topics that it was made for, and nothing else.

    A ticket is given to others, such as a browser, by a program that may do much more.
    """
    allowed = tuple(topic for topic in topics if authorize(principal, "subscribe", topic))
    return Principal(name=principal.name, rules={"subscribe": allowed}, limits=principal.limits, has_names=False)


def can_see(principal: Principal, topic: str) -> bool:
    """Whether a listing may name `topic`: the principal may do anything with it."""
    return any(covers(allowed, topic) for patterns in principal.rules.values() for allowed in patterns)


EVERYTHING: dict[str, tuple[str, ...]] = dict.fromkeys(ACTIONS, (">",)) | {"subscribe": (">", "$runnel.>")}


def administrator(name: str, **more: Any) -> Principal:
    """A principal that may do everything: the owner of the folder at the Unix socket."""
    return Principal(name=name, roles=("admin",), rules=EVERYTHING, console=ConsoleRole.ADMIN, **more)
