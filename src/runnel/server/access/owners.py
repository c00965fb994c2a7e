"""Owners of names: a named subscription, group, producer, marker or stage belongs to the principal that made it.

Owners are markers of the backend, so they survive a restart and hold on every server of one backend. A name without an
owner belongs to the first principal that uses it. A name that belongs to a role (`@role`) is for all with that role. A
gateway claims names for its own principals, and uses all of them.
"""

from __future__ import annotations

import hashlib
from time import time_ns
from typing import TYPE_CHECKING

from runnel.core.errors import MarkConflict, NameOwned
from runnel.core.markers import MAX_MARKER_NAME, Marker
from runnel.core.transaction import TransactionRequest
from runnel.security.policy import GATEWAY

if TYPE_CHECKING:
    from runnel.core.backend import Backend
    from runnel.security.principal import Principal

PREFIX = "$access/owner/"
CHANGED_AT = "$access/owners-at"  # rises with each change: one comparison shows those of other servers


async def store_noticed(backend: Backend, changed_at: str, marker: Marker) -> None:
    """Store a marker so that other servers notice: `changed_at`, which they look at, moves with it.

    A transaction does nothing if one of its markers has that value already. `changed_at` may, if the clock of another
    server is ahead, or the own one was set back: then the marker is stored with a later value.
    """
    while True:
        before = await backend.mark(changed_at)
        after = max(time_ns(), before + 1 if isinstance(before, int) else 0)
        request = TransactionRequest()
        request.mark(marker)
        request.mark(Marker(changed_at, after))
        await backend.commit(request)
        if request.applied:
            return
        now = await backend.mark(changed_at)
        if not isinstance(now, int) or now < after:
            return  # the marker is what it is to be


class OwnedNames:
    """The owners that are known here. The backend has all of them."""

    def __init__(self) -> None:
        self._backend: Backend | None = None
        self._changed_at: object = None
        self._owners: dict[str, str] = {}
        self._claiming: dict[str, str] = {}  # by markers that are being stored

    async def load(self, backend: Backend) -> None:
        """Read all owners."""
        self._backend = backend
        self._changed_at = await backend.mark(CHANGED_AT)
        self._owners = {name: str(value) for name, value in (await backend.marks(PREFIX)).items()}

    async def look(self) -> None:
        """Read all owners again if a name was claimed or released, here or on another server of this backend."""
        if self._backend is not None and await self._backend.mark(CHANGED_AT) != self._changed_at:
            await self.load(self._backend)

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
        return len(self.names(kind, owner))

    def names(self, kind: str, owner: str) -> list[str]:
        """The names of a kind that one principal has, or is about to have; of long ones `#` and a hash."""
        start = f"{PREFIX}{kind}/"
        known = self._owners | self._claiming
        return [name.removeprefix(start) for name, of in known.items() if of == owner and name.startswith(start)]

    def owner(self, kind: str, name: str) -> str | None:
        """The owner of a name, by local knowledge."""
        return self._owners.get(_marker(kind, name))

    async def claim(self, kind: str, name: str, principal: Principal) -> None:
        """Make `name` the principal's, durably; `NameOwned` if it is another's."""
        if self.is_known(kind, name, principal):
            return
        if not principal.has_names:
            raise NameOwned(kind, name, principal.name)
        assert self._backend is not None, "loaded first"
        marker = _marker(kind, name)
        self._claiming[marker] = principal.owner
        try:
            await store_noticed(self._backend, CHANGED_AT, Marker(marker, principal.owner, None))
        except MarkConflict as error:  # claimed on another server of this backend
            self._owners[marker] = str(error.actual)
            self.is_known(kind, name, principal)
            return
        finally:
            self._claiming.pop(marker, None)
        self._owners[marker] = principal.owner

    async def release(self, kind: str, name: str) -> None:
        """The name is forgotten: the next principal may have it."""
        marker = _marker(kind, name)
        if self._owners.pop(marker, None) is not None and self._backend is not None:
            await store_noticed(self._backend, CHANGED_AT, Marker(marker, None))


def _marker(kind: str, name: str) -> str:
    """The marker of a name."""
    return f"{PREFIX}{kind}/{stored_name(kind, name)}"


def stored_name(kind: str, name: str) -> str:
    """The name as its marker has it: of one that is too long or has odd characters, `#` and its hash."""
    if len(PREFIX) + len(kind) + 1 + len(name) <= MAX_MARKER_NAME and name.isprintable():
        return name
    return f"#{hashlib.sha256(name.encode(errors='replace')).hexdigest()}"
