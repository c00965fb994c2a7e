"""Results of a pipeline in a Delta table: each micro-batch is committed once, by its query and its number.

The rows of a micro-batch go through the driver, so this is for results, such as aggregations. Records go through
`lake_sink`, where tasks write the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runnel.core.errors import InvalidOption
from runnel.lake.storage import need

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class DeltaSink:
    """The function for `foreachBatch`. `mode`: "append", or "overwrite" for results that replace those before."""

    def __init__(self, table: str, storage_options: Mapping[str, str], mode: str = "append") -> None:
        if mode not in ("append", "overwrite"):
            raise InvalidOption("mode", mode, "expected append or overwrite")
        self._table, self._storage, self._mode = table, dict(storage_options), mode

    def __repr__(self) -> str:
        return f"<DeltaSink of {self._table!r}>"

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write a micro-batch, unless it is there."""
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query is not None, "it is called by a query"
        write_once(self._table, self._storage, rows.toArrow(), query, batch, self._mode)


def committed_version(table: str, storage: Mapping[str, str], application: str) -> int:
    """The last version that `application` committed to a table; 0: none, or there is no such table."""
    found = _table(table, storage)
    return 0 if found is None else found.transaction_version(application) or 0


def _table(table: str, storage: Mapping[str, str]) -> Any:
    try:
        return need("deltalake").DeltaTable(table, storage_options=dict(storage) or None)
    except need("deltalake.exceptions").TableNotFoundError:
        return None


def write_once(
    table: str,
    storage: Mapping[str, str],
    rows: Any,
    application: str,
    version: int,
    mode: str = "append",
    *,
    after: int | None = None,
) -> bool:
    """Write rows in one commit, unless `application` committed this version or a later one; whether it did.

    `after`: nor if its last version is another one than this, because the rows were read behind it.
    """
    deltalake, errors = need("deltalake"), need("deltalake.exceptions")
    options = dict(storage) or None
    while True:
        found = _table(table, storage)
        known = None if found is None else found.transaction_version(application)
        if (known is not None and known >= version) or (after is not None and after != (known or 0)):
            return False
        if not rows.num_rows and (found is not None or not rows.num_columns):
            return False
        try:
            deltalake.write_deltalake(
                table if found is None else found,
                rows,
                mode=mode if found is not None else "error",
                schema_mode="merge" if mode == "append" and found is not None else None,
                storage_options=options if found is None else None,
                commit_properties=deltalake.CommitProperties(
                    app_transactions=[deltalake.Transaction(application, version)]
                ),
            )
        except errors.CommitFailedError:
            continue  # another process committed in between, or made the table: look again
        return True
