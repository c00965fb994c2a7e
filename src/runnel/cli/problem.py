"""What went wrong, as a command tells it: one line on the error stream, and an exit code. Never a traceback.

0 is fine, 1 is a problem that was found, 2 is a command line or a configuration that makes no sense, 3 is done, but an
archive missed something, 130 is Ctrl-C.
"""

from __future__ import annotations

import sys

from runnel.config.problems import InvalidConfig
from runnel.core.errors import InvalidName, InvalidOption, InvalidPattern, RunnelError
from runnel.core.journal_errors import FolderInUse
from runnel.core.network_errors import BadAddress, PublicBindRefused

FINE, FOUND, USAGE, MISSED, INTERRUPTED = 0, 1, 2, 3, 130

_USAGE = (BadAddress, InvalidConfig, InvalidName, InvalidOption, InvalidPattern, PublicBindRefused)


class Refused(Exception):
    """A command that cannot be done, with the code of the error that a program would get."""

    def __init__(self, code: str, message: str, status: int = FOUND) -> None:
        self.code, self.message, self.status = code, message, status
        super().__init__(message)


def complain(error: RunnelError | Refused | OSError) -> int:
    """Print the error; the exit code. A configuration may have several."""
    if isinstance(error, InvalidConfig):
        for problem in error.problems:
            print(f"runnel: {problem} ({error.code})", file=sys.stderr)
        return USAGE
    if isinstance(error, FolderInUse):
        error = in_use(error)
    if isinstance(error, Refused):
        code, message, status = error.code, error.message, error.status
    elif isinstance(error, RunnelError):
        code, message, status = error.code, str(error), USAGE if isinstance(error, _USAGE) else FOUND
    else:
        code, status = "os_error", FOUND
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    print(f"runnel: {' '.join(message.split())} ({code})", file=sys.stderr)
    return status


def unknown_topic(name: str, where: object) -> Refused:
    """There is no such topic."""
    return Refused("unknown_topic", f"there is no topic {name!r} in {where}; see `runnel topic list`")


def unknown_group(name: str, pattern: str | None, where: object) -> Refused:
    """There is no such group."""
    on = f" on {pattern!r}" if pattern else ""
    return Refused("unknown_group", f"there is no group {name!r}{on} in {where}; see `runnel group list`")


def needs_folder(what: str, server: object) -> Refused:
    """A server cannot do that for a client."""
    return Refused(
        "needs_folder",
        f"`runnel {what}` works on a folder, and {server!r} is a server: say --data DIR on the machine that has it",
        USAGE,
    )


def in_use(error: FolderInUse) -> Refused:
    """Somebody else has the folder open, and it was to be changed."""
    who = "another process" if error.pid is None else f"process {error.pid}"
    return Refused(
        error.code,
        f"{error.folder!r} is in use by {who}, and only its owner may change it: stop that one first",
    )
