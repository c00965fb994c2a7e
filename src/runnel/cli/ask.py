"""Asking before something is gone: a person on a terminal is asked, a program has to say `--yes`."""

from __future__ import annotations

import argparse
import sys

from runnel.cli.problem import USAGE, Refused


def check_answerable(chosen: argparse.Namespace) -> None:
    """Raise unless `--yes` was said, or there is somebody to ask."""
    if chosen.yes:
        return
    if chosen.json:
        raise Refused("usage_error", "with --json nobody is asked: say --yes", USAGE)
    if sys.stdin is None or not sys.stdin.isatty():
        raise Refused("usage_error", "there is no terminal to ask on, and nothing was done: say --yes", USAGE)


def agreed(question: str) -> bool:
    """Ask; whether the answer is yes."""
    print(f"{question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
