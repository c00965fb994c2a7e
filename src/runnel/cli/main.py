"""The `runnel` command: finds the command, runs it, turns errors into one line and an exit code.

Only the module of the chosen command is imported, since loading all of them takes longer than most commands.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from runnel.cli.command import Commands
from runnel.core.errors import without_tokens

EXAMPLES = """\
examples:
  runnel serve                       a server on the folder data/, at 127.0.0.1:7788
  runnel sub 'greetings.>'           in another terminal: what is published there
  runnel pub greetings.world hello   in a third one
  runnel top                         rates, lag and drops, live
  runnel info data/                  what a folder is, and who has it open
  python -m runnel top               when the `runnel` script is not on the path

`runnel COMMAND --help` has options and examples.
"""

GROUPS = {
    "servers and clients": (
        "serve",
        "pub",
        "sub",
        "request",
        "reply",
        "bridge",
        "mirror",
        "worker",
        "top",
        "bench",
    ),
    "topics and readers": ("topic", "group", "cursor", "letters"),
    "access": ("token", "security-log", "reload"),
    "a folder": ("info", "log", "backup", "restore"),
    "a second server": ("standby", "promote"),
    "PostgreSQL": ("relay", "archive"),
    "Spark and the lake": ("pipeline",),
    "help and configuration": ("doctor", "config", "completion"),
}


COMMANDS = [name for names in GROUPS.values() for name in names]  # each a module of this package
MOVED: dict[tuple[str, ...], str] = {("log", "archive"): "backup", ("log", "restore"): "restore"}


# Commands of other tools that users type.
ALIASES = {
    "publish": "pub",
    "produce": "pub",
    "send": "pub",
    "subscribe": "sub",
    "consume": "sub",
    "work": "worker",
    "workers": "worker",
    "run": "worker",
    "tail": "sub",
    "cat": "log cat",
    "dlq": "letters list",
    "replay": "letters replay",
    "discard": "letters discard",
    "server": "serve",
    "start": "serve",
    "topics": "topic list",
    "groups": "group list",
    "consumer": "group",
    "stream": "topic",
    "status": "info",
    "stats": "top",
    "tokens": "token list",
    "benchmark": "bench",
    "check": "doctor",
    "version": "--version",
    "help": "--help",
}


# The same for the commands of a command: those of these that there are.
VERBS = {
    "ls": ("list",),
    "get": ("show", "list"),
    "describe": ("show",),
    "add": ("create",),
    "new": ("create",),
    "make": ("create",),
    "rm": ("delete", "forget", "revoke", "discard"),
    "remove": ("delete", "forget", "revoke", "discard"),
    "delete": ("forget", "revoke", "discard"),
}


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all errors of commands are. No option may be abbreviated."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where help is."""
        self.exit(2, f"{self.prog}: {without_tokens(message)}; see `{self.prog} --help` (usage_error)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """A command that there is; else the one that was probably meant."""
        if not isinstance(action, argparse._SubParsersAction) or value in action.choices:
            super()._check_value(action, value)
            return
        meant = next((one for one in VERBS.get(value, ()) if one in action.choices), None)
        near = meant or next(iter(get_close_matches(value, action.choices, n=1)), None)
        hint = f"did you mean `{self.prog} {near}`?" if near else f"there are {', '.join(action.choices)}"
        raise argparse.ArgumentError(None, f"there is no command {value!r}; {hint}")


class GroupedHelpParser(argparse.ArgumentParser):
    """A parser whose help lists its commands by what they are for. No option may be abbreviated."""

    commands: Commands

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def check_options(self) -> None:
        """Refuse options that the command does not take before argparse reads on: it would name what follows them."""
        parser = self._innermost()
        for word in self.said:
            if word == "--":
                return
            name = word.partition("=")[0]
            if word.startswith("--") and " " not in word and name not in parser._option_string_actions:
                self.exit(2, f"runnel: {self._unknown_option(word)} (usage_error)\n")

    def error(self, message: str) -> NoReturn:
        """One line, that suggests the command that was probably meant."""
        if (said := self._unknown) is not None:
            near = ALIASES.get(said) or next(iter(get_close_matches(said, COMMANDS, n=1)), None)
            hint = f"did you mean `runnel {near}`? " if near else ""
            message = f"there is no command {said!r}; {hint}`runnel --help` lists them all"
        elif message.startswith("unrecognized arguments: "):
            message = self._unknown_option(message.removeprefix("unrecognized arguments: ").split()[0])
        self.exit(2, f"runnel: {without_tokens(message)} (usage_error)\n")

    @property
    def _unknown(self) -> str | None:
        return None if not self.said or self.said[0][:1] in ("", "-") or self.said[0] in COMMANDS else self.said[0]

    said: Sequence[str] = ()  # the command line

    def _innermost(self) -> argparse.ArgumentParser:
        """The parser of the command that the command line names."""
        parser: argparse.ArgumentParser = self
        for word in self.said:
            inner = next((one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None)
            if inner is None or word not in inner.choices:
                break
            parser = inner.choices[word]
        return parser

    def _unknown_option(self, word: str) -> str:
        """An option or argument that the command does not take; the nearest one that it does."""
        parser = self._innermost()
        if not word.startswith("-"):
            return f"{parser.prog!r} takes no {without_tokens(word)!r}; see `{parser.prog} --help`"
        option = word.partition("=")[0]  # without its value, which may be a secret
        if option == "--token":
            why = "process lists would show it. Put it into a file and give --token-file FILE, or set RUNNEL_TOKEN"
            return f"{parser.prog!r} takes no '--token': {why}"
        names = [str(one.metavar or one.dest) for one in parser._get_positional_actions()]
        arguments = {f"--{name.lower()}": name for name in names}
        if "PATTERN" in names:
            arguments["--topic"] = "PATTERN"
        known = [*parser._option_string_actions, *arguments]
        begun = [one for one in known if one.startswith(option) and len(option) > len("--x")]
        near = next(iter(begun or get_close_matches(option, known, n=1)), None)
        if near in arguments:
            hint = f"{arguments[near]} is given without it: `{parser.prog} {arguments[near]}`; "
        else:
            hint = f"did you mean {near}? " if near else ""
        return f"{parser.prog!r} takes no {option!r}; {hint}see `{parser.prog} --help`"

    def format_help(self) -> str:
        """The help, with the commands in their groups."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        listed = {action.dest: action for action in self.commands._get_subactions()}
        for title, names in GROUPS.items():
            formatter.start_section(title)
            formatter.add_arguments([listed[name] for name in names if name in listed])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if action.option_strings])
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    _prepare_streams()
    try:
        return _run(arguments)
    except BrokenPipeError:
        # The reader of our output has gone (`runnel log cat | head`): there is nothing to print.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _prepare_streams() -> None:
    """Make streams that take whatever is printed: a closed one (`>&-`) takes it to nowhere, ASCII gets escapes."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open as long as the process
    if sys.stderr is None:  # print(file=None) would print to the standard output
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="backslashreplace")


def _run(arguments: Sequence[str] | None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if (moved := MOVED.get(tuple(arguments[:2]))) is not None:
        from runnel.cli.errors import USAGE, CommandError, print_error

        said = " ".join(arguments[:2])
        return print_error(
            CommandError("usage_error", f"`runnel {said}` is `runnel {moved}` now, with the same options", USAGE)
        )
    parser = make_parser(arguments[0] if arguments and arguments[0] in COMMANDS else None)
    parser.said = arguments
    parser.check_options()
    chosen = parser.parse_args(arguments)
    if chosen.version:
        from runnel import __version__

        print(f"runnel {__version__}")
        return 0
    if chosen.command is not None:
        return _do(chosen)
    parser.print_help()
    return 0


def _do(chosen: argparse.Namespace) -> int:
    """Run a command that works on a folder; its errors are printed as one line."""
    from runnel.cli.errors import INTERRUPTED, CommandError, print_error
    from runnel.core.errors import RunnelError

    try:
        status: int = chosen.run(chosen)
        sys.stdout.flush()  # so that a reader who has gone is noticed here
        return status
    except BrokenPipeError:
        raise
    except (RunnelError, CommandError, OSError) as error:
        return print_error(error)
    except KeyboardInterrupt:
        return INTERRUPTED


def make_parser(only: str | None = None) -> GroupedHelpParser:
    """The parser of all commands; or of one, since loading the others takes longer than many a command."""
    parser = GroupedHelpParser(
        prog="runnel",
        description="Durable, real-time pub/sub for Python, without a cluster.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    parser.commands = parser.add_subparsers(
        dest="command", title="commands", metavar="COMMAND", parser_class=CommandParser
    )
    for name in COMMANDS:
        if only in (None, name):
            import_module(f"runnel.cli.{name.replace('-', '_')}").add_to(parser.commands)
    return parser
