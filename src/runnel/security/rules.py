"""Rules: an action on a topic pattern, written `publish:orders.>`.

A rule allows a topic, or a whole pattern that lies inside of its own. Rules only ever allow; what no rule allows is
refused. Internal topics (`$…`) are allowed by no rule but one that spells out their first token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from runnel.core.errors import InvalidOption, InvalidPattern
from runnel.core.pattern import check_pattern

ACTIONS = ("publish", "subscribe", "group", "create", "admin")
"""The actions that a rule can allow. `admin` is separate: it implies no other, and no other implies it."""

_BAD_CLAIM = re.compile(r"[.*>$\s\x00-\x20\x7f-\x9f]")
_FIELD = re.compile(r"\{([^{}]*)\}")


class Rule(NamedTuple):
    """One thing that is allowed."""

    action: str
    pattern: str

    def __str__(self) -> str:
        return f"{self.action}:{self.pattern}"


def parse_rule(text: object, option: str = "allow") -> Rule:
    """The rule in `text`; `InvalidOption` for an invalid one."""
    action, colon, pattern = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not colon or action not in ACTIONS:
        raise InvalidOption(option, text, f"expected ACTION:PATTERN, with one of {', '.join(ACTIONS)}")
    try:
        return Rule(action, check_pattern(pattern))
    except InvalidPattern as error:
        raise InvalidOption(option, text, error.why) from None


def covers(allowed: str, asked: str) -> bool:
    """Whether every topic that `asked` (a name or a pattern) covers is one that `allowed` covers."""
    wide, narrow = allowed.split("."), asked.split(".")
    if narrow[0][:1] == "$" and wide[0] != narrow[0]:
        return False
    for index, token in enumerate(wide):
        if token == ">":
            return len(narrow) > index
        if index >= len(narrow) or narrow[index] == ">":
            return False
        if token not in ("*", narrow[index]):
            return False
    return len(wide) == len(narrow)


def overlap(one: str, other: str) -> str | None:
    """The pattern of the topics that both stand for; None: there are none."""
    first, second = one.split("."), other.split(".")
    if (first[0][:1] == "$" or second[0][:1] == "$") and first[0] != second[0]:
        return None
    made: list[str] = []
    for index in range(max(len(first), len(second))):
        left = first[index] if index < len(first) else None
        right = second[index] if index < len(second) else None
        if left == ">" and right is not None:
            return ".".join([*made, *second[index:]])
        if right == ">" and left is not None:
            return ".".join([*made, *first[index:]])
        if left is None or right is None:
            return None
        if left == "*":
            made.append(right)
        elif right in ("*", left):
            made.append(left)
        else:
            return None
    return ".".join(made)


def covered_parts(allowed: Iterable[str], asked: str) -> tuple[str, ...]:
    """The parts of the pattern `asked` that `allowed` has, without those that lie inside of another part."""
    parts = dict.fromkeys(part for one in allowed if (part := overlap(one, asked)) is not None)
    return tuple(part for part in parts if not any(other != part and covers(other, part) for other in parts))


def fill_template(template: str, claims: Mapping[str, object]) -> str:
    """`jobs.{sub}.>` with claims in place of the names in braces.

    A claim fills exactly one token. One that is missing, empty, or holds a dot, a wildcard, `$` or a control character
    would name other topics than were meant: `InvalidOption`, and the login is refused.
    """

    def value(found: re.Match[str]) -> str:
        name = found.group(1)
        claim = claims.get(name)
        if isinstance(claim, int) and not isinstance(claim, bool):
            claim = str(claim)
        if not isinstance(claim, str) or not claim:
            raise InvalidOption(f"claim {name}", "…", f"{template!r} needs a text in it, and there is none")
        if _BAD_CLAIM.search(claim):
            raise InvalidOption(f"claim {name}", "…", f"it fills one token of {template!r}: no dot, *, >, $ or space")
        return claim

    return _FIELD.sub(value, template)


def fields_of(template: str) -> list[str]:
    """The claims that `template` names."""
    return _FIELD.findall(template)


def check_template(text: object, option: str) -> str:
    """`text`, if it is a rule once its braces are filled. A field replaces a whole token."""
    if not isinstance(text, str):
        raise InvalidOption(option, text, "expected text such as 'subscribe:jobs.{sub}.>'")
    for token in text.partition(":")[2].split("."):
        if ("{" in token or "}" in token) and not _FIELD.fullmatch(token):
            raise InvalidOption(option, text, "a claim in braces is a whole token, such as jobs.{sub}.>")
    parse_rule(_FIELD.sub("x", text), option)
    return text
