"""Owners of names: a named subscription, group, producer, marker or stage belongs to the principal that made it.

Owners are markers of the backend, so they survive a restart and hold on every server of one backend. A name without an
owner belongs to the first principal that uses it. A name that belongs to a role (`@role`) is for all with that role. A
gateway claims names for its own principals, and uses all of them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from runnel.core.errors import MarkConflict, NameOwned
from runnel.core.markers import MAX_MARKER_NAME, Marker
from runnel.core.transaction import TransactionRequest
from runnel.security.policy import GATEWAY

if TYPE_CHECKING:
    from runnel.core.backend import Backend
    from runnel.security.principal import Principal

PREFIX = "$access/owner/"


class OwnedNames:
    """The owners that are known here. The backend has all of them."""

    def __init__(self) -> None:
        self._backend: Backend | None = None
        self._owners: dict[str, str] = {}

    async def load(self, backend: Backend) -> None:
        """Read all owners. Names that are claimed elsewhere later are looked up when they are used here."""
        self._backend = backend
        self._owners = {name: str(value) for name, value in (await backend.marks(PREFIX)).items()}

    def is_known(self, kind: str, name: str, principal: Principal) -> bool:
        """Whether `name` is known to be the principal's. Raises `NameOwned` if it is known to be of another one."""
        if GATEWAY in principal.roles:
            return True
        owner = self._owners.get(_marker(kind, name))
        if owner is None:
            return False
        if owner not in principal.owners:
            raise NameOwned(kind, name, principal.name)
        return True

    def is_of_another(self, kind: str, name: str, principal: Principal) -> bool:
        """Whether `name` is known to belong to another principal."""
        owner = self._owners.get(_marker(kind, name))
        return owner is not None and owner not in principal.owners and GATEWAY not in principal.roles

    def count(self, kind: str, owner: str) -> int:
        """How many names of a kind one principal has."""
        start = f"{PREFIX}{kind}/"
        return sum(1 for name, of in self._owners.items() if of == owner and name.startswith(start))

    def names(self, kind: str, owner: str) -> list[str]:
        """The names of a kind that one principal has, as far as they are short enough to be read back."""
        start = f"{PREFIX}{kind}/"
        return [name.removeprefix(start) for name, of in self._owners.items() if of == owner and name.startswith(start)]

    async def claim(self, kind: str, name: str, principal: Principal) -> None:
        """Make `name` the principal's, durably; `NameOwned` if it is another's."""
        if self.is_known(kind, name, principal):
            return
        assert self._backend is not None, "loaded first"
        marker, request = _marker(kind, name), TransactionRequest()
        request.mark(Marker(marker, principal.owner, None))
        try:
            await self._backend.commit(request)
        except MarkConflict as error:  # claimed on another server of this backend
            self._owners[marker] = str(error.actual)
            self.is_known(kind, name, principal)
            return
        self._owners[marker] = principal.owner

    async def release(self, kind: str, name: str) -> None:
        """The name is forgotten: the next principal may have it."""
        marker = _marker(kind, name)
        if self._owners.pop(marker, None) is not None and self._backend is not None:
            request = TransactionRequest()
            request.mark(Marker(marker, None))
            await self._backend.commit(request)


def _marker(kind: str, name: str) -> str:
    """The marker of a name; of one that is too long or has odd characters, by its hash."""
    marker = f"{PREFIX}{kind}/{name}"
    if len(marker) <= MAX_MARKER_NAME and marker.isprintable():
        return marker
    return f"{PREFIX}{kind}/#{hashlib.sha256(name.encode(errors='replace')).hexdigest()}"
