"""Errors of commands: one line on the error stream and an exit code, never a traceback.

0 is success, 1 a problem that was found, 2 a wrong command line or configuration, 3 an archive that missed something,
130 Ctrl-C.
"""

from __future__ import annotations

import sys

from runnel.cli.output import RED, escaped, is_colourful, painted
from runnel.config.errors import InvalidConfig
from runnel.core.errors import (
    BadAddress,
    FolderInUse,
    InvalidName,
    InvalidOption,
    InvalidPattern,
    NameInUse,
    NoAnswer,
    NotAuthenticated,
    PublicBindRefused,
    RunnelError,
    TokenExpired,
    UnknownGroup,
    UnknownTopic,
    without_tokens,
)

FINE, FOUND, USAGE, MISSED, INTERRUPTED = 0, 1, 2, 3, 130

# What a command says where the sentence of the error names calls and options of Python.
_SAYS: dict[type[RunnelError], str] = {
    UnknownTopic: "there is no topic {topic!r}; see `runnel topic list`, or make it with `runnel topic create`",
    UnknownGroup: "there is no group {group!r} on {pattern!r}; see `runnel group list`",
    NameInUse: "a subscription named {name!r} is open already; close that one, or give another --name",
    NotAuthenticated: "{why}; name a file with a token that this server knows (--token-file), or set RUNNEL_TOKEN",
    TokenExpired: "the token has expired; put a new one into the file of --token-file, or into RUNNEL_TOKEN",
    NoAnswer: (
        "no answer to {what} within {seconds:g} s ({state}); the server may have executed it, or may do so later: "
        "check before you repeat it"
    ),
}
_USAGE = (BadAddress, InvalidConfig, InvalidName, InvalidOption, InvalidPattern, PublicBindRefused)


class CommandError(Exception):
    """A command that cannot be done, with the code of the error that a program would get."""

    def __init__(self, code: str, message: str, status: int = FOUND) -> None:
        self.code, self.message, self.status = code, message, status
        super().__init__(message)


def print_error(error: RunnelError | CommandError | OSError) -> int:
    """Print the error; the exit code. A configuration may have several."""
    if isinstance(error, InvalidConfig):
        for problem in error.problems:
            _print_line(f"{escaped(str(problem))} ({error.code})")
        return USAGE
    if isinstance(error, FolderInUse):
        error = in_use(error)
    if isinstance(error, CommandError):
        code, message, status = error.code, error.message, error.status
    elif isinstance(error, RunnelError):
        code, message, status = error.code, _worded(error), USAGE if isinstance(error, _USAGE) else FOUND
    else:
        code, status = "os_error", FOUND
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    _print_line(f"{escaped(' '.join(message.split()))} ({code})")
    return status


def _worded(error: RunnelError) -> str:
    try:
        return _SAYS[type(error)].format_map(vars(error))
    except KeyError:  # its own sentence will do; or a server of another version sent it without a fact
        return str(error)


def _print_line(problem: str) -> None:
    print(painted("runnel:", RED, is_colourful(sys.stderr)), without_tokens(problem), file=sys.stderr)


def unknown_topic(name: str, where: object) -> CommandError:
    """There is no such topic."""
    return CommandError("unknown_topic", f"there is no topic {name!r} in {where}; see `runnel topic list`")


def unknown_group(name: str, pattern: str | None, where: object) -> CommandError:
    """There is no such group."""
    on = f" on {pattern!r}" if pattern else ""
    return CommandError("unknown_group", f"there is no group {name!r}{on} in {where}; see `runnel group list`")


def needs_folder(what: str, server: object) -> CommandError:
    """A server cannot do that for a client."""
    return CommandError(
        "needs_folder",
        f"`runnel {what}` works on a folder, and {server!r} is a server: say --data DIR on the machine that has it",
        USAGE,
    )


def in_use(error: FolderInUse) -> CommandError:
    """Another process has the folder open, and it was to be changed."""
    connect = "; `runnel sub`, `runnel pub` and runnel.open() connect to it meanwhile" if error.shares else ""
    return CommandError(
        error.code,
        f"{error.folder!r} is in use by {error.owner}, and only its owner may change it: stop that one first{connect}",
    )
