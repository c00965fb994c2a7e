"""A process that archives one topic in steps, and says on its output how far it is. Tests kill it."""

from __future__ import annotations

import sys

from runnel.lake import Lake
from tests.lake.rows import batch

STEP = 50


def main(folder: str, steps: int) -> None:
    lake = Lake(folder)
    lake.create()
    for number in range(steps):
        known = lake.next_offsets()
        first = known.get(("orders", 1), 0)
        # Some rows again, as a replayed batch has them.
        files = lake.write([batch("orders", range(max(0, first - 20), first + STEP))])
        sys.stdout.write(f"written {first}\n")
        sys.stdout.flush()
        done = lake.commit(files, application="archive", version=number)
        sys.stdout.write(f"committed {done.next_offsets['orders', 1]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
