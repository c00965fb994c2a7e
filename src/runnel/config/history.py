"""The `[history]` tables of a configuration file: which sources keep old records, and how each is made.

A table names its `kind`; the other keys are the options of that kind. Its module is imported when a server opens the
source, so a file can be checked without the packages that the source needs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NamedTuple

from runnel.config.errors import ConfigProblem, InvalidConfig, nearest
from runnel.core.errors import RunnelError
from runnel.core.history import HistorySource

DSN_VARIABLE = "RUNNEL_HISTORY_DSN"


class HistoryKind(NamedTuple):
    """How sources of one kind are made."""

    factory: str  # "module:function"; it is called with the options of the table, as keywords
    extra: str  # the extra of the package that it needs
    variables: Mapping[
        str, str
    ] = {}  # by option, the variable of the environment that says it where the table does not


KINDS: dict[str, HistoryKind] = {
    "postgres": HistoryKind("runnel.postgres:history", "postgres", {"dsn": DSN_VARIABLE}),
    "lake": HistoryKind("runnel.lake:history", "lake"),
}


class HistoryTable(NamedTuple):
    """One table, and where it stands."""

    kind: str
    options: Mapping[str, Any]
    where: str


def history_tables(path: Path, text: str) -> tuple[list[HistoryTable], list[ConfigProblem]]:
    """The tables [history], or [[history]], of a file; and their errors."""
    try:
        found = tomllib.loads(text).get("history", [])
    except tomllib.TOMLDecodeError:
        return [], []  # reported by `from_file`
    where = f"{path}: [history]"
    tables = found if isinstance(found, list) else [found]
    problems: list[ConfigProblem] = []
    good: list[HistoryTable] = []
    for table in tables:
        if not isinstance(table, dict):
            problems.append(ConfigProblem(where, "is a table, or several: write [history] or [[history]]"))
            continue
        options = dict(table)
        kind = options.pop("kind", None)
        if isinstance(kind, str) and kind in KINDS:
            good.append(HistoryTable(kind, options, where))
            continue
        known = ", ".join(f'"{name}"' for name in KINDS)
        about = "has no kind" if kind is None else f"has the kind {kind!r}, which there is not"
        problems.append(ConfigProblem(where, f"{about}: it is one of {known}{nearest(str(kind), KINDS)}"))
    return good, problems


def open_sources(tables: Sequence[HistoryTable], environment: Mapping[str, str]) -> list[HistorySource]:
    """The sources; `InvalidConfig` with all that could not be made."""
    sources: list[HistorySource] = []
    problems: list[ConfigProblem] = []
    for table in tables:
        variables = KINDS[table.kind].variables
        said = {option: environment[name] for option, name in variables.items() if environment.get(name)}
        options = {**said, **table.options}
        try:
            factory = _factory(table)
            problems += _option_problems(table, factory, options)
            if not problems:
                sources.append(factory(**options))
        except ConfigProblem as problem:
            problems.append(problem)
        except (RunnelError, TypeError, ValueError) as error:
            problems.append(ConfigProblem(table.where, str(error)))
    if problems:
        raise InvalidConfig(problems)
    return sources


def check_sources(tables: Sequence[HistoryTable]) -> list[ConfigProblem]:
    """The errors in the options of these tables, checked where they are used: variables may add missing ones."""
    try:
        open_sources(tables, {name: "?" for table in tables for name in KINDS[table.kind].variables.values()})
    except InvalidConfig as error:
        return list(error.problems)
    return []


def _factory(table: HistoryTable) -> Callable[..., HistorySource]:
    kind = KINDS[table.kind]
    module, _, name = kind.factory.partition(":")
    try:
        found: Callable[..., HistorySource] = getattr(import_module(module), name)
    except ImportError as error:
        how = f"pip install 'runnel-mq[{kind.extra}]'"
        raise ConfigProblem(table.where, f"kind {table.kind!r} needs more packages ({error}): {how}") from None
    return found


def _option_problems(
    table: HistoryTable, factory: Callable[..., HistorySource], options: Mapping[str, Any]
) -> list[ConfigProblem]:
    """Options that the kind does not have, those that are missing, and those that are no text where text belongs."""
    known = signature(factory).parameters
    variables = KINDS[table.kind].variables
    wrong = [f"there is no key {name!r}{nearest(name, known)}" for name in options if name not in known]
    for name, parameter in known.items():
        if name not in options and parameter.default is Parameter.empty:
            wrong.append(f"{name!r} is missing" + (f"; or set {variables[name]}" if name in variables else ""))
        elif parameter.annotation == "str" and not isinstance(options.get(name, ""), str):
            wrong.append(f"{name} is {options[name]!r}: expected text")
    return [ConfigProblem(table.where, one) for one in wrong]
