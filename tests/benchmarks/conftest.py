"""Here benchmarks only have to work: nothing is measured."""

from types import SimpleNamespace

import pytest

from benchmarks import harness


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection before each measurement would look through all that a worker of pytest holds: half a second each."""
    monkeypatch.setattr(harness, "gc", SimpleNamespace(collect=int, freeze=int, unfreeze=int))
