"""The power goes, or the process is killed, at every call of a cleaning: nothing that lives is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runnel.core.errors import RunnelError
from runnel.journal.clean import cleaning_job
from runnel.journal.write.journal import Journal
from runnel.testing.memory_storage import MemoryStorage, PowerLost
from tests.journal.journal_cleaning import Seen, World, clean, committed_in, finished, sealed
from tests.journal.written_journal import SMALL
from tests.nightly import nightly_beyond


def world_of(seed: int) -> tuple[World, MemoryStorage]:
    """A journal, part of which was cleaned before."""
    storage = MemoryStorage(256, sector=64)
    world = World(seed, storage)
    world.work(30)
    world.clean_some()
    world.work(15)
    return world, storage


def clean_all(journal: Journal, *, place: bool) -> None:
    """Clean all segments, or put a stage into the one that it was committed in; then give back what nobody wants."""
    if place:
        source = next(one for one in sealed(journal) if committed_in(journal, [one]))
        assert clean(journal, [source], placing=committed_in(journal, [source])).placed
    else:
        clean(journal)
    journal.retain(journal.ledger.time)


def calls_of(seed: int, *, place: bool = False) -> int:
    """How many calls a cleaning takes."""
    world, storage = world_of(seed)
    before = storage.calls
    clean_all(world.journal, place=place)
    return storage.calls - before


@pytest.mark.parametrize(
    ("seed", "midway", "place"),
    nightly_beyond(
        2,
        [
            (1, True, False),
            (5, False, True),
            (0, False, False),
            (2, True, False),
            (3, False, False),
            (0, True, True),
            (3, True, True),
        ],
    ),
)
def test_the_power_goes_at_any_call(seed: int, midway: bool, place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr(cleaning_job, "BLOCK_BYTES", 1500)
    total = calls_of(seed, place=place)
    assert total > 8
    for call in range(1, total + 1):
        world, storage = world_of(seed)
        wanted = world.wanted(world.journal.ledger)
        storage.crash_at, storage.midway = storage.calls + call, midway
        with pytest.raises(PowerLost):
            clean_all(world.journal, place=place)
        for _, found in list(storage.worst())[call % 4 :: 4]:  # over all calls, each of them
            _check(world, found, wanted)
        _check(world, storage.after_kill(), wanted, again=True)


def _check(world: World, storage: MemoryStorage, wanted: list[Seen], *, again: bool = False) -> None:
    """It opens, and holds all that lives; it can be cleaned again, too."""
    journal = Journal.open(storage, SMALL, now=world.writer.now)
    world.check(journal, wanted)
    assert not [source for source in journal.history.sources if source.damage]
    assert not journal.manifest.unnamed(storage.names())
    if again:
        clean(journal)
        journal.close()
        world.check(Journal.open(storage, SMALL, now=world.writer.now), wanted)


SYNCS: dict[str, Callable[[str, str], bool]] = {
    "the segment": lambda operation, name: operation == "sync" and name.endswith(".seg.tmp"),
    "the index": lambda operation, name: operation == "sync" and name.endswith(".idx.tmp"),
    "the manifest": lambda operation, name: operation == "sync" and name == "MANIFEST.tmp",
    "names": lambda operation, name: operation == "sync_names",
}


@pytest.mark.parametrize("of", SYNCS)
def test_a_sync_that_is_forgotten_is_found_out(of: str) -> None:
    """All of a kind: between the swap and the removal there is one of names, and one before it."""
    is_it = SYNCS[of]
    total = calls_of(1)
    for call in range(total - 10, total + 2):
        world, storage = world_of(1)
        wanted = world.wanted(world.journal.ledger)
        storage.skip_sync = lambda operation, name, count: is_it(operation, name)
        storage.crash_at = storage.calls + call
        job = world.journal.clean(sealed(world.journal), world.journal.living())
        try:
            world.journal.replace(finished(job))
        except PowerLost:
            pass
        for _, found in storage.worst():
            try:
                _check(world, found, wanted)
            except (AssertionError, RunnelError):
                return
    pytest.fail(f"no crash showed that the sync of {of} was missing")
