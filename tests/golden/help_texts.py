"""The help text of every command, found by asking: a family lists its commands in its own help."""

from __future__ import annotations

import re
from pathlib import Path

from tests.golden import command

_LISTED = re.compile(r"^ {2,4}([a-z-]+)(?: {2,}|$)", re.MULTILINE)


def help_texts(cwd: Path) -> dict[str, str]:
    """By the words of each command, such as `log cat`; `runnel` is the help of the command itself."""
    top = _help(cwd)
    found = {"runnel": top}
    for name in _listed(top, until="\noptions:"):
        found[name] = _help(cwd, name)
        if "COMMAND ..." in found[name].split("\n\n", 1)[0]:
            _, _, commands = found[name].partition("\ncommands:")
            for inner in _listed(commands, until="\nexamples:"):
                found[f"{name} {inner}"] = _help(cwd, name, inner)
    return found


def _help(cwd: Path, *words: str) -> str:
    outcome = command.run(*words, "--help", cwd=cwd)
    if outcome.code:
        raise RuntimeError(f"runnel {' '.join(words)} --help: {outcome}")
    return outcome.out


def _listed(text: str, until: str) -> list[str]:
    return [str(name) for name in _LISTED.findall(text.partition(until)[0])]
