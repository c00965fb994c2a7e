"""The names that a server answers to, so that no page reaches it by a name of its own.

A page of evil.example may have its name point to 127.0.0.1 once it is loaded. The browser then takes a server of its
reader for a part of evil.example, and asks it whatever the page wants (DNS rebinding); only `Host` still tells. So a
server that trusts its own machine answers to addresses, which nobody can point elsewhere, to `localhost`, and to the
names that it was given.
Below: nothing. Above: guard.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

ANY = "*"
KNOWN = 256  # names of which the answer is kept
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{0,5})?")


class Hosts:
    """Which names count: addresses, `localhost` and what is below it, and those that are given."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name.lower() for name in names)
        self._below = tuple(name[1:] for name in self._names if name.startswith("*."))
        self._known: dict[str, bool] = {}

    def __contains__(self, host: object) -> bool:
        """Whether `host` counts, as a header has it: a name or an address, and perhaps a port."""
        found = self._known.get(str(host))
        if found is None:
            found = self._counts(str(host))
            if len(self._known) < KNOWN:
                self._known[str(host)] = found
        return found

    def _counts(self, host: str) -> bool:
        if ANY in self._names:
            return True
        read = _HOST.fullmatch(host)
        if read is None:
            return False
        name = (read["six"] or read["name"]).lower().removesuffix(".")
        if name == "localhost" or name.endswith((".localhost", *self._below)) or name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
