"""Each module has a test file in the same place under tests/, and each such test file has its module."""

from collections.abc import Iterable
from pathlib import Path

from tests.house.project import PACKAGE, ROOT, modules

# Folders of tests that follow a subject instead of a module.
BY_SUBJECT = {
    "benchmarks",
    "chaos",
    "contract",
    "crash",
    "fuzz",
    "golden",
    "interop",
    "browser",
    "house",
    "docs",
    "examples",
}
# Files of tests that follow a subject, beside those of the modules that it is about.
FILES_BY_SUBJECT = {
    Path("spark") / name
    for name in (
        "test_cluster.py",
        "test_connect.py",
        "test_exactness.py",
        "test_sink_exactness.py",
        "test_typed_source.py",
    )
}
WITHOUT_TEST = {"__init__.py", "__main__.py"}


def wanted(sources: Iterable[Path]) -> dict[Path, Path]:
    """The test file that each module ought to have: `a/b.py` wants `a/test_b.py`."""
    return {
        source.parent / f"test_{source.name.lstrip('_')}": source
        for source in sources
        if source.name not in WITHOUT_TEST
    }


def mirrored(tests: Path) -> set[Path]:
    """The test files that mirror a module, relative to the folder of tests."""
    found = (path.relative_to(tests) for path in tests.rglob("test_*.py"))
    return {path for path in found if path.parts[0] not in BY_SUBJECT} - FILES_BY_SUBJECT


def test_every_module_has_its_test() -> None:
    want = wanted(modules(PACKAGE))
    missing = sorted(want.keys() - mirrored(ROOT / "tests"))
    lines = [f"  tests/{test}  for  src/runnel/{want[test]}" for test in missing]
    assert not missing, "modules without a test file:\n" + "\n".join(lines)


def test_every_mirrored_test_has_its_module() -> None:
    strays = sorted(mirrored(ROOT / "tests") - wanted(modules(PACKAGE)).keys())
    lines = [f"  tests/{test}" for test in strays]
    assert not strays, f"tests of no module; move them to one of {sorted(BY_SUBJECT)}:\n" + "\n".join(lines)


def test_modules_map_to_the_same_place_under_tests() -> None:
    sources = [Path("__init__.py"), Path("__main__.py"), Path("blocking.py"), Path("core/_ring.py")]
    assert wanted(sources) == {
        Path("test_blocking.py"): Path("blocking.py"),
        Path("core/test_ring.py"): Path("core/_ring.py"),
    }


def test_tests_by_subject_need_no_module(tmp_path: Path) -> None:
    for name in ("house/test_layers.py", "core/test_errors.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert mirrored(tmp_path) == {Path("core/test_errors.py")}
