"""What if one sync were forgotten, or came too late? Every such journal must be found out.

A *site* is a way through the journal that ends in a sync: the functions on it, outermost first. The list below is
complete, which is tested as well: a new sync has to be put here, and so has to prove that it is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FrameType

import pytest

from tests.crash.sweep import Failure, Sweep
from tests.crash.workload import World
from tests.nightly import nightly_beyond

CLEARING = "open > _clear_up > names"
WRITING = "write > _make_room > _roll"
SITES = {
    # The entries themselves: before they are acknowledged, sealed, or dropped for what they say.
    "write > _sync > sync": 2,
    "sync": 2,
    "close > sync": 16,
    "retain > sync": 16,
    f"{WRITING} > sync": 16,
    "open > _go_on > sync": 16,
    # The new segment of a roll, before the manifest names it.
    WRITING: 16,
    # Indexes and checkpoints, before the manifest names them.
    "open > _go_on > _seal > replace_file": 28,
    f"{WRITING} > _seal > replace_file": 28,
    "close > _close_segment > _seal > replace_file": 28,
    "open > _go_on > _begin > _write_checkpoint > write > replace_file": 28,
    f"{WRITING} > _begin > _write_checkpoint > write > replace_file": 28,
    "close > _close_segment > _write_checkpoint > write > replace_file": 28,
    # The manifest, before it takes the place of the old one.
    "open > _go_on > _write_manifest > write > replace_file": 2,
    "open > _go_on > _swap > _write_manifest > write > replace_file": 2,
    f"{WRITING} > _swap > _write_manifest > write > replace_file": 2,
    "close > _close_segment > _swap > _write_manifest > write > replace_file": 2,
    "retain > _put_in_place_of > _write_manifest > write > replace_file": 2,
    f"{WRITING} > retain > _put_in_place_of > _write_manifest > write > replace_file": 2,
    # Names that the manifest is about to mention.
    "open > _go_on > _swap > names": 8,
    f"{WRITING} > _swap > names": 8,
    "close > _close_segment > _swap > names": 8,
    # The manifest's own name, before something is acknowledged or removed because of it.
    "open > _go_on > _write_manifest > write > names": 8,
    "open > _go_on > _swap > _write_manifest > write > names": 8,
    f"{WRITING} > _swap > _write_manifest > write > names": 8,
    "close > _close_segment > _swap > _write_manifest > write > names": 8,
    "retain > _put_in_place_of > _write_manifest > write > names": 8,
    f"{WRITING} > retain > _put_in_place_of > _write_manifest > write > names": 8,
    # Cleaned segments and their indexes, before the manifest names them; what made records unwanted, before they go.
    "step > _run > _write": 28,
    "step > _run > _write_staged > _write": 28,
    "step > _run > _finish > replace_file": 28,
    "replace > sync": 16,
    "replace > names": 8,
    "replace > _put_in_place_of > _write_manifest > write > replace_file": 2,
    "replace > _put_in_place_of > _write_manifest > write > names": 8,
    # What a killed process renamed, before files go that only the manifest before it names.
    CLEARING: 8,
}
"""Each site, and by how many calls its sync has to be late to do harm: `rename, sync` is as good as `sync, rename`
as long as no manifest speaks of the file."""

HARMLESS = {"save_state > replace_file"}
"""What is known of keys: without this sync a loss of power may cost another look at them, and no record."""

LATE = (
    "sync",
    "retain > sync",
    WRITING,
    "open > _go_on > _write_manifest > write > names",
    "step > _run > _write",
    CLEARING,
)
"""The sites whose late syncs `make test` tries, of each delay and each layer; `make nightly` tries all of them."""

SEEDS = (1, 0, *range(2, 60))
SOON = 40  # points: whatever a missing sync breaks, it breaks soon


def functions(frame: FrameType | None) -> Iterator[str]:
    """The functions of the journal that led here, innermost first."""
    while frame is not None and "tests" not in frame.f_code.co_filename.split("/"):
        if "journal" in frame.f_code.co_filename.split("/"):
            yield frame.f_code.co_name
        frame = frame.f_back


def site(operation: str) -> str:
    """Where in the journal we are."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame is not None and "journal" not in frame.f_code.co_filename.split("/"):
        frame = frame.f_back
    path = list(functions(frame))[::-1]
    if operation == "sync_names":
        return " > ".join([*path, "names"])
    return " > ".join(path[:-1] if path[-2:] == ["sync", "sync"] or path[-2:] == ["_roll", "sync"] else path)


def test_the_list_of_syncs_is_complete() -> None:
    seen: set[str] = set()

    def note(operation: str, name: str, count: int) -> bool:
        seen.add(site(operation))
        return False

    for seed in range(12):
        world = World(seed)
        world.storage.skip_sync = note
        world.open()
        for _ in range(60):
            world.step()
    assert seen == SITES.keys() | HARMLESS


class Mutant:
    """A journal in which the syncs at one site are forgotten or late, and lives in which that should show."""

    def __init__(self, of: str, delay: int | None) -> None:
        self.of, self.delay = of, delay
        self.sweep: Sweep
        self.hit = -SOON  # at which point of the sweep the site was last met

    def is_it(self, operation: str, name: str, count: int) -> bool:
        if site(operation) == self.of:
            self.hit = self.sweep.points
            return True
        return False

    def shows(self) -> bool:
        """Whether this is a point at which it may differ from the right one."""
        if self.of == CLEARING:  # it takes a kill between the swap and its sync, and then a power loss
            return self.sweep.world.storage.trace[-1:] == [("rename", "MANIFEST.tmp -> MANIFEST")]
        return self.sweep.points - self.hit < SOON

    def found_out(self, seeds: Iterable[int]) -> str | None:
        """What gives it away."""
        for seed in seeds:
            self.hit = -SOON
            self.sweep = sweep = Sweep(seed, again=0.9 if self.of == CLEARING else 0.3, thorough=True)
            sweep.worth_it = self.shows
            storage = sweep.world.storage
            if self.delay is None:
                storage.skip_sync = self.is_it
            else:
                storage.delay_sync, storage.delay = self.is_it, self.delay
            try:
                sweep.run()
            except Failure as failure:
                return str(failure)
        return None


@pytest.mark.parametrize("of", SITES)
def test_a_journal_that_forgets_a_sync_is_found_out(of: str) -> None:
    assert Mutant(of, None).found_out(SEEDS)


@pytest.mark.parametrize("of", nightly_beyond(len(LATE), sorted(SITES, key=lambda of: of not in LATE)))
def test_a_journal_that_syncs_too_late_is_found_out(of: str) -> None:
    assert Mutant(of, SITES[of]).found_out(SEEDS)


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 12), marks=pytest.mark.nightly)], ids=str)
@pytest.mark.parametrize("of", sorted(HARMLESS))
def test_some_syncs_save_work_and_no_records(of: str, seeds: range) -> None:
    assert Mutant(of, None).found_out(seeds) is None
