"""Confirmation before data is deleted: a prompt at a terminal; a script has to pass `--yes`."""

from __future__ import annotations

import argparse
import sys

from runnel.cli.errors import USAGE, CommandError


def check_can_confirm(chosen: argparse.Namespace) -> None:
    """Raise unless `--yes` was given or there is a terminal to ask on."""
    if chosen.yes:
        return
    if chosen.json:
        raise CommandError("usage_error", "--json cannot ask for confirmation: add --yes", USAGE)
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandError("usage_error", "no terminal to ask for confirmation, and nothing was done: add --yes", USAGE)


def confirmed(chosen: argparse.Namespace, question: str) -> bool:
    """Whether `--yes` was given, or the answer to the question is yes; else it says that nothing was done."""
    if chosen.yes:
        return True
    print(f"{question} [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print("nothing was done")
    return False
