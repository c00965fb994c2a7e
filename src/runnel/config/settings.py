"""A whole configuration: flags win over the environment, the environment over the file, the file over the defaults.

Below: sources, keys. Above: `runnel serve`, `runnel config`, and every command that has to know its server.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from runnel.config.keys import SERVE_DEFAULTS, General, Key, Serving, keys
from runnel.config.problems import InvalidConfig, Problem
from runnel.config.sources import CONFIG, Found, Given, of_environment, of_file
from runnel.core.errors import InvalidOption, UsageError
from runnel.journal.options import JournalOptions
from runnel.server.options import ServerOptions

DEFAULT_FILE = "runnel.toml"
DEFAULT = "default"


class Settings:
    """What was said, and where. Making one checks all of it."""

    def __init__(self, given: Mapping[str, Given], file: Path | None = None) -> None:
        self.given, self.file = dict(given), file
        problems: list[Problem] = []
        self.general: General = self._made(General, problems)
        self.serving: Serving = self._made(Serving, problems)
        self.server: ServerOptions = self._made(ServerOptions, problems)
        self.journal: JournalOptions = self._made(JournalOptions, problems)
        if problems:
            raise InvalidConfig(problems)

    def where(self, dotted: str) -> str:
        """Where the value of a key came from."""
        return self.given[dotted].source if dotted in self.given else DEFAULT

    def value(self, key: Key) -> Any:
        """The value of a key as it acts, worked out where it was not said."""
        for made in (self.general, self.serving, self.server, self.journal):
            holder = getattr(made, key.within, None) if key.within else made
            if isinstance(holder, key.struct or ()):
                return getattr(holder, key.name.removeprefix("tls_") if key.within else key.name)
        return key.default

    def _made(self, struct: type[Any], problems: list[Problem]) -> Any:
        """The struct, made of what was said; what it refuses is told with its place."""
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

    def _problem(self, struct: type[Any], error: Exception) -> Problem:
        if isinstance(error, InvalidOption):
            for key in keys().values():
                if key.struct is struct and error.option == key.name and key.dotted in self.given:
                    return Problem(self.given[key.dotted].source, f"{key.dotted} is {error.value!r}: {error.why}")
        missing = [key for key in keys().values() if key.within and key.dotted in self.given]
        if isinstance(error, TypeError) and missing:
            return Problem(
                self.given[missing[0].dotted].source, "a certificate and its key go together: tls_cert and tls_key"
            )
        return Problem(struct.__name__, str(error))


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
    said: list[Found] = [({}, []) if path is None else of_file(path, _text(path))]
    said.append(of_environment(environment))
    said.append(_of_flags(flags or {}))
    if not strict:
        said[1] = (said[1][0], [])
    problems = [problem for _, found in said for problem in found]
    merged = {dotted: given for values, _ in said for dotted, given in values.items()}
    try:
        settings = Settings(merged, path)
    except InvalidConfig as error:
        raise InvalidConfig([*problems, *error.problems]) from None
    if problems:
        raise InvalidConfig(problems)
    return settings


def _of_flags(flags: Mapping[str, str | None]) -> Found:
    found: dict[str, Given] = {}
    problems: list[Problem] = []
    for dotted, text in flags.items():
        if text is None:
            continue
        key = keys()[dotted]
        try:
            found[dotted] = Given(key.parsed(text), key.flag)
        except ValueError as error:
            problems.append(Problem(key.flag, f"{text!r}: {error}"))
    return found, problems


def _file(asked: str | Path | None, environment: Mapping[str, str]) -> Path | None:
    if asked is not None:
        return Path(asked)
    if environment.get(CONFIG):
        return Path(environment[CONFIG])
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidConfig([Problem(str(path), f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise InvalidConfig([Problem(str(path), "is no text in UTF-8")]) from None
