"""In which order the rows of a large transaction are staged."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runnel.postgres import staged
from runnel.postgres.changes import RecordRun
from runnel.postgres.staged import arranged

OPERATIONS = {"i": "insert", "r": "read", "u": "update", "d": "delete", "e": "event", "m": "message"}


def runs(*said: str) -> list[RecordRun]:
    """Runs as "a ii": two inserts for topic a. The value of a record is the number of its run."""
    found = []
    for number, one in enumerate(said):
        topic, operations = one.split()
        run = RecordRun(topic)
        for operation in operations:
            run.values.append(str(number).encode())
            run.keys.append(f"{number}".encode())
            run.headers.append({"pg-op": OPERATIONS[operation]})
        found.append(run)
    return found


def told(found: Sequence[RecordRun]) -> list[str]:
    for run in found:
        assert run.keys == run.values
        assert len(run.headers) == len(run.values)
    return [f"{run.topic} {b''.join(value or b'' for value in run.values).decode()}" for run in found]


def test_few_runs_stay_as_they_are() -> None:
    given = runs("a i", "b i", "a i")
    assert arranged(given) is given


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["a ii", "b i", "a i", "b r", "c i"], ["a 002", "b 13", "c 4"]),
        (["a i", "b i", "a u", "b i", "a i"], ["a 0", "b 1", "a 2", "b 3", "a 4"]),
        (["a i", "b i", "a i", "b d", "b i", "a i", "b i"], ["a 02", "b 1", "b 3", "b 46", "a 5"]),
        (["a i", "b iue", "a i", "b i", "a i"], ["a 0", "b 111", "a 24", "b 3"]),
        (["a i", "m m", "a i", "e e"], ["a 0", "m 1", "a 2", "e 3"]),
    ],
)
def test_many_runs_are_arranged_by_topic_where_they_are_inserts(
    monkeypatch: pytest.MonkeyPatch, given: list[str], found: list[str]
) -> None:
    monkeypatch.setattr(staged, "PART_STAGES", 2)
    assert told(arranged(runs(*given))) == found
