"""The location of topics, and its reader.

Loads neither the journal nor Arrow before a reader is opened: tasks that only write need it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from runnel.arrow.range_reader import RangeReader


class BrokerLocation(msgspec.Struct, frozen=True):
    """Where the topics are: a server or a cluster (`url`, and how to reach it), or a folder (`path`).

    `lake`, `lake_storage`: the lake that is read below what the journal still holds, and its storage options.
    """

    url: str | None = None
    path: str | None = None
    client: dict[str, Any] = {}
    lake: str | None = None
    lake_storage: dict[str, str] = {}

    @property
    def is_cluster(self) -> bool:
        """Whether it is a NATS cluster."""
        return self.url is not None and self.url.startswith(("nats://", "tls://"))

    def __repr__(self) -> str:
        return f"<BrokerLocation {self.url.partition('?')[0] if self.url else self.path!r}>"


def open_range_reader(location: BrokerLocation) -> RangeReader:
    """The reader of a location."""
    if location.lake is not None:
        from runnel.arrow.lake_reader import LakeReader, LayeredReader

        lake = LakeReader.of(location.lake, location.lake_storage)  # before a connection is made that it may not need
        return LayeredReader(_journal_reader(location), lake)
    return _journal_reader(location)


def _journal_reader(location: BrokerLocation) -> RangeReader:
    if location.path is not None:
        from runnel.arrow.folder_reader import FolderReader

        return FolderReader(location.path)
    if location.is_cluster:
        from runnel.arrow.cluster_reader import ClusterReader

        assert location.url is not None, "that is how it is known"
        return ClusterReader(location.url, location.client)
    from runnel.arrow.server_reader import ServerReader

    assert location.url is not None, "a location is one or the other"
    return ServerReader(location.url, location.client)
