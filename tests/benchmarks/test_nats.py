"""The questions beside NATS, with loads so small that they say nothing about speed, only that they measure."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import cluster, nats_listener
from benchmarks.disk import FSYNC
from benchmarks.harness import Question, ask

ASKED: dict[str, Callable[[Path], Question]] = {
    "nats_listener": lambda folder: nats_listener.question(folder=folder, seconds=0.05),
    "cluster": lambda folder: cluster.question(folder=folder, seconds=0.15),
}
SOME = {"nats_listener": (nats_listener.THROUGH, nats_listener.ALONE), "cluster": (cluster.LISTS,)}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["some", "all"])
def test_contenders_beside_nats_give_their_figures(name: str, whole: bool, tmp_path: Path) -> None:
    question = ASKED[name](tmp_path)
    some = [one for one in question.contenders if whole or one.league in SOME[name]]
    answer = ask(replace(question, contenders=some), 1)
    assert [(result.error, result.skipped) for result in answer.results] == [("", "")] * len(some)
    assert all(FSYNC in result.figures and len(result.figures) > 2 for result in answer.results)


@pytest.mark.parametrize("name", ASKED)
def test_aims_are_about_contenders_that_there_are(name: str, tmp_path: Path) -> None:
    question = ASKED[name](tmp_path)
    names = {one.name for one in question.contenders}
    assert len(names) == len(question.contenders)
    assert {aim.contender for aim in question.aims} | {aim.peer for aim in question.aims} <= names
