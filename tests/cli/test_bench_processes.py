"""Publishers and subscribers in one process or several do one load together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.cli.bench import BenchLoad, run_load, share_out, workers_by_process
from runnel.cli.errors import CommandError


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 20))
def test_everybody_works_somewhere_and_nobody_twice(publishers: int, subscribers: int, processes: int) -> None:
    found = workers_by_process(publishers, subscribers, processes)
    assert sum(one for one, _ in found) == publishers
    assert sum(one for _, one in found) == subscribers
    assert len(found) <= max(processes, 2)
    assert all(any(one) for one in found)
    if processes > 1:
        assert all(0 in one for one in found)  # apart


def test_they_are_shared_out_evenly() -> None:
    assert share_out(10, 4) == [3, 3, 2, 2]
    assert share_out(2, 4) == [1, 1]
    assert share_out(0, 4) == []


@pytest.mark.parametrize("processes", [1, 2, 3])
async def test_all_of_it_reaches_everybody(server: str, topic: str, processes: int) -> None:
    load = BenchLoad(server, topic, 100, 10, 4, 500, None, None, temporary=processes == 1)
    outcomes = await run_load(load, 2, 3, processes)
    assert [one.count for one in outcomes if one.role == "publisher"] == [500, 500]
    assert [one.count for one in outcomes if one.role == "subscriber"] == [1000, 1000, 1000]


@pytest.mark.parametrize("processes", [1, 2])
async def test_what_goes_wrong_in_one_of_them_is_told(processes: int) -> None:
    load = BenchLoad("runnel://127.0.0.1:1", "t", 100, 10, 4, 500, None, None)
    with pytest.raises(CommandError, match="no server could be reached") as refused:
        await run_load(load, 1, 1, processes)
    assert refused.value.code == "unreachable"
