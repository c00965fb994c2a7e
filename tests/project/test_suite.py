"""How the tests are run: what is left for the night, which worker runs what, and the table of what it took."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.budget import AREAS, table
from tests.project.project import ROOT
from tests.scheduling import FIRST, folder, unit

NIGHTLY = "tests/project/test_without_spark.py"
NAME = f"{NIGHTLY}::test_without_it_everything_is_collected_but_its_own_tests"


@pytest.mark.parametrize(
    ("arguments", "found"),
    [((NIGHTLY,), False), ((NIGHTLY, "-m", "nightly"), True), ((f"{NAME}[all]",), True)],
    ids=["a file", "by the mark", "by its name"],
)
def test_a_nightly_test_runs_only_when_it_is_asked_for(arguments: tuple[str, ...], found: bool) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert (f"{NAME}[all]" in done.stdout) == found
    assert ("1 deselected" in done.stdout) == (not found)


def test_a_file_is_one_unit_of_work_and_so_is_a_group() -> None:
    units = {
        "tests/core/test_batch.py::test_one": "tests/core/test_batch.py",
        "tests/core/test_batch.py::test_two[a::b]": "tests/core/test_batch.py",
        "tests/spark/test_format.py::test_one": "spark",
        "tests/examples/test_trades.py::test_one": "spark",
        "tests/postgres/test_server.py::test_one[pg18]": "postgres",
        "tests/examples/test_examples.py::test_it_runs[trades]": "tests/examples/test_examples.py",
    }
    assert {nodeid: unit(nodeid) for nodeid in units} == units


def test_tests_that_need_spark_run_on_one_worker_and_others_beside_them(tmp_path: Path) -> None:
    # A folder of its own: runs that share one remove each other's leavings.
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/base"]
    command += ["-v", "-n", "2", "--dist", "loadgroup"]
    files = ("tests/spark/test_partition.py", "tests/spark/test_message.py", "tests/core/test_position.py")
    done = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    where: dict[str, set[str]] = {}
    for worker, path in re.findall(r"\[(gw\d)\].* PASSED ([^:]+)::", done.stdout):
        where.setdefault(path, set()).add(worker)
    assert where.keys() == {*files}
    first, second, other = (where[path] for path in files)
    assert first == second != other
    assert len(first) == len(other) == 1


def test_folders_with_a_budget_or_a_rank_are_there() -> None:
    there = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert {name for folders in AREAS.values() for name in folders} - there == set()
    assert set(FIRST) - there == set()


def test_the_table_adds_up_by_area_and_says_what_is_over() -> None:
    lines = table({"core": 3.25, "wire": 20.0, "spark": 150.0, "new": 1.0})
    assert [line.split() for line in lines] == [
        ["wire", "20.0", "s", "of", str(AREAS["base"]["wire"]), "over"],
        ["core", "3.2", "s", "of", str(AREAS["base"]["core"])],
        ["base", "23.2", "s", "of", str(sum(AREAS["base"].values()))],
        ["spark", "150.0", "s", "of", "200"],
        ["Spark", "150.0", "s", "of", "200"],
        ["new", "1.0", "s", "of", "0", "over"],
        ["no", "budget", "1.0", "s", "of", "0", "over"],
        ["all", "174.2", "s", "of", str(sum(sum(one.values()) for one in AREAS.values()))],
    ]


def test_a_test_counts_for_its_folder_or_for_spark() -> None:
    assert folder("tests/server/http/test_dead_letters.py::test_one[folder]") == "server"
    assert folder("tests/spark/test_format.py::test_one") == "spark"
    assert folder("tests/examples/test_trades.py::test_one") == "spark"
    assert folder("test_elsewhere.py::test_one") == "test_elsewhere.py"
