"""PostgreSQL: the relay publishes the changes of tables, and the archive copies topics into a table, each once.

Needs psycopg 3: `pip install runnel-mq[postgres]`.
"""

from __future__ import annotations

from runnel.core.statistics import RelayStatistics, SnapshotStatistics
from runnel.postgres.archive import Archive, ArchiveStatistics
from runnel.postgres.archive_config import ArchiveConfig
from runnel.postgres.archive_history import ArchiveHistory, history
from runnel.postgres.archive_table import ArchiveTableMismatch
from runnel.postgres.config import ChannelConfig, MessageConfig, RelayConfig, TableConfig
from runnel.postgres.control import RelayStuck
from runnel.postgres.emit import emit
from runnel.postgres.relay import Relay
from runnel.postgres.setup import Problem, SetupIncomplete
from runnel.postgres.since import Since, since

__all__ = [
    "Archive",
    "ArchiveConfig",
    "ArchiveHistory",
    "ArchiveStatistics",
    "ArchiveTableMismatch",
    "ChannelConfig",
    "MessageConfig",
    "Problem",
    "Relay",
    "RelayConfig",
    "RelayStatistics",
    "RelayStuck",
    "SetupIncomplete",
    "Since",
    "SnapshotStatistics",
    "TableConfig",
    "emit",
    "history",
    "since",
]
