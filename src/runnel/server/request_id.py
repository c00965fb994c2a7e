"""The id of the current request. Its lines in the JSON log have it, also later ones.

Over HTTP a client may choose it (`X-Request-Id`) and gets it back; else it is made here. It is a context variable, so
tasks that a request begins inherit it.
"""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from itertools import count

HEADER = b"x-request-id"
CURRENT: ContextVar[str] = ContextVar("runnel_request", default="")

_ALLOWED = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_PROCESS = secrets.token_hex(4)  # so that ids of two servers, or of two runs, differ
_numbers = count(1)


def begin_request(given: bytes | None) -> str | None:
    """A request begins. Return the id that its client chose, if it is one: others could forge lines of a log."""
    chosen = None if given is None else given.decode("latin-1")
    if chosen is not None and _ALLOWED.fullmatch(chosen):
        CURRENT.set(chosen)
        return chosen
    CURRENT.set(f"{_PROCESS}-{next(_numbers)}")
    return None
