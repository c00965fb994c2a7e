"""Cutting the power, or killing the process, at every call of a workload; and again while it recovers.

A *point* is a call of the storage that changes something. At each one, several ends are tried: what the next opening
finds depends on what the disk kept. An *opening* is one of them, opened and compared with what was promised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from random import Random

from runnel.core.errors import RunnelError
from runnel.journal.write.journal import Journal
from runnel.testing import power_loss
from runnel.testing.memory_storage import MemoryStorage, PowerLost
from tests.crash.model import State, Violation
from tests.crash.watching import Watched, in_small, watched
from tests.crash.workload import World

FIXED = (
    power_loss.keep_nothing,
    power_loss.keep_everything,
    power_loss.keep_names,
    power_loss.keep_names_and_lengths,
    power_loss.keep_data,
)


class Failure(Exception):
    """A broken promise, with all that is needed to see it again."""


class Sweep:
    """One workload, crashed at every call. `run` returns when nothing was found, and raises `Failure` otherwise.

    steps     how long the workload is
    ends      how many ends are tried at each point, besides all the worst ones when `thorough`
    again     how often what is found is crashed again while it recovers, or goes on and is crashed later
    """

    def __init__(
        self, seed: int, *, steps: int = 40, ends: int = 3, again: float = 0.15, thorough: bool = False
    ) -> None:
        self.seed, self.steps, self.ends, self.again, self.thorough = seed, steps, ends, again, thorough
        self.random = Random(seed + 1)  # apart from the world's: looking changes nothing
        self.world = World(seed)
        self.worth_it: Callable[[], bool] = lambda: True
        self.points = 0
        self.openings = 0
        self.operations: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Sweep {self.seed}, {self.points} points, {self.openings} openings>"

    def run(self) -> Sweep:
        """Live the whole workload, looking before each call; every other one in small."""
        with in_small() if self.seed % 2 else nullcontext():
            self._run()
        return self

    def _run(self) -> None:
        world = self.world
        world.storage.watch = self.look
        try:
            world.open()
            for _ in range(self.steps):
                world.step()
            self.look()
        except (Violation, RunnelError, OSError, LookupError, ValueError) as error:
            raise Failure(f"seed {self.seed}, point {self.points}, while working: {error!r}") from error

    def look(self) -> None:
        """The power goes now: try what may be found."""
        self.points += 1
        if not self.worth_it():
            return
        storage = self.world.storage
        if storage.trace:
            self.operations[storage.trace[-1][0]] += 1
        for name, found, killed in self.ways(storage):
            self.openings += 1
            try:
                self.judge(found, killed=killed)
            except (Violation, RunnelError, OSError, LookupError, ValueError) as error:
                last = storage.trace[-1:]
                raise Failure(f"seed {self.seed}, point {self.points} after {last}, {name}: {error!r}") from error

    def ways(self, storage: MemoryStorage) -> Iterator[tuple[str, MemoryStorage, bool]]:
        """What may be found now, what to call it, and whether nothing was lost but the process."""
        yield "killed", storage.after_kill(), self.world.intact
        for fixed in FIXED if self.thorough else FIXED[self.points % len(FIXED) :][:1]:
            yield fixed.__name__, storage.after_power_loss(fixed), False
        for _ in range(self.ends - 2):
            choice, back = self.random.random(), self.random.randint(0, 12)
            if choice < 0.5:
                yield "random", storage.after_power_loss(self.random), False
            elif choice < 0.75:
                yield (
                    f"keep_after(-{back})",
                    storage.after_power_loss(power_loss.keep_after(storage.calls - back)),
                    False,
                )
            else:
                yield (
                    f"keep_until(-{back})",
                    storage.after_power_loss(power_loss.keep_until(storage.calls - back)),
                    False,
                )

    def judge(self, found: MemoryStorage, *, killed: bool) -> None:
        """Open what is there, crash again or not, and compare."""
        world, random = self.world, self.random
        exact = world.exact and world.fsync == "commit"
        while random.random() < self.again:
            found = watched(found, world.storage)
            found.crash_at = random.randint(1, 30)
            try:
                Journal.open(found, world.options(), now=world.now)
                break
            except PowerLost:
                pass
            if random.random() < 0.4:
                found = found.after_kill()
            else:
                found, killed = found.after_power_loss(random), False
        storage = watched(found.after_kill(), world.storage)
        journal = Journal.open(storage, world.options(), now=world.now)
        _, state = world.promises.check(journal, killed=killed, exact=exact)
        if random.random() < self.again:
            self.go_on(storage, journal, state)

    def go_on(self, storage: Watched, journal: Journal, state: State) -> None:
        """After recovery life goes on, and is cut off again."""
        world = World.__new__(World)
        world.__dict__.update(self.world.__dict__)
        world.random = Random(self.random.random())
        world.promises = promises = self.world.promises.copy()
        promises.hand_out_all(state)
        promises.states, promises.returned = [state], 0
        world.storage, world.journal = storage, journal
        world.recall()
        world.exact = world.fsync == "commit"
        for _ in range(3):
            world.step()
        world.come_back()
