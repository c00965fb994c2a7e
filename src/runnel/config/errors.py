"""Errors in a configuration: all of them at once, each with its source and a suggestion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from runnel.core.errors import UsageError


class ConfigProblem(Exception):
    """One thing that is wrong, and where: `runnel.toml:12`, `RUNNEL_SERVE_PORT`, `--port`."""

    def __init__(self, where: str, message: str) -> None:
        self.where, self.message = where, message
        super().__init__(f"{where}: {message}")


class InvalidConfig(UsageError):
    """The file, the environment and the flags do not make a configuration; `problems` has each of them."""

    code = "invalid_config"

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, problems)))


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?`, or nothing where nothing is near."""
    near = get_close_matches(name, list(known), 1, 0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
