"""The `runnel` command and its help.

Each command parses, calls one function, prints, and returns an exit code.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

EXAMPLES = """\
examples:
  runnel tour              see the event bus at work, a page of it
  runnel tour --quick      the same without pauses
  runnel info data/        what a folder is, and who has it open
  runnel log cat orders    the records of a topic, from the folder data/
  python -m runnel tour    when the `runnel` script is not on the path

`runnel COMMAND --help` teaches a command with examples.
"""


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
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.version:
        from runnel import __version__

        print(f"runnel {__version__}")
        return 0
    if chosen.command == "tour":
        from runnel.cli.tour import tour

        return tour(pause=0.0 if chosen.quick else 0.4, colour=sys.stdout.isatty())
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


def _parser() -> argparse.ArgumentParser:
    from runnel.cli import cursor, group, info, log, topic

    parser = argparse.ArgumentParser(
        prog="runnel",
        description="Durable, real-time pub/sub for Python, without a cluster.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    tour = commands.add_parser(
        "tour",
        help="a short tour of the event bus, in this terminal",
        description="Publishes, subscribes, falls behind on purpose, asks and answers: the bus in a page.",
    )
    tour.add_argument("--quick", action="store_true", help="without the pauses for reading")
    for command in (info, topic, group, cursor, log):
        command.add_to(commands)
    return parser
