"""The options of `publish` and `subscribe` as flags: `buffer_bytes` of `SubscribeOptions` is `--buffer-bytes`.

Flags, their help and how they are read come from the fields of the structs in `core.options`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from runnel.cli.start import api_start, parse_start
from runnel.config import units
from runnel.core.errors import InvalidOption
from runnel.core.options import Option, OptionKind, options_of

_TITLES = {"alone": "options of a subscription that is no member of a group", "group": "options of a group"}
FLAGS = {"headers": "header"}  # options with a flag of another name
ALIASES = {"start": ("--from",)}


def flag_of(option: str) -> str:
    """How an option is written on the command line."""
    return f"--{FLAGS.get(option, option).replace('_', '-')}"


def cli_options(options: type[Any]) -> dict[str, Option]:
    """The options of a struct that can be given on the command line."""
    return {name: option for name, option in options_of(options).items() if option.kind in _READ}


def add_options(parser: argparse.ArgumentParser, options: type[Any]) -> None:
    """A flag for each option of a struct; those of groups, and of subscriptions alone, under titles of their own."""
    into: dict[str | None, Any] = {None: parser}
    for name, option in cli_options(options).items():
        if option.only not in into:
            into[option.only] = parser.add_argument_group(_TITLES[option.only or ""])
        _add(into[option.only], name, option)


def _add(parser: Any, name: str, option: Option) -> None:
    about = option.about.replace("`", "").replace("%", "%%")
    default = "" if option.default == "none" else f" (default: {option.default.replace('`', '')})"
    values = f": {option.kind.value}" if option.kind in (OptionKind.POLICY, OptionKind.START) else ""
    settings: dict[str, Any] = {"dest": name, "help": about + values + default}
    if option.kind is OptionKind.SWITCH:
        settings |= {"action": argparse.BooleanOptionalAction, "default": None}
    elif option.kind is OptionKind.HEADERS:
        settings |= {"action": "append", "default": [], "metavar": "NAME=VALUE", "help": "a header; may be repeated"}
    else:
        settings["metavar"] = _READ[option.kind][0]
    parser.add_argument(flag_of(name), *ALIASES.get(name, ()), **settings)


def read_options(chosen: argparse.Namespace, options: type[Any]) -> dict[str, Any]:
    """The options that were given, by name, as text says them. The struct checks the values."""
    found: dict[str, Any] = {}
    for name, option in cli_options(options).items():
        text = getattr(chosen, name)
        if text is not None and text != []:
            try:
                found[name] = _READ[option.kind][1](text)
            except ValueError as error:
                raise InvalidOption(name, text, str(error)) from None
    return found


def read_whole(text: str) -> int:
    """A whole number."""
    if not (text.removeprefix("-").isdigit() and text.isascii()):
        raise ValueError("expected a whole number")
    return int(text)


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("expected a share from 0 to 1") from None


def read_headers(given: list[str]) -> dict[str, str]:
    """NAME=VALUE, repeatable."""
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise InvalidOption("header", one, "expected NAME=VALUE")
        found[name] = value
    return found


def _same(value: Any) -> Any:
    return value


# The placeholder of the value in the help, and its parser.
_READ: dict[OptionKind, tuple[str, Callable[[Any], Any]]] = {
    OptionKind.START: ("WHERE", lambda text: api_start(parse_start("start", text))),
    OptionKind.NAME: ("NAME", _same),
    OptionKind.GROUP: ("GROUP", _same),
    OptionKind.PRESENCE: ("TEXT", _same),
    OptionKind.TOPIC: ("TOPIC", _same),
    OptionKind.POLICY: ("POLICY", _same),
    OptionKind.COUNT: ("N", read_whole),
    OptionKind.SIZE: ("SIZE", units.size),
    OptionKind.SWITCH: ("", _same),
    OptionKind.DURATION: ("TIME", units.seconds),
    OptionKind.PAUSES: ("TIME,…", lambda text: tuple(map(units.seconds, text.split(",")))),
    OptionKind.SHARE: ("SHARE", _share),
    OptionKind.KEY: ("KEY", _same),
    OptionKind.HEADERS: ("NAME=VALUE", read_headers),
    OptionKind.SECONDS: ("TIME", units.seconds),
    OptionKind.PRIORITY: ("N", read_whole),
    OptionKind.MESSAGE_ID: ("ID", _same),
    OptionKind.OFFSET: ("OFFSET", read_whole),
}
