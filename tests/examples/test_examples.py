"""Every example runs as it stands and prints what its docstring says.

An example is a file `examples/name.py`, or a folder `examples/name/` with a
`__main__.py`. Its docstring ends with `Prints::` and the indented output; `...`
stands for what differs from run to run.
"""

import ast
import doctest
import gc
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.project.project import ROOT
from tools.postgres import found
from tools.spark_archive import options

TIMEOUT = PATIENCE + 60.0
SLOW = {"trades": 3 * TIMEOUT}  # it starts Spark, and three queries
MARK = "Prints::\n"


def find(folder: Path) -> list[Path]:
    """What can be run in the folder: files, and folders with Python in them."""
    entries = [path for path in folder.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))]
    return sorted(entries)


NEEDS_SPARK = (
    pytest.mark.nightly,  # it starts Spark for itself; test_trades has it run in the session of the tests
    pytest.mark.skipif(find_spec("pyspark") is None, reason="no pyspark"),
)
NEEDS_POSTGRES = pytest.mark.skipif(not (find_spec("psycopg") and found()), reason="no psycopg or no PostgreSQL")
NEEDS: dict[str, Any] = {"trades": NEEDS_SPARK, "callroom": NEEDS_POSTGRES}
EXAMPLES = [pytest.param(path, id=path.name, marks=NEEDS.get(path.name, ())) for path in find(ROOT / "examples")]
SHORTER = {"workers": ("--kills=2",)}  # as it stands it kills four


def expected(example: Path) -> str:
    """The output that the docstring promises."""
    source = example if example.suffix == ".py" else example / "__main__.py"
    # CPython 3.11 fails in ast.parse if a collection in it runs a destructor that parses, too.
    gc.collect()
    docstring = ast.get_docstring(ast.parse(source.read_text())) or ""
    _, _, output = docstring.partition(MARK)
    assert output.strip(), f"{source.name}: let the docstring end with `Prints::` and the output"
    return dedent(output).strip("\n") + "\n"


def run(example: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(example), *arguments]
    timeout = SLOW.get(example.name, TIMEOUT)
    environ = os.environ | ({"JDK_JAVA_OPTIONS": options()} if example.name in SLOW else {})
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, env=environ)


def agrees(want: str, got: str) -> bool:
    return doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_and_prints_what_its_docstring_says(example: Path, tmp_path: Path) -> None:
    check(example, run(example, tmp_path, *SHORTER.get(example.name, ())))


@pytest.mark.nightly
@pytest.mark.parametrize("name", SHORTER)
def test_an_example_of_which_a_shorter_run_is_tested_runs_as_it_stands(name: str, tmp_path: Path) -> None:
    example = ROOT / "examples" / name
    check(example, run(example, tmp_path))


def check(example: Path, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    assert agrees(expected(example), done.stdout), f"printed:\n{done.stdout}"


def test_files_and_folders_are_found_and_other_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "hello.py").touch()
    (tmp_path / "README.md").touch()
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "__main__.py").touch()
    assert [path.name for path in find(tmp_path)] == ["hello.py", "web"]


def test_the_output_is_read_from_the_docstring(tmp_path: Path) -> None:
    path = tmp_path / "hello.py"
    path.write_text('"""Say hello.\n\nPrints::\n\n    hello\n      in ... ms\n"""\n')
    assert expected(path) == "hello\n  in ... ms\n"
    assert agrees(expected(path), "hello\n  in 12 ms\n")
    assert not agrees(expected(path), "goodbye\n  in 12 ms\n")


def test_an_example_that_promises_no_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text('"""Say nothing."""\n')
    with pytest.raises(AssertionError, match="Prints::"):
        expected(tmp_path / "silent.py")


def test_an_example_that_raises_fails(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise SystemExit(3)\n")
    assert run(tmp_path / "broken.py", tmp_path).returncode == 3
