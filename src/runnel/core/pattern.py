"""Topic names, and patterns over them.

A name is tokens joined by dots. In a pattern `*` matches one whole token and `>`, which comes last,
for one or more. Names that begin with `$` are internal: no pattern matches them unless it spells out
that first token. Of these, users may publish to `$runnel.analytics.*` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Generic, TypeVar

from runnel.core.errors import InvalidName, InvalidOption, InvalidPattern

MAX_NAME_BYTES = 255
TELEMETRY_PREFIX = "$runnel.telemetry."  # the broker's figures about itself; it alone publishes them
ANALYTICS_PREFIX = "$runnel.analytics."  # what pipelines compute of them, and publish
# Internal, but kept on disk: a server writes them.
SECURITY_LOG_TOPICS = ("$runnel.security", "$runnel.logins", "$runnel.refusals")

T = TypeVar("T")

# Control characters and white space would let a name forge a line or a header on a text protocol.
_FORBIDDEN = re.compile(r"[\s\x00-\x20\x7f-\x9f]")
_PLAIN = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_no_control(option: str, name: str) -> str:
    """`name`, when it has no control character: one would act on the terminal that shows it, or forge a log line."""
    if found := _CONTROL.search(name):
        raise InvalidOption(option, name, f"it holds the control character {found.group()!r}; use printable characters")
    return name


def check_name(name: object) -> str:
    """`name`, when it may name a topic of a user; else InvalidName says why not."""
    if isinstance(name, str):
        if len(name) <= MAX_NAME_BYTES and _PLAIN.fullmatch(name):
            return name
        why = _fault(name)
        if why is None and name[0] == "$" and not name.startswith(ANALYTICS_PREFIX):
            why = "it starts with '$', which is internal"
        if why is None and ("*" in name or ">" in name):
            why = "'*' and '>' belong to patterns"
        if why is None:
            return name
    else:
        why = f"it is of type {type(name).__name__}, not str"
    raise InvalidName(name, why)


def is_kept_when_internal(name: str) -> bool:
    """Whether the internal topic `name` is kept on disk like a topic of a user."""
    return name in SECURITY_LOG_TOPICS or name.startswith((TELEMETRY_PREFIX, ANALYTICS_PREFIX))


def is_pattern(text: str) -> bool:
    """Whether `text` has a wildcard token; without one it names a single topic."""
    return any(token in ("*", ">") for token in text.split("."))


def check_pattern(pattern: object) -> str:
    """`pattern`, when it may be subscribed to; else InvalidPattern says why not."""
    if not isinstance(pattern, str):
        raise InvalidPattern(pattern, f"it is of type {type(pattern).__name__}, not str")
    why = _fault(pattern)
    if why is None:
        tokens = pattern.split(".")
        if ">" in tokens[:-1]:
            why = "'>' is not the last token"
        elif any(("*" in token or ">" in token) and len(token) > 1 for token in tokens):
            why = "a wildcard must be a whole token"
    if why is not None:
        raise InvalidPattern(pattern, why)
    return pattern


def matches(pattern: str, name: str) -> bool:
    """Whether `pattern` covers the topic `name`."""
    wants, has = pattern.split("."), name.split(".")
    if name[0] == "$" and wants[0] != has[0]:
        return False
    if wants[-1] == ">":
        return len(has) >= len(wants) and _all_match(wants[:-1], has)
    return len(has) == len(wants) and _all_match(wants, has)


def _all_match(wants: list[str], has: list[str]) -> bool:
    return all(want in ("*", token) for want, token in zip(wants, has, strict=False))


def _fault(text: str) -> str | None:
    """The error that names and patterns share; None if there is none."""
    if not text:
        return "it is empty"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if size > MAX_NAME_BYTES:
        return f"it is {size} bytes long, more than {MAX_NAME_BYTES}"
    if found := _FORBIDDEN.search(text):
        return f"it holds {found.group()!r}"
    if "" in text.split("."):
        return "a token between dots is empty"
    return None


class PatternTable(Generic[T]):
    """Which of many patterns cover a name, without trying each of them: a tree of tokens."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, pattern: str, item: T) -> None:
        """Register `item` under `pattern`, once."""
        node = self._root
        for token in pattern.split("."):
            node = node.children.setdefault(token, _Node())
        node.items[item] = None

    def remove(self, pattern: str, item: T) -> None:
        """Take back an `add`; branches left empty are pruned."""
        path = [self._root]
        tokens = pattern.split(".")
        for token in tokens:
            path.append(path[-1].children[token])
        del path[-1].items[item]
        for token, parent, node in zip(reversed(tokens), reversed(path[:-1]), reversed(path[1:]), strict=True):
            if node.items or node.children:
                break
            del parent.children[token]

    def covering(self, name: str) -> list[T]:
        """Every item with a pattern that covers `name`, once."""
        return list(dict.fromkeys(self._walk(name.split("."), internal=name[0] == "$")))

    def _walk(self, tokens: list[str], *, internal: bool) -> Iterator[T]:
        # Level by level: subjects of NATS clients have more tokens than Python has levels of recursion.
        nodes, wild = [self._root], not internal
        for token in tokens:
            deeper: list[_Node[T]] = []
            for node in nodes:
                if wild and (rest := node.children.get(">")):
                    yield from rest.items
                if child := node.children.get(token):
                    deeper.append(child)
                if wild and token != "*" and (child := node.children.get("*")):
                    deeper.append(child)
            if not deeper:
                return
            nodes, wild = deeper, True
        for node in nodes:
            yield from node.items


class _Node(Generic[T]):
    __slots__ = ("children", "items")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.items: dict[T, None] = {}
