"""What to do about records that are gone before they were read: fail, or tell, count and go on.

Below: core. Above: course, selection, reading tasks.
"""

from __future__ import annotations

import logging

from runnel.core.errors import DataLost

log = logging.getLogger("runnel.spark")


class Losses:
    """What was lost so far. With `fail` the first loss is an error."""

    def __init__(self, *, fail: bool) -> None:
        self.fail = fail
        self.offsets = 0  # that were lost

    def __repr__(self) -> str:
        return f"<Losses, {'fails' if self.fail else f'{self.offsets} offsets so far'}>"

    def tell(self, topic: str, first: int, end: int, why: str) -> None:
        """The offsets [first, end) of `topic` were to be read, and cannot be."""
        if self.fail:
            raise DataLost(topic, first, end, why)
        self.offsets += max(0, end - first)
        log.warning(
            "offsets [%d, %d) of topic %r are lost (%s); the query goes on, and has lost %d offsets now",
            first, end, topic, why, self.offsets,
        )  # fmt: skip
