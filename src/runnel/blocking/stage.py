"""`runnel.Stage` without asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from runnel.blocking.portal import Portal
from runnel.core.stage import StageKey

if TYPE_CHECKING:
    from runnel.broker.stage import Stage as AsyncStage
    from runnel.broker.stage import Value

T = TypeVar("T")


class Stage(Generic[T]):
    """Records that are durable and invisible until a transaction commits them. Made by `broker.stage(...)`."""

    def __init__(self, stage: AsyncStage[T], portal: Portal) -> None:
        self._stage, self._portal = stage, portal

    def __repr__(self) -> str:
        return f"<Blocking {self._stage!r}>"

    @property
    def key(self) -> StageKey:
        """What it is known by: (writer, batch, part, attempt)."""
        return self._stage.key

    @property
    def topic(self) -> str:
        """The topic that its records are for."""
        return self._stage.topic

    @property
    def records(self) -> int:
        """How many records are in it, durable."""
        return self._stage.records

    @property
    def bytes(self) -> int:
        """How many bytes they take on disk."""
        return self._stage.bytes

    def write(self, values: Sequence[T | Value], **options: Any) -> int:
        """Stage more records; how many there are now. Options as in `runnel.Stage.write`."""
        return self._portal.run(self._stage.write(values, **options))

    def drop(self) -> None:
        """Give it up: its records are never seen."""
        self._portal.run(self._stage.drop())
