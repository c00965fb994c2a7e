"""`runnel worker`: run the handlers of a program, in one process or several."""

from __future__ import annotations

import argparse
import os
import sys

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.errors import USAGE, CommandError
from runnel.config import units
from runnel.core.errors import InvalidOption
from runnel.core.options import not_negative, positive

EXAMPLE = """\
examples:
  runnel worker orders:broker                   the handlers of the broker `broker` in orders.py
  runnel worker orders                          the only broker of that module
  runnel worker shop.orders:make_broker         a function that returns one
  runnel worker orders:broker --processes 4     four processes; members of one group share its records
  runnel worker orders:broker --reload          starts again when a file of Python below this folder changes

In orders.py:

  broker = runnel.open("runnel://127.0.0.1:7788")

  @broker.on("orders", group="billing", concurrency=10, rate=100, time_limit=30, retries=5, publish="invoices")
  async def bill(order: Order) -> Invoice: ...

SIGTERM or Ctrl-C: no worker takes another record, calls that run have --deadline to finish, and records that are not
done go back to their group. A second one ends all at once. With --processes above 1, or --reload, a worker that dies is
started again after a pause that doubles from 0.5 s to 30 s, and log lines say which worker they are of. A single worker
is this process: a service manager starts it again. Exit code 0: stopped properly. 1: a worker failed or was not done by
the deadline. 2: there is no such module or broker.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel worker` known."""
    parser = add_command(
        commands,
        "worker",
        "run the handlers of a program, in one process or several",
        EXAMPLE,
        run,
        "Imports a module, opens the broker in it and runs its handlers (@broker.on) until a signal.",
    )
    parser.add_argument("target", metavar="MODULE:BROKER", help="where the broker is, such as shop.orders:broker")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="how many run them (default: 1)")
    parser.add_argument("--reload", action="store_true", help="start again when the code changes, for development")
    parser.add_argument("--reload-dir", metavar="DIR", default=".", help="a folder to watch (default: this one)")
    parser.add_argument("--deadline", metavar="TIME", default="30s", help="for calls that run at a stop (default: 30s)")
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info", help="(default: info)"
    )
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="(default: text)")
    add_json(parser, "one JSON line for each worker that is ready")
    parser.add_argument("--number", help=argparse.SUPPRESS)  # said by the supervisor: which of how many, such as 2/4
    parser.add_argument("--channel", type=int, help=argparse.SUPPRESS)  # the supervisor's socket


def run(chosen: argparse.Namespace) -> int:
    """Run the handlers here or, as several processes or with reload, watch over those that do."""
    try:
        deadline = not_negative("deadline", units.seconds(chosen.deadline))
    except ValueError as error:
        raise InvalidOption("deadline", chosen.deadline, str(error)) from None
    positive("processes", chosen.processes)
    if not chosen.reload and chosen.reload_dir != ".":
        raise CommandError("usage_error", "--reload-dir needs --reload", USAGE)
    from runnel.cli.process_settings import process_settings

    number, _, of = (chosen.number or "").partition("/")
    with process_settings(chosen.log_level, chosen.log_format, worker=int(number) if number else None):
        if chosen.number is None and (chosen.processes > 1 or chosen.reload):
            from runnel.cli.worker_supervisor import Supervisor

            watched = os.path.abspath(chosen.reload_dir) if chosen.reload else None
            return Supervisor(_command(chosen), chosen.processes, deadline, watched, as_json=chosen.json).run()
        from runnel.cli.worker_process import WorkerProcess

        alone = not of or of == "1"
        return WorkerProcess(chosen.target, deadline, chosen.channel, is_alone=alone, as_json=chosen.json).run()


def _command(chosen: argparse.Namespace) -> list[str]:
    """The command line of one worker."""
    options = ["--deadline", chosen.deadline, "--log-level", chosen.log_level, "--log-format", chosen.log_format]
    return [sys.executable, "-m", "runnel", "worker", chosen.target, *options]
