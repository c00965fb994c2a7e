"""A folder in which brokers live one after the other: what the next one finds is what the contract promises."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import runnel
from runnel import Broker
from runnel.testing.clock import JumpingClock
from tests.contract.reading import at_rest, opened

SMALL: dict[str, Any] = {"segment_bytes": 1024 * 1024}  # quick to make
ON_DISK: dict[str, Any] = {"segment_bytes": 16 * 1024, "tail_bytes": 1024}  # many segments, and next to no memory


class Folder:
    """A folder and the clock of those who live in it.

    `killed`: nobody is closed. The next life finds a copy of the files, made while the broker before it was open.
    """

    def __init__(self, path: Path, clock: JumpingClock, *, killed: bool) -> None:
        self.path, self.clock, self.killed = path, clock, killed
        self._lives = 1

    def open(self, **options: Any) -> Broker:
        """A broker in the folder as it is now."""
        broker = runnel.open(self.path, clock=self.clock, **(SMALL | options))
        opened.add(broker)
        return broker

    def copy(self) -> "Folder":
        """What is on disk this very moment, elsewhere; again, if the owner swapped files meanwhile."""
        self._lives += 1
        path, manifest = self.path.with_name(f"life-{self._lives}"), self.path / "MANIFEST"
        while True:
            before = manifest.read_bytes()
            try:
                shutil.copytree(self.path, path, ignore=shutil.ignore_patterns("socket"))  # of the owner, not a file
            except shutil.Error:
                pass
            else:
                if manifest.read_bytes() == before:
                    return Folder(path, self.clock, killed=self.killed)
            shutil.rmtree(path)

    @asynccontextmanager
    async def life(self, **options: Any) -> AsyncIterator[Broker]:
        """A broker, until it is closed or killed. Acks and positions are on disk then: they take 5 ms."""
        async with self.open(**options) as broker:
            yield broker
            if self.killed:
                await at_rest()
                self.path = self.copy().path

    def bytes(self) -> int:
        """How much all segments hold."""
        return sum(path.stat().st_size for path in self.segments())

    def segments(self) -> list[Path]:
        """The files with records, oldest first."""
        return sorted(self.path.glob("*.seg"))
