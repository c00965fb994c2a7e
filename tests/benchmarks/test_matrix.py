"""The cost matrix: that nothing public is left out of it, and that a cell which takes too long costs itself alone."""

import inspect
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import runnel
from benchmarks import results
from benchmarks.__main__ import QUESTIONS
from benchmarks.matrix.growth import MAKING, PROBES, THINGS
from benchmarks.matrix.operations import NO_COST, NOT_MEASURED, OPERATIONS
from benchmarks.matrix.options import CALL, OPEN, PUBLISH, SUBSCRIBE, TOPIC, keywords
from benchmarks.matrix.running import Effort, Matrix, Measured, measure_all, measured
from benchmarks.matrix.tables import is_super_linear, shown, tables
from benchmarks.published import PAGE, parts, written
from runnel.core.options import PolicyKind, PublishOptions, SubscribeOptions, TopicOptions, options_of
from runnel.journal.options import JournalOptions

HANDLES = (
    runnel.Broker,
    runnel.Topic,
    runnel.Subscription,
    runnel.GroupSubscription,
    runnel.Delivery,
    runnel.DeliveryBatch,
    runnel.Producer,
    runnel.Stage,
    runnel.Transaction,
    runnel.Group,
)

SMALL = Effort(0.001, 1, 20.0, 20.0, counts=(2, 4), backends=("memory",), growth_backends=())


def labels() -> set[str]:
    return {one.label for operation in OPERATIONS.values() for one in operation.variations()}


@pytest.mark.parametrize(
    ("known", "values"),
    [
        (options_of(PublishOptions), CALL),
        (options_of(SubscribeOptions), SUBSCRIBE),
        (TopicOptions.__struct_fields__, TOPIC),
        (JournalOptions.__struct_fields__, OPEN),
    ],
    ids=["publish", "subscribe", "topic", "open"],
)
def test_every_option_has_a_value_in_the_matrix(known: Any, values: dict[str, Any]) -> None:
    assert [name for name in known if name not in values] == [], "give these a value in benchmarks/matrix/options.py"


def test_every_value_is_varied_by_some_operation() -> None:
    there = {label.partition(": ")[2] or label for label in labels()}
    names = {label.partition("=")[0].removeprefix("records with ") for label in there}
    given = {name for values in (CALL, PUBLISH, SUBSCRIBE, TOPIC, OPEN) for name, ways in values.items() if ways}
    assert given - names == set()


def test_every_policy_has_cells() -> None:
    assert {f"subscribe: policy={kind.value}" for kind in PolicyKind} <= labels()


def public_methods() -> Iterator[tuple[str, Any]]:
    for handle in HANDLES:
        for name, method in inspect.getmembers(handle, inspect.isfunction):
            if not name.startswith("_"):
                yield f"{handle.__name__}.{name}", method


def test_every_public_method_has_an_operation_or_a_reason() -> None:
    there = {method for operation in OPERATIONS.values() for method in operation.methods}
    without = [name for name, method in public_methods() if method not in there and name not in NOT_MEASURED]
    assert without == [], "add an operation to benchmarks/matrix/operations.py"


def test_every_keyword_of_a_measured_method_is_varied_or_has_a_reason() -> None:
    known = {*CALL, *SUBSCRIBE, *NO_COST}
    without = [
        f"{operation.title}: {name}"
        for operation in OPERATIONS.values()
        for method in operation.methods
        for name in keywords(method)
        if name not in known
    ]
    assert without == [], "give these a value in benchmarks/matrix/options.py"


def test_growth_is_asked_of_operations_that_there_are() -> None:
    assert {probe.operation for probe in PROBES} <= {*OPERATIONS}
    assert {thing for probe in PROBES for thing in (*probe.each, *probe.only)} <= {*THINGS}


async def test_options_and_growth_are_measured_against_the_plain_case(tmp_path: Path) -> None:
    matrix = await measured(replace(SMALL, growth_backends=("memory",)), tmp_path, lambda line: None, "trim")
    assert [(cell.row, cell.column) for cell in matrix.cells] == [("trim", ""), ("trim", "force")]
    assert matrix.cells[1].ratio is not None
    assert matrix.errors == []
    matrix = await measured(replace(SMALL, growth_backends=("memory",)), tmp_path, lambda line: None, "names")
    assert {cell.table for cell in matrix.cells} == {"names"}
    assert {cell.column for cell in matrix.cells} == {"2", "4"}
    assert matrix.errors == []
    assert "#### Growth: memory" in tables(Matrix.of(json.loads(json.dumps(matrix.as_json()))))


