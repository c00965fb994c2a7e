"""Reads the configuration: a TOML file, the environment and flags, and the source of each value.

Flags override the environment, the environment overrides the file, the file overrides the defaults.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from runnel.config.errors import ConfigProblem, InvalidConfig, nearest
from runnel.config.history import DSN_VARIABLE, HistoryTable, history_tables
from runnel.config.keys import SERVE_DEFAULTS, STRUCTS, ConfigKey, GeneralSettings, ServeSettings, keys
from runnel.core.errors import InvalidOption, UsageError
from runnel.journal.options import JournalOptions
from runnel.server.options import ServerOptions

ENVIRONMENT_PREFIX = "RUNNEL_"
CONFIG_VARIABLE = "RUNNEL_CONFIG"  # names the file
# Read elsewhere.
OTHER_VARIABLES = (CONFIG_VARIABLE, "RUNNEL_RELAY_DSN", "RUNNEL_ARCHIVE_DSN", "RUNNEL_TOKEN", DSN_VARIABLE)
OTHER_TABLES = ("archive", "history", "relay")  # of the file, read by the commands of these names, and `config.history`
# A service called `runnel` gives every pod in its namespace such variables; they are not meant as settings.
_KUBERNETES = re.compile(r"RUNNEL_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_SOCKET = re.compile(r"(tcp|udp|sctp)://")


class GivenValue(NamedTuple):
    """A value, and where it was said."""

    value: Any
    source: str


Found = tuple[dict[str, GivenValue], list[ConfigProblem]]


def from_file(path: Path, text: str) -> Found:
    """The values in a file. Every key must exist, with a value of its type."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return {}, [_broken(path, error)]
    found: dict[str, GivenValue] = {}
    problems: list[ConfigProblem] = []
    for name, value in document.items():
        if name in OTHER_TABLES and isinstance(value, dict | list):
            continue
        inner = value.items() if name in STRUCTS and isinstance(value, dict) else None
        for section, key, said in [("", name, value)] if inner is None else [(name, k, v) for k, v in inner]:
            where = _location(path, text, section, key)
            try:
                known = _known(section, key, said)
                found[known.dotted] = GivenValue(known.typed(said), where)
            except ValueError as error:
                dotted = f"{section}.{key}" if section else key
                about = str(error) if isinstance(error, _Unknown) else f"{dotted} is {said!r}: {error}"
                problems.append(ConfigProblem(where, about))
    return found, problems


def from_environment(environment: Mapping[str, str]) -> Found:
    """The values of variables that begin with `RUNNEL_`. An empty one is ignored."""
    known = {key.environment: key for key in keys().values()}
    found: dict[str, GivenValue] = {}
    problems: list[ConfigProblem] = []
    for name, text in sorted(environment.items()):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in OTHER_VARIABLES or not text or _is_kubernetes(name, text):
            continue
        key = known.get(name)
        if key is None:
            problems.append(ConfigProblem(name, f"there is no such setting{nearest(name, [*known, *OTHER_VARIABLES])}"))
            continue
        try:
            found[key.dotted] = GivenValue(key.parsed(text), name)
        except ValueError as error:
            problems.append(ConfigProblem(name, f"{text!r}: {error}"))
    return found, problems


class _Unknown(ValueError):
    """There is no such key; the message says it all."""


def _known(section: str, name: str, value: object) -> ConfigKey:
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


def _broken(path: Path, error: tomllib.TOMLDecodeError) -> ConfigProblem:
    """Not TOML at all. The line is in the message; put it where lines are named."""
    found = re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
    if found is None:
        return ConfigProblem(str(path), f"this is no TOML: {error}")
    return ConfigProblem(f"{path}:{found[1]}", f"this is no TOML: {str(error)[: found.start()]}, at column {found[2]}")


def _location(path: Path, text: str, section: str, name: str) -> str:
    """The file, and the line if it is known."""
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


# -- All sources together --------------------------------------------------------------------------------


DEFAULT_FILE = "runnel.toml"
DEFAULT = "default"


