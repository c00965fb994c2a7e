"""The `runnel` command and its help.

Each command parses, calls one function, prints, and returns an exit code.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from runnel.cli.colour import is_colourful
from runnel.cli.command import Commands, add_command

EXAMPLES = """\
examples:
  runnel serve                       a server on the folder data/, at 127.0.0.1:7788
  runnel sub 'greetings.>'           in another terminal: what is published there
  runnel pub greetings.world hello   in a third one
  runnel top                         rates, lag and drops, live
  runnel info data/                  what a folder is, and who has it open
  runnel tour --quick                the event bus at work, a page of it
  python -m runnel tour              when the `runnel` script is not on the path

`runnel COMMAND --help` teaches a command with examples.
"""

TOUR = """\
examples:
  runnel tour            takes a minute
  runnel tour --quick    without the pauses
"""

GROUPS = {
    "a server, and talking to it": ("serve", "pub", "sub", "top", "bench"),
    "topics, and who reads them": ("topic", "group", "cursor"),
    "a folder": ("info", "log"),
    "getting along": ("doctor", "config", "completion", "tour"),
}


COMMANDS = [name for names in GROUPS.values() for name in names if name != "tour"]  # each a module of this room


class Grouped(argparse.ArgumentParser):
    """A parser whose help lists its commands by what they are for."""

    commands: Commands

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
        # Whoever read our output has gone (`runnel tour | head`): nothing to say, and nobody to say it to.
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
    parser = make_parser(arguments[0] if arguments and arguments[0] in (*COMMANDS, "tour") else None)
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
    """Run a command that works on a folder; what goes wrong is one line."""
    from runnel.cli.problem import INTERRUPTED, Refused, complain
    from runnel.core.errors import RunnelError

    try:
        status: int = chosen.run(chosen)
        sys.stdout.flush()  # so that a reader who has gone is noticed here
        return status
    except BrokenPipeError:
        raise
    except (RunnelError, Refused, OSError) as error:
        return complain(error)
    except KeyboardInterrupt:
        return INTERRUPTED


def _tour(chosen: argparse.Namespace) -> int:
    from runnel.cli.tour import tour

    return tour(pause=0.0 if chosen.quick else 0.4, colour=is_colourful(sys.stdout))


def make_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands; or of one, since loading the others takes longer than many a command."""
    parser = Grouped(
        prog="runnel",
        description="Durable, real-time pub/sub for Python, without a cluster.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    parser.commands = parser.add_subparsers(
        dest="command", title="commands", metavar="COMMAND", parser_class=argparse.ArgumentParser
    )
    for name in COMMANDS:
        if only in (None, name):
            import_module(f"runnel.cli.{name}").add_to(parser.commands)
    if only in (None, "tour"):
        _add_tour(parser.commands)
    return parser


def _add_tour(commands: Commands) -> None:
    tour = add_command(
        commands,
        "tour",
        "a short tour of the event bus, in this terminal",
        TOUR,
        _tour,
        "Publishes, subscribes, falls behind on purpose, asks and answers: the bus in a page.",
    )
    tour.add_argument("--quick", action="store_true", help="without the pauses for reading")
