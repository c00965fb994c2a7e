"""`runnel config`: which settings act and where each came from; check a configuration file."""

from __future__ import annotations

import argparse
import os
import tomllib
from pathlib import Path

from runnel.cli.archive import archive_config_of
from runnel.cli.command import Commands, add_command, add_family, add_json
from runnel.cli.errors import FINE, FOUND, CommandError
from runnel.cli.output import many, print_document, print_table
from runnel.cli.relay import relay_config_of
from runnel.config.errors import ConfigProblem, InvalidConfig
from runnel.config.history import check_sources
from runnel.config.keys import keys
from runnel.config.settings import DEFAULT, Settings, load
from runnel.core.errors import RunnelError

EXAMPLE = """\
examples:
  runnel config show                       every setting, its value, and where it came from
  runnel config check runnel.toml          check a configuration file, before a server meets it

A file is TOML: `server` and `data` at its top, [serve] for the server, [journal] for the folder. The same keys are
variables of the environment (RUNNEL_SERVE_PORT) and options of `runnel serve` (--port). Options win over the
environment, the environment over the file.
"""
SHOW = """\
examples:
  runnel config show                       out of runnel.toml, if it is here, and the environment
  runnel config show --config /etc/runnel.toml --json
  RUNNEL_SERVE_PORT=9000 runnel config show --said
"""
CHECK = """\
examples:
  runnel config check runnel.toml && runnel serve
  runnel config check runnel.toml --json

Every problem is printed, with its line and the nearest right name. Exit code 0: the file is fine. 1: it is not.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel config` and its commands known."""
    inner = add_family(
        commands,
        "config",
        "show settings and their sources; check a file",
        EXAMPLE,
        "The configuration of `runnel serve`, and of commands that talk to a server.",
    )
    show = add_command(inner, "show", "every setting, and where it came from", SHOW, run_show)
    show.add_argument("--config", metavar="FILE", help="a TOML file (default: $RUNNEL_CONFIG, else runnel.toml)")
    show.add_argument("--said", action="store_true", help="leave out settings with their default value")
    add_json(show)
    check = add_command(inner, "check", "check a configuration file", CHECK, run_check)
    check.add_argument("file", metavar="FILE", help="the file")
    add_json(check)


def run_show(chosen: argparse.Namespace) -> int:
    """Print the settings that act."""
    settings = load({}, os.environ, chosen.config)
    found = [key for key in keys().values() if not chosen.said or settings.where(key.dotted) != DEFAULT]
    if chosen.json:
        print_document(
            {
                "file": None if settings.file is None else str(settings.file),
                "settings": {
                    key.dotted: {"value": _plain(settings.value(key)), "from": settings.where(key.dotted)}
                    for key in found
                },
            }
        )
        return FINE
    if not found:
        print("every setting has its default")
        return FINE
    print_table(
        ("SETTING", "VALUE", "FROM"),
        ((key.dotted, key.shown(settings.value(key)), settings.where(key.dotted)) for key in found),
    )
    return FINE


def run_check(chosen: argparse.Namespace) -> int:
    """Check a file; print its errors."""
    settings: Settings | None = None
    problems: list[ConfigProblem] = []
    try:
        settings = load({}, {}, chosen.file)
    except InvalidConfig as error:
        problems = list(error.problems)
    else:
        problems = [*check_sources(settings.history), *_table_problems(Path(chosen.file))]
    if chosen.json:
        told = [{"where": one.where, "message": one.message} for one in problems]
        print_document({"file": chosen.file, "fine": not problems, "problems": told})
    elif settings is not None and not problems:
        print(f"{chosen.file} is fine: {many(len(settings.given), 'setting')}")
    else:
        for problem in problems:
            print(problem)
    return FOUND if problems else FINE


def _table_problems(file: Path) -> list[ConfigProblem]:
    """The errors in [relay] and [archive], which commands of their own read. No connection is made."""
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    problems = []
    for name, read in (("relay", relay_config_of), ("archive", archive_config_of)):
        if name in tables:
            try:
                read(file)
            except (CommandError, RunnelError) as error:
                problems.append(ConfigProblem(f"{file}: [{name}]", str(error)))
    return problems


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
