"""The lake: old history of topics in a Delta table, written once per (topic, epoch, offset).

`Lake` is the table: executors write Parquet files, one driver commits them, and maintenance compacts and expires.
`LakeHistory` hands the table to a broker as a source of history. Needs `pip install 'runnel-mq[lake]'`; importing this
package loads neither Arrow nor Delta.
"""

from __future__ import annotations

from runnel.lake.exact_table import LakeCommit
from runnel.lake.files import LakeFile, LakeRange
from runnel.lake.history_source import LakeHistory, history
from runnel.lake.maintenance import MaintenanceReport
from runnel.lake.table import Lake
from runnel.lake.typed_table import Quarantine, TypedFiles, TypedRows, TypedTable

__all__ = [
    "Lake",
    "LakeCommit",
    "LakeFile",
    "LakeHistory",
    "LakeRange",
    "MaintenanceReport",
    "Quarantine",
    "TypedFiles",
    "TypedRows",
    "TypedTable",
    "history",
]
