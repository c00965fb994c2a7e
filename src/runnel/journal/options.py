"""Options of a folder, checked when they are given."""

from __future__ import annotations

import msgspec

from runnel.core.errors import InvalidOption
from runnel.core.options import not_negative, positive
from runnel.core.replication import ASYNC, MODES

MIN_FREE = 128 * 1024 * 1024
FSYNC = ("commit", "interval", "os")


class JournalOptions(msgspec.Struct, frozen=True):
    """Durability, sizes and background work of a journal.

    - `fsync`: "commit" (every acknowledged record is on disk), "interval" (synced every `fsync_interval` seconds: a
      power loss loses at most the last interval), "os" (synced by the operating system: a power loss may lose up to a
      segment). With all three nothing is lost when the process is killed.
    - `fsync_interval` (seconds): the time between two syncs, with "interval".
    - `segment_bytes`, `segment_age` (seconds): size and age at which a new segment begins. Retention frees whole
      segments.
    - `min_free`: publishing stops with `DiskFull` if a new segment would leave less free space than this, so that acks,
      deletes and cleaning always have room. By default two segments, and at least 128 MiB.
    - `max_pending_bytes`: bytes that may wait to be written before `publish` waits and `publish_nowait` raises `Full`.
    - `tail_bytes`: bytes of the newest records that are kept in memory for live readers.
    - `max_staged_bytes`: size of all open stages together; beyond it `StagingFull`.
    - `stage_expiry` (seconds): a stage without a write for this time is dropped.
    - `clean_bytes_per_second`: bytes that the cleaner may read and write in a second, to spare publishers and readers.
    - `history_share`: the share of the bytes that readers of old records get while records are published; 1: no limit.
      Without live traffic they have no limit, and with it at least 16 MiB a second.
    - `tombstone_age` (seconds): how long a compacted topic keeps a tombstone after the older records are gone.
    - `standby`: "async" (no publish waits for standbys) or "sync" (an acknowledged record is on disk here and at the
      standby).
    - `standby_lease` (seconds): with "sync", for how long each answer of the standby promises that it is not promoted.
      Publishers wait for a dead standby this long, and a standby of a dead primary can be promoted after this time.
    - `standby_patience` (seconds): how long the cleaner keeps files that standbys are still copying. A standby that is
      further behind copies newer files instead.
    - `scrub_interval` (seconds): how often each segment is checked for damage; 0: never.
    """

    fsync: str = "commit"
    fsync_interval: float = 0.05
    segment_bytes: int = 64 * 1024 * 1024
    segment_age: float = 24 * 3600.0
    min_free: int = None  # type: ignore[assignment]  # worked out of segment_bytes, and an int from then on
    max_pending_bytes: int = 64 * 1024 * 1024
    tail_bytes: int = 64 * 1024 * 1024
    max_staged_bytes: int = 4 * 1024 * 1024 * 1024
    stage_expiry: float = 24 * 3600.0
    clean_bytes_per_second: int = 32 * 1024 * 1024
    history_share: float = 0.2
    tombstone_age: float = 24 * 3600.0
    scrub_interval: float = 7 * 24 * 3600.0
    standby: str = ASYNC
    standby_lease: float = 5.0
    standby_patience: float = 60.0

    def __post_init__(self) -> None:
        if self.fsync not in FSYNC:
            raise InvalidOption("fsync", self.fsync, f"expected one of {', '.join(map(repr, FSYNC))}")
        if not not_negative("fsync_interval", self.fsync_interval):
            raise InvalidOption("fsync_interval", self.fsync_interval, "expected seconds above 0")
        if positive("segment_bytes", self.segment_bytes) < 4096:
            raise InvalidOption("segment_bytes", self.segment_bytes, "a segment has at least 4,096 bytes")
        if not not_negative("segment_age", self.segment_age):
            raise InvalidOption("segment_age", self.segment_age, "expected seconds above 0")
        if self.min_free is None:
            msgspec.structs.force_setattr(self, "min_free", max(MIN_FREE, 2 * self.segment_bytes))
        if isinstance(self.min_free, bool) or not isinstance(self.min_free, int) or self.min_free < 0:
            raise InvalidOption("min_free", self.min_free, "expected bytes, 0 or more")
        positive("max_pending_bytes", self.max_pending_bytes)
        positive("tail_bytes", self.tail_bytes)
        positive("max_staged_bytes", self.max_staged_bytes)
        if not not_negative("stage_expiry", self.stage_expiry):
            raise InvalidOption("stage_expiry", self.stage_expiry, "expected seconds above 0")
        positive("clean_bytes_per_second", self.clean_bytes_per_second)
        share = self.history_share
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise InvalidOption("history_share", share, "expected a share above 0, up to 1 (not held back)")
        not_negative("tombstone_age", self.tombstone_age)
        not_negative("scrub_interval", self.scrub_interval)
        if self.standby not in MODES:
            raise InvalidOption("standby", self.standby, "expected 'async' or 'sync'")
        if not not_negative("standby_lease", self.standby_lease):
            raise InvalidOption("standby_lease", self.standby_lease, "expected seconds above 0")
        not_negative("standby_patience", self.standby_patience)

    @property
    def reserve(self) -> int:
        """The last bytes of a segment, which only acks, deletes and other state may use."""
        return min(1024 * 1024, self.segment_bytes // 8)