PROCESS = """
import json, sys, time
for cell in json.loads(sys.argv[1]):
    print(json.dumps({"begin": cell}), flush=True)
    if cell["label"] == "hangs":
        time.sleep(600)
    if cell["label"] == "dies":
        sys.exit(1)
    print(json.dumps({"cell": cell, "plain": {"cpu": 1.0, "wall": 1.0}}), flush=True)
"""


async def test_a_cell_that_takes_too_long_is_stopped_and_the_next_ones_are_measured() -> None:
    told: list[tuple[str, Any]] = []
    labels = ["a", "hangs", "b", "dies", "c"]
    await measure_all(
        [{"label": label} for label in labels],
        replace(SMALL, limit=1.0),
        lambda cells: [sys.executable, "-c", PROCESS, json.dumps(cells)],
        lambda cell, said: told.append((cell["label"], said.get("stopped", said.get("error", "measured")))),
        lambda cells, at: cells,
        lambda line: None,
    )
    ends: list[Any] = ["measured", 1.0, "measured", "the measuring process ended", "measured"]
    assert told == list(zip(labels, ends, strict=True))


def test_a_cell_shows_its_ratio_and_whether_it_is_steep() -> None:
    def cell(cpu: float, wall: float, **more: Any) -> str:
        return shown(
            Measured("memory", "r", "c", plain={"cpu": 10, "wall": 20}, own={"cpu": cpu, "wall": wall}, **more)
        )

    assert cell(12, 20) == "1.2"
    assert cell(30, 20) == "✗ **3.0**"
    assert cell(12, 2000) == "✗ **100** (waits)"
    assert cell(12, 20, absent="no such option") == "–"
    assert cell(12, 20, error="broken") == "✗ failed"
    assert shown(Measured("memory", "r", "c", plain={"cpu": 1, "wall": 2e6}, stopped=5.0)) == "✗ > 2,500 (stopped)"


def test_what_grows_faster_than_the_number_of_things_is_marked() -> None:
    def grown(row: str, fewer: float, more: float) -> bool:
        cells = [
            Measured("memory", row, str(count), "topics", {"cpu": 100, "wall": 100}, {"cpu": cost, "wall": cost})
            for count, cost in ((1_000, fewer), (100_000, more))
        ]
        made = is_super_linear(*cells)
        assert ("✗✗" in tables(Matrix(cells)).split("Growth", 1)[1]) == made
        return made

    assert not grown("publish", 100, 9_000), "90 times the cost beside 100 times the things: steep, and not faster"
    assert grown("publish", 100, 11_000)
    assert not grown("topics", 100, 150), "its cost is that of one thing: the same, but for noise"
    assert grown("topics", 100, 300)
    assert grown(MAKING, 100, 300)


def test_the_page_of_figures_is_written_from_the_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert sorted(parts(page)) == sorted(QUESTIONS)
    assert written(page) == page, "run python -m benchmarks --publish"


def test_what_was_missed_is_published_beside_what_was_reached(tmp_path: Path) -> None:
    def contender(name: str, ratio: float, *, peer: bool) -> dict[str, Any]:
        figures = {"ns": {"median": 10 / ratio, "rounds": [10 / ratio]}}
        said = {"name": name, "call": "f()", "league": "", "peer": peer, "error": "", "skipped": ""}
        return said | {"times_best_peer": ratio, "figures": figures}

    told = {
        "name": "race",
        "question": "Who is quick?",
        "contenders": [contender("we", 0.5, peer=False), contender("they", 1.0, peer=True)],
        "aims": [{"text": "✓ we: 1", "met": True}, {"text": "✗ we: 2", "met": False}],
    }
    file = results.saved(told, {"Python": "3"}, "python -m benchmarks race", tmp_path)
    assert json.loads(file.read_text(encoding="utf-8"))["commit"] == results.commit()
    page = written("<!-- results: race -->\n<!-- end -->\n<!-- results: other -->\n<!-- end -->\n", tmp_path)
    assert "| we | 20 | ✗ **0.5** |" in page
    assert "1 met, **1 missed**" in page
    assert page.index("✗ we: 2") < page.index("✓ we: 1")
    assert "Not measured yet: `python -m benchmarks other --save`." in page
