"""How tests are spread over the workers of `pytest -n`, with `--dist loadgroup`.

A file goes to one worker, so that what its tests share is made once. Tests with the mark `xdist_group` go to one worker
per group: those that need Spark share one session and one Java. Folders whose files take long come first, so that the
workers end at about the same time.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadGroupScheduling

from tests.budget import folder

FIRST = ("spark", "browser", "examples", "chaos", "crash", "contract", "benchmarks", "docs", "cli")


class ByFileOrGroup(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """Groups by mark, all other tests by file. One by one, as xdist has it, costs 20 s of CPU for 13,000 tests."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        return scope.split("::", 1)[0]


def longest_first(items: list[pytest.Item]) -> None:
    """Put the folders that take long first, in place; the order is otherwise kept."""
    ranks = {name: rank for rank, name in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(folder(item.nodeid), len(ranks)))
