"""What the child of a fork inherits and must have no part in: the sockets of its parent.

Below: the system. Above: client.connection, server, place.
"""

from __future__ import annotations

import os
from collections.abc import Iterable


def let_go(fds: Iterable[int]) -> None:
    """In the child of a fork: have no part in these files, though objects here still know their numbers.

    Nothing is said to the other end: a connection is the parent's, and ends with it. Nothing else gets the
    numbers, so that whoever closes one of them later harms nobody.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in fds:
        if fd >= 0:
            os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)
