"""Where topics are read from. Loads neither the journal nor Arrow: tasks that only write need it too."""

from __future__ import annotations

from typing import Any

import msgspec


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
