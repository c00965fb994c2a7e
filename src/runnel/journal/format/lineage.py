"""The lineage of a folder in a warm standby: primary or standby, of which generation, and what it has promised.

A small file that is replaced as a whole. A folder that never had to do with a standby has none.
"""

from __future__ import annotations

import secrets

import msgspec

from runnel.core.replication import ASYNC, Generation
from runnel.journal.format.atomic_file import decode_value, encode_value, read_whole, replace_file
from runnel.journal.storage import Storage

VERSION = 1
MAGIC = b"runnel/l"
NAME = "LINEAGE"


class Lineage(msgspec.Struct, kw_only=True):
    """The primary, the standby and their generations, as a folder stores them.

    - `id`: of this folder. `origin`, `number`, `key`: of the journal, see `Generation`.
    - Of a primary: `standby` and `standby_name`, the synchronous standby without which it acknowledges nothing;
      `superseded`, the generation of the standby that was promoted in its place.
    - Of a standby: `primary`, where that is, with the options of the address; `mode`, "sync" if nothing was
      acknowledged that is not here; `lease`, the seconds of its promise not to be promoted; `whole`, whether its files
      are a journal (not during the first copy).
    """

    id: str
    is_standby: bool = False
    origin: str = ""
    number: int = 0
    key: str = ""
    standby: str = ""
    standby_name: str = ""
    superseded: int = 0
    primary: str = ""
    mode: str = ASYNC
    lease: float = 0.0
    whole: bool = True

    @property
    def generation(self) -> Generation | None:
        """The generation, with its proof; None: it is not known yet."""
        return Generation.made(self.origin, self.number, self.key) if self.key else None

    @property
    def shown_primary(self) -> str:
        """Where the primary is, as clients may see it: without the files of certificates that its address may name."""
        return self.primary.partition("?")[0]

    @classmethod
    def of_primary(cls, journal: str) -> Lineage:
        """Of a folder that is followed for the first time."""
        return cls(id=new_id(), origin=journal, key=secrets.token_hex(16))


def new_id() -> str:
    """An id for a folder."""
    return secrets.token_hex(8)


def load(storage: Storage) -> Lineage | None:
    """The lineage; None where there is none."""
    try:
        data = read_whole(storage, NAME)
    except FileNotFoundError:
        return None
    return decode_value(data, MAGIC, VERSION, Lineage, NAME, "this is not a lineage")


def write(storage: Storage, lineage: Lineage) -> None:
    """Swap the file; durable when this returns."""
    replace_file(storage, NAME, [encode_value(MAGIC, VERSION, lineage)])
    storage.sync_names()
