"""Where values come from: a TOML file, and the environment. What each says, with the place where it says it.

Below: keys. Above: settings.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from runnel.config.keys import STRUCTS, Key, keys
from runnel.config.problems import Problem, nearest

PREFIX = "RUNNEL_"
CONFIG = "RUNNEL_CONFIG"  # names the file
# A service called `runnel` gives every pod in its namespace such variables; nobody meant them for this.
_KUBERNETES = re.compile(r"RUNNEL_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_SOCKET = re.compile(r"(tcp|udp|sctp)://")


class Given(NamedTuple):
    """A value, and where it was said."""

    value: Any
    source: str


Found = tuple[dict[str, Given], list[Problem]]


def of_file(path: Path, text: str) -> Found:
    """What a file says. Every key must be one there is, with a value of its type."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return {}, [_broken(path, error)]
    found: dict[str, Given] = {}
    problems: list[Problem] = []
    for name, value in document.items():
        inner = value.items() if name in STRUCTS and isinstance(value, dict) else None
        for section, key, said in [("", name, value)] if inner is None else [(name, k, v) for k, v in inner]:
            where = _place(path, text, section, key)
            try:
                known = _known(section, key, said)
                found[known.dotted] = Given(known.typed(said), where)
            except ValueError as error:
                dotted = f"{section}.{key}" if section else key
                about = str(error) if isinstance(error, _Unknown) else f"{dotted} is {said!r}: {error}"
                problems.append(Problem(where, about))
    return found, problems


def of_environment(environment: Mapping[str, str]) -> Found:
    """What the variables that begin with `RUNNEL_` say. An empty one says nothing."""
    known = {key.environment: key for key in keys().values()}
    found: dict[str, Given] = {}
    problems: list[Problem] = []
    for name, text in sorted(environment.items()):
        if not name.startswith(PREFIX) or name == CONFIG or not text or _is_kubernetes(name, text):
            continue
        key = known.get(name)
        if key is None:
            problems.append(Problem(name, f"there is no such setting{nearest(name, [*known, CONFIG])}"))
            continue
        try:
            found[key.dotted] = Given(key.parsed(text), name)
        except ValueError as error:
            problems.append(Problem(name, f"{text!r}: {error}"))
    return found, problems


class _Unknown(ValueError):
    """There is no such key; the message says it all."""


def _known(section: str, name: str, value: object) -> Key:
    dotted = f"{section}.{name}" if section else name
    if (key := keys().get(dotted)) is not None:
        return key
    if not section and name in STRUCTS:
        raise _Unknown(f"{name!r} is a table: write [{name}], and its keys below")
    if not section and isinstance(value, dict):
        raise _Unknown(f"there is no table [{name}]{nearest(name, filter(None, STRUCTS))}")
    elsewhere = [key.dotted for key in keys().values() if key.name == name]
    if elsewhere:
        raise _Unknown(f"there is no key {dotted!r}; did you mean {elsewhere[0]!r}?")
    beside = [key.name for key in keys().values() if key.section == section]
    if near := nearest(name, beside):
        raise _Unknown(f"there is no key {dotted!r}{near}")
    raise _Unknown(f"there is no key {dotted!r}{nearest(dotted, keys())}")


def _is_kubernetes(name: str, text: str) -> bool:
    return bool(_KUBERNETES.fullmatch(name) or (name.endswith("_PORT") and _SOCKET.match(text)))


def _broken(path: Path, error: tomllib.TOMLDecodeError) -> Problem:
    """Not TOML at all. The line is in the message; put it where lines are named."""
    found = re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
    if found is None:
        return Problem(str(path), f"this is no TOML: {error}")
    return Problem(f"{path}:{found[1]}", f"this is no TOML: {str(error)[: found.start()]}, at column {found[2]}")


def _place(path: Path, text: str, section: str, name: str) -> str:
    """The file, and the line if it can be told."""
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*\"?([\w.-]+)\"?\s*\]", line):
            inside = header[1]
            if not section and inside == name:
                return f"{path}:{number}"
        elif key := re.match(r"\s*([\w.\"' -]+?)\s*=", line):
            said = re.sub(r"[\"' ]", "", key[1])
            dotted = f"{inside}.{said}" if inside else said
            if dotted == (f"{section}.{name}" if section else name) or (dotted == section and name in line):
                return f"{path}:{number}"
    return str(path)
