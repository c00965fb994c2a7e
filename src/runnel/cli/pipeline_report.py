"""`runnel pipeline report`: throughput, latency, lag, drops and dead letters on one page of HTML."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from runnel.cli.command import Commands, add_command, add_json
from runnel.cli.errors import FINE, FOUND, CommandError
from runnel.cli.folder import folder_of, open_inspection
from runnel.cli.opened import opened
from runnel.cli.output import Elapsed, print_done
from runnel.cli.server_address import server_of
from runnel.cli.target import add_target
from runnel.observe.analytics import SPANS, read_series

FILE = "runnel-report.html"

EXAMPLE = """\
examples:
  runnel pipeline report                            of data/, to runnel-report.html
  runnel pipeline report --server runnel://127.0.0.1:7788 --out today.html --span hours
  runnel pipeline report --out - > report.html

Reads $runnel.telemetry.*, which a server publishes (`runnel serve --telemetry`), and the windows that
`runnel pipeline run analytics` has made of it. Needs neither Spark nor Java. The page loads nothing and runs no script.
Exit code 1: there is no telemetry yet; the page says so.
"""


def add_to(commands: Commands) -> None:
    """Make `runnel pipeline report` known."""
    parser = add_command(
        commands,
        "report",
        "a page of HTML with plots: throughput, latency, lag, drops",
        EXAMPLE,
        run,
        "Writes what a broker did over minutes, hours and days to one page of HTML, with plots.",
    )
    add_target(parser, bare=False)
    parser.add_argument("--out", default=FILE, metavar="FILE", help=f"where to write it; -: to the output ({FILE})")
    parser.add_argument(
        "--span", action="append", choices=tuple(SPANS), help="how far back; may be repeated (default: all of them)"
    )
    add_json(parser, "what was written, and how many rows are in it, as one JSON document")


def run(chosen: argparse.Namespace) -> int:
    """Write the page."""
    from runnel.observe.report import report

    url = server_of(chosen)
    if url is None:
        with open_inspection(chosen):
            pass  # it raises for a folder that is none, and creates none
    where = str(folder_of(chosen)) if url is None else url
    with Elapsed("reading"):
        found, now = asyncio.run(_read(where, chosen.span or tuple(SPANS)))
    page = report(found, source=where, made=now)
    if chosen.out == "-":
        sys.stdout.write(page)
    else:
        try:
            Path(chosen.out).write_text(page, encoding="utf-8")
        except OSError as error:
            why = f"{chosen.out!r} cannot be written: {error.strerror}; --out names another file"
            raise CommandError("not_written", why, FOUND) from None
        rows = sum(one["rows"] for one in found.values())
        said = f"{rows:,} rows of telemetry, written to {chosen.out}"
        print_done(said, {"rows": rows, "file": chosen.out}, as_json=chosen.json)
    return FINE if any(one["rows"] for one in found.values()) else FOUND


async def _read(where: str, spans: tuple[str, ...]) -> tuple[dict[str, dict[str, Any]], float]:

    async with opened(where) as broker:
        now = broker.clock.time()
        return {name: (await read_series(broker.backend, SPANS[name], now)).document() for name in spans}, now
