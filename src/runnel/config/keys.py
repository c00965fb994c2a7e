"""Every configuration key, derived from the structs that use them.

The key `serve.port` is `port` under `[serve]` in the file, `RUNNEL_SERVE_PORT` in the environment, and
`--port` on the command line of `runnel serve`; its description is in the docstring of its struct.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from runnel.config import units
from runnel.core.replication import MODES
from runnel.core.telemetry import DEFAULT_INTERVAL, check_interval
from runnel.journal.options import FSYNC, JournalOptions
from runnel.server.options import ServerOptions

ValueKind = Literal["text", "path", "yes or no", "number", "seconds", "bytes", "rate"]

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")

_CHOICES = {"fsync": FSYNC, "standby": MODES, "log_level": LOG_LEVELS, "log_format": LOG_FORMATS}
_OWN_FLAGS = ("fsync", "standby", "standby_lease", "standby_patience")  # keys of the journal whose flags do not say so
_LIMITS = ("max_frame", "max_line", "max_payload", "max_body", "high_water", "credit")
_BYTES = ("min_free", "clean_bytes_per_second", *_LIMITS)
# Defaults of `runnel serve` that differ from those of a `Server` in a program.
SERVE_DEFAULTS = {"http_port": 7780}
_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_OFF = ("off", "none")
_ITEM = re.compile(r"((?:`\w+`(?: \([^)]*\))?(?:, )?)+): (.*)")


class GeneralSettings(msgspec.Struct, frozen=True):
    """Settings of all commands.

    - `server`: the server that commands talk to, such as "runnel://host:7788".
    - `data`: the folder of the journal.
    """

    server: str | None = None
    data: str = "data"


class ServeSettings(msgspec.Struct, frozen=True):
    """How `runnel serve` runs.

    - `memory`: keep everything in memory, nothing on disk.
    - `backend`: serve the topics of the server at this URL, and store nothing here.
    - `deadline`: time to stop after SIGTERM or Ctrl-C.
    - `auto_create`: create a topic at its first publish; false: only `runnel topic create` and `topic.declare()` do.
    - `telemetry`: interval of the statistics that it publishes to `$runnel.telemetry.*`, for plots and reports; None:
      never.
    - `log_level`: level of the log on the error stream.
    - `log_format`: text for people, or one JSON object per line.
    """

    memory: bool = False
    auto_create: bool = True
    backend: str | None = None
    deadline: float = 10.0
    telemetry: float | None = DEFAULT_INTERVAL
    log_level: str = "info"
    log_format: str = "text"

    def __post_init__(self) -> None:
        check_interval(self.telemetry)


STRUCTS: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "": (GeneralSettings,),
    "serve": (ServeSettings, ServerOptions),
    "journal": (JournalOptions,),
}


class ConfigKey(msgspec.Struct, frozen=True):
    """A setting, and its names in the file, the environment and the command line."""

    section: str
    name: str
    kind: ValueKind
    default: Any
    doc: str
    optional: bool = False
    choices: tuple[str, ...] = ()
    struct: type[msgspec.Struct] | None = None
    within: str | None = None  # the field of the struct, where that is a struct of its own

    @property
    def dotted(self) -> str:
        """Its name in messages, and in TOML: `serve.port`."""
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def environment(self) -> str:
        """Its environment variable."""
        return "RUNNEL_" + self.dotted.replace(".", "_").upper()

    @property
    def flag(self) -> str:
        """The flag of `runnel serve`. Those of the journal say so, but for `--fsync` and those of a standby."""
        prefix = "journal-" if self.section == "journal" and self.name not in _OWN_FLAGS else ""
        return f"--{prefix}{self.name.replace('_', '-')}"

    @property
    def expected(self) -> str:
        """The valid values, for messages and the reference."""
        if self.choices:
            return " or ".join(self.choices) if len(self.choices) == 2 else ", ".join(self.choices)
        words = {"number": "a whole number", "rate": "a number", "text": "text", "path": "a path"}
        words |= {"seconds": "a duration", "bytes": "a size", "yes or no": "true or false"}
        return words[self.kind] + (" or off" if self.optional and self.kind not in ("text", "path") else "")

    def parsed(self, text: str) -> Any:
        """The value in the environment or a flag; ValueError names the expected values."""
        if self.optional and text.lower() in _OFF and self.kind not in ("text", "path"):
            return None
        if self.kind == "yes or no":
            if text.lower() not in _YES + _NO:
                raise ValueError("expected true or false")
            return text.lower() in _YES
        if self.kind == "bytes":
            return units.size(text)
        if self.kind == "seconds":
            return units.seconds(text)
        if self.kind in ("number", "rate"):
            try:
                return int(text) if self.kind == "number" else float(text)
            except ValueError:
                raise ValueError(f"expected {self.expected}") from None
        return self._chosen(text)

    def typed(self, value: object) -> Any:
        """The value in a TOML file, which has types already; ValueError names the expected values."""
        if isinstance(value, str):
            if self.kind not in ("text", "path", "bytes", "seconds") and not (self.optional and value in _OFF):
                raise ValueError(f"expected {self.expected}, not text in quotes")
            return self.parsed(value)
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if self.kind == "yes or no" and isinstance(value, bool):
            return value
        if self.kind in ("seconds", "rate") and (is_number or isinstance(value, float)):
            return value
        if self.kind in ("number", "bytes") and is_number:
            return value
        raise ValueError(f"expected {self.expected}")

    def shown(self, value: Any) -> str:
        """A value as it would be written."""
        if value is None:
            return "off" if self.kind not in ("text", "path") else "-"
        if self.kind == "bytes":
            return units.show_size(value)
        if self.kind == "seconds":
            return units.show_seconds(value)
        if isinstance(value, bool):
            return "true" if value else "false"
        return f"{value:g}" if isinstance(value, float) else str(value)

    def _chosen(self, text: str) -> str:
        if self.choices and text not in self.choices:
            raise ValueError(f"expected {self.expected}")
        return text


@cache
def keys() -> dict[str, ConfigKey]:
    """Every key, by its dotted name."""
    found = (key for section, structs in STRUCTS.items() for struct in structs for key in _of(section, struct))
    return {key.dotted: key for key in found}


def _of(section: str, struct: type[msgspec.Struct], within: str | None = None) -> Iterator[ConfigKey]:
    hints, docs, made = typing.get_type_hints(struct), _docs(struct), None if within else struct()
    for field in msgspec.structs.fields(struct):
        plain, optional = _plain(hints[field.name])
        if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
            yield from _of(section, plain, field.name)
            continue
        yield ConfigKey(
            section,
            f"tls_{field.name}" if within else field.name,
            _kind(field.name, plain),
            SERVE_DEFAULTS.get(field.name, getattr(made, field.name, None)),
            docs.get(field.name, ""),
            optional,
            _CHOICES.get(field.name, ()),
            struct,
            within,
        )


def _plain(hint: Any) -> tuple[Any, bool]:
    """The type without `None`, and whether that was in it."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        left = [one for one in typing.get_args(hint) if one is not type(None)]
        return (left[0] if len(left) == 1 else next((one for one in left if one is Path), left[0])), True
    return hint, False


def _kind(name: str, plain: Any) -> ValueKind:
    if plain is bool:
        return "yes or no"
    if plain is float:
        return "rate" if {"rate", "share"} & set(name.split("_")) else "seconds"
    if plain is int:
        return "bytes" if name.endswith("_bytes") or name in _BYTES else "number"
    return "path" if plain is Path or name == "data" else "text"


def _docs(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The descriptions of fields in a struct's docstring: items that begin with their names."""
    found: dict[str, str] = {}
    text = "\n".join(line.strip() for line in (struct.__doc__ or "").splitlines())
    for item in re.split(r"\n(?=- )", text):
        if item.startswith("- "):
            said = " ".join(item.split("\n\n")[0].removeprefix("- ").split())
            for part in re.split(r"(?<=[.;]) (?=`\w+`: )", said):  # two on one line
                if matched := _ITEM.match(part):
                    found |= dict.fromkeys(re.findall(r"`(\w+)`", matched[1]), _told(matched[2]))
    return found


def _told(said: str) -> str:
    """The value in its written form: None in Python is `off`."""
    return said.rstrip(".").replace("None:", "off:").replace(": see `Server.listeners`", "")
