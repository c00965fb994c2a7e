"""What a journal can be told, checked when it is said."""

from __future__ import annotations

import msgspec

from runnel.core.errors import InvalidOption
from runnel.core.options import not_negative, positive

FSYNC = ("commit", "interval", "os")


class JournalOptions(msgspec.Struct, frozen=True):
    """How a journal keeps its promises, and at what price.

    - `fsync`: "commit" (what was acknowledged is on disk), "interval" (synced every `fsync_interval`
      seconds: a power loss takes at most that much), "os" (when the system sees fit: a power loss may
      take up to a segment). A killed process loses nothing in any of them.
    - `segment_bytes`, `segment_age` (seconds): when a new segment begins. Retention frees whole segments.
    - `min_free`: publishing stops with `DiskFull` when a new segment would leave less than this.
    - `max_pending_bytes`: how much may wait to be written before `publish` waits and `publish_nowait` raises.
    - `tail_bytes`: how much of the newest records is kept in memory for live readers.
    """

    fsync: str = "commit"
    fsync_interval: float = 0.05
    segment_bytes: int = 64 * 1024 * 1024
    segment_age: float = 24 * 3600.0
    min_free: int = 32 * 1024 * 1024
    max_pending_bytes: int = 64 * 1024 * 1024
    tail_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.fsync not in FSYNC:
            raise InvalidOption("fsync", self.fsync, f"expected one of {', '.join(map(repr, FSYNC))}")
        if not not_negative("fsync_interval", self.fsync_interval):
            raise InvalidOption("fsync_interval", self.fsync_interval, "expected seconds above 0")
        if positive("segment_bytes", self.segment_bytes) < 4096:
            raise InvalidOption("segment_bytes", self.segment_bytes, "a segment has at least 4,096 bytes")
        if not not_negative("segment_age", self.segment_age):
            raise InvalidOption("segment_age", self.segment_age, "expected seconds above 0")
        not_negative("min_free", self.min_free)
        positive("max_pending_bytes", self.max_pending_bytes)
        positive("tail_bytes", self.tail_bytes)

    @property
    def reserve(self) -> int:
        """The last bytes of a segment, which only acks, deletes and other state may use."""
        return min(1024 * 1024, self.segment_bytes // 8)
