"""Warm standby: the messages of a primary and its standby, and the generation of a journal.

A promoted standby continues the journal of its primary under a new id and the next generation. A client sends the
highest generation it has seen; a primary that receives a higher one stops. The proof of a generation is made with a
key that only the servers of the journal have, so that no client can invent one.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from runnel.core.errors import RunnelError
from runnel.core.statistics import ReplicationStatistics

ASYNC, SYNC = "async", "sync"
MODES = (ASYNC, SYNC)


class Generation(msgspec.Struct, frozen=True):
    """Which life of a journal: `origin` is the id of the first journal; each promotion counts one up."""

    origin: str
    number: int
    proof: str

    @classmethod
    def made(cls, origin: str, number: int, key: str) -> Generation:
        """With the proof that belongs to it."""
        proof = hmac.new(key.encode(), f"{origin}:{number}".encode(), hashlib.sha256).hexdigest()[:32]
        return cls(origin, number, proof)

    def is_proven(self, key: str) -> bool:
        """Whether a server that has the key made it."""
        return hmac.compare_digest(self.made(self.origin, self.number, key).proof.encode(), self.proof.encode())


class JournalPlace(NamedTuple):
    """A place in a journal: the number and the id of a segment, and a position in it."""

    number: int
    id: int
    position: int


class FileOffer(NamedTuple):
    """A segment that the cleaner has written and that is about to replace others: the fields of a `SegmentInfo`."""

    number: int
    id: int
    end: int
    first_sequence: int
    end_sequence: int
    first_time: int
    last_time: int
    generation: int


class FollowRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A standby requests the bytes behind `at`. All before it is durable in its folder, which the request confirms.

    - `id`: of the standby's folder; `name`: as operators call it.
    - `manifest`: the checksum of the primary's manifest that the folder corresponds to; 0: of none yet.
    - `mode`: what the standby has stored about how it may be promoted.
    - `reply`: the number of the answer that this request follows on: a lease runs from the moment that was sent.
    - `ahead`: bytes behind `at` that it has received, of an entry that is not whole yet.
    - `offered`: ids of the segments on offer that it knows of; `ready`: of those that it has.
    - `wait`: seconds that the answer may wait for something new.
    - `state`, `sequence`, `time`, `left`: what it does, the end of its sequences, the time of its last entry in
      microseconds, and the bytes that it has still to copy.
    """

    id: str
    name: str = ""
    at: JournalPlace | None = None
    manifest: int = 0
    mode: str = ASYNC
    reply: int = 0
    ahead: int = 0
    offered: list[int] = []
    ready: list[int] = []
    wait: float = 0.0
    state: str = ""
    sequence: int = 0
    time: int = 0
    left: int = 0


class FollowReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The answer of a primary: a manifest, if the standby's is an older one, else bytes that follow on its place.

    - `manifest`: the bytes of the file. `data`: of the segment that is being written, from `at.position` on.
    - `end`, `sequence`, `time`: where the primary's journal ends. `behind`: bytes between that and `at`.
    - `mode`: "sync": it acknowledges nothing that this standby has not confirmed. `lease`: seconds for which the
      standby promises not to be promoted, from the moment it gets this answer.
    - `number`: of this answer. `offers`: segments that will replace others soon.
    - `key`, `origin`, `generation`: of the journal, see `Generation`.
    - `stopping`: the primary closes; a standby that has all of it leaves.
    """

    number: int
    end: JournalPlace
    origin: str
    generation: int
    key: str
    manifest: bytes = b""
    data: bytes = b""
    sequence: int = 0
    time: int = 0
    behind: int = 0
    mode: str = ASYNC
    lease: float = 0.0
    offers: list[FileOffer] = []
    stopping: bool = False


class Replication(Protocol):
    """A server's part in a warm standby, as its listeners see it: primary or standby."""

    @property
    def generation(self) -> Generation | None:
        """The generation that clients get; None: no standby has ever followed this journal."""

    @property
    def origin(self) -> str:
        """The id of the first journal of this history."""

    def refusal(self) -> RunnelError | None:
        """Why no client is served now; None: they are."""

    def on_refusal(self, ended: Callable[[], None]) -> None:
        """Have `ended` called when `refusal` begins to refuse clients that are connected already."""

    def seen(self, generation: Generation) -> None:
        """A client, or a promoted standby, shows a generation: a higher one that is proven ends this primary."""

    async def follow(self, request: FollowRequest) -> FollowReply:
        """Answer a standby."""

    async def read_file(self, name: str, offset: int, size: int) -> bytes:
        """Bytes of a file of the journal; `UnknownFile` if the manifest has moved on from it."""

    async def promote(self, *, primary_is_down: bool) -> Generation:
        """Make a primary of this standby; return its generation."""

    async def release(self) -> str | None:
        """Wait for the synchronous standby no more: its folder is lost, or will never be promoted. Its name."""

    def statistics(self) -> ReplicationStatistics | None:
        """Role, mode and lag; None: no standby has ever followed."""