class Settings:
    """The given values, and their origins. Making one checks all of it."""

    def __init__(
        self, given: Mapping[str, GivenValue], file: Path | None = None, history: Sequence[HistoryTable] = ()
    ) -> None:
        self.given, self.file, self.history = dict(given), file, tuple(history)
        problems: list[ConfigProblem] = []
        self.general: GeneralSettings = self._made(GeneralSettings, problems)
        self.serving: ServeSettings = self._made(ServeSettings, problems)
        self.server: ServerOptions = self._made(ServerOptions, problems)
        self.journal: JournalOptions = self._made(JournalOptions, problems)
        if problems:
            raise InvalidConfig(problems)

    def where(self, dotted: str) -> str:
        """Where the value of a key came from."""
        return self.given[dotted].source if dotted in self.given else DEFAULT

    def value(self, key: ConfigKey) -> Any:
        """The value of a key as it acts, worked out where it was not said."""
        for made in (self.general, self.serving, self.server, self.journal):
            holder = getattr(made, key.within, None) if key.within else made
            if isinstance(holder, key.struct or ()):
                return getattr(holder, key.name.removeprefix("tls_") if key.within else key.name)
        return key.default

    def _made(self, struct: type[Any], problems: list[ConfigProblem]) -> Any:
        """The struct, made of the settings; a refused setting is reported with its place."""
        fields: dict[str, Any] = dict(SERVE_DEFAULTS) if struct is ServerOptions else {}
        inner: dict[str, dict[str, Any]] = {}
        structs: dict[str, type[Any]] = {}
        mine = {field.name for field in msgspec.structs.fields(struct)}
        for dotted, key in keys().items():
            if dotted not in self.given:
                continue
            value = self.given[dotted].value
            if key.within in mine and key.struct is not None and key.struct is not struct:
                inner.setdefault(key.within, {})[key.name.removeprefix("tls_")] = value
                structs[key.within] = key.struct
            elif key.struct is struct:
                fields[key.name] = Path(value) if key.kind == "path" and key.name != "data" and value else value
        try:
            for field, parts in inner.items():
                fields[field] = structs[field](**{name: Path(value) for name, value in parts.items()})
            return struct(**fields)
        except (UsageError, TypeError) as error:
            problems.append(self._problem(struct, error))
            return struct()

    def _problem(self, struct: type[Any], error: Exception) -> ConfigProblem:
        if isinstance(error, InvalidOption):
            for key in keys().values():
                if key.struct is struct and error.option == key.name and key.dotted in self.given:
                    return ConfigProblem(self.given[key.dotted].source, f"{key.dotted} is {error.value!r}: {error.why}")
        missing = [key for key in keys().values() if key.within and key.dotted in self.given]
        if isinstance(error, TypeError) and missing:
            return ConfigProblem(
                self.given[missing[0].dotted].source, "a certificate and its key go together: tls_cert and tls_key"
            )
        return ConfigProblem(struct.__name__, str(error))


def load(
    flags: Mapping[str, str | None] | None = None,
    environment: Mapping[str, str] | None = None,
    file: str | Path | None = None,
    *,
    strict: bool = True,
) -> Settings:
    """The settings, or `InvalidConfig` with all that is wrong.

    `flags` are texts by dotted key; None was not said. Without a `file`, the environment may name one, and
    `runnel.toml` in this folder is looked at if it is there. Without `strict`, variables that mean nothing are no
    problem: a command that only wants to know where its server is need not judge the rest.
    """
    environment = {} if environment is None else environment
    path = _file(file, environment)
    text = "" if path is None else _text(path)
    said: list[Found] = [({}, []) if path is None else from_file(path, text)]
    history, wrong = ([], []) if path is None else history_tables(path, text)
    said.append(from_environment(environment))
    said.append(_from_flags(flags or {}))
    if not strict:
        said[1] = (said[1][0], [])
    problems = [*(problem for _, found in said for problem in found), *wrong]
    merged = {dotted: given for values, _ in said for dotted, given in values.items()}
    try:
        settings = Settings(merged, path, history)
    except InvalidConfig as error:
        raise InvalidConfig([*problems, *error.problems]) from None
    if problems:
        raise InvalidConfig(problems)
    return settings


def _from_flags(flags: Mapping[str, str | None]) -> Found:
    found: dict[str, GivenValue] = {}
    problems: list[ConfigProblem] = []
    for dotted, text in flags.items():
        if text is None:
            continue
        key = keys()[dotted]
        try:
            found[dotted] = GivenValue(key.parsed(text), key.flag)
        except ValueError as error:
            problems.append(ConfigProblem(key.flag, f"{text!r}: {error}"))
    return found, problems


def _file(asked: str | Path | None, environment: Mapping[str, str]) -> Path | None:
    if asked is not None:
        return Path(asked)
    if environment.get(CONFIG_VARIABLE):
        return Path(environment[CONFIG_VARIABLE])
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidConfig([ConfigProblem(str(path), f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise InvalidConfig([ConfigProblem(str(path), "is no text in UTF-8")]) from None
