"""Promotion: make the folder of a standby the journal of a primary, under a new id and the next generation.

What the old primary assigned and did not replicate is unknown here. So the journal skips ahead, as a restored one does:
no (epoch, offset) and no sequence ever names two records. The lineage is swapped last: a promotion that is cut off
leaves a standby, and is made again.
"""

from __future__ import annotations

import secrets
import time

import msgspec

from runnel.core.errors import PromotionRefused
from runnel.journal.backup.replica import Replica
from runnel.journal.backup.restore import skip_ahead, skipped
from runnel.journal.format import lineage
from runnel.journal.format.lineage import Lineage
from runnel.journal.write.journal import Journal


class Promotion(msgspec.Struct, frozen=True):
    """The result of a promotion: the journal's new id and lineage, and its end."""

    folder: str
    journal: str
    lineage: Lineage
    sequence: int  # behind the last record that was replicated
    time: int  # of the last entry that was, in microseconds
    skipped: int  # offsets, and sequences, that are not given again


def check_promotable(found: Lineage, *, primary_is_down: bool) -> None:
    """Raise PromotionRefused if the folder is no journal yet, or its primary may continue without it."""
    if not found.is_standby:
        raise PromotionRefused("it is a primary already")
    if not found.whole or not found.key:
        raise PromotionRefused("the first copy of the primary's journal is not complete")
    if found.mode != "sync" and not primary_is_down:
        raise PromotionRefused(
            "it follows asynchronously, so the primary may still acknowledge what is not here: make sure that it is "
            "down and stays down, then say --primary-is-down, or name a command that ends it with --fence"
        )


def promote(replica: Replica, now: int | None = None) -> Promotion:
    """Promote a folder whose lock the caller holds. The replica is closed, and must not be used any more."""
    found, storage = replica.lineage, replica.storage
    replica.close()
    now = time.time_ns() // 1000 if now is None else now
    journal = Journal.open(storage, replica.options, now)
    try:
        ledger = journal.ledger
        sequence, at = replica.sequence, replica.time
        skip = skipped(at or now, now)
        skip_ahead(ledger, skip, now)
        journal.manifest = msgspec.structs.replace(journal.manifest, journal=secrets.token_hex(8))
    finally:
        journal.close()
    promoted = msgspec.structs.replace(
        found,
        is_standby=False,
        number=found.number + 1,
        standby="",
        standby_name="",
        superseded=0,
        mode="async",
        lease=0.0,
    )
    lineage.write(storage, promoted)
    return Promotion(str(replica.folder), journal.manifest.journal, promoted, sequence, at, skip)
