"""One version, a typed package, and a lock that pins and hashes every tool that pyproject.toml names."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import runnel
from tests.patience import PATIENCE
from tests.project.project import PACKAGE, ROOT, project_files, pyproject

LOCKS = [ROOT / "requirements" / name for name in ("dev.lock", "spark.lock", "spark42.lock", "fuzz.lock")]


def canonical(requirement: str) -> str:
    """The name in a requirement, as package indexes spell it."""
    name = re.match(r"[\w.-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def named(project: dict[str, Any]) -> set[str]:
    """Every package that runnel and its tools ask for directly."""
    groups = (entry for group in project["dependency-groups"].values() for entry in group)
    return {canonical(entry) for entry in (*project["project"]["dependencies"], *groups) if isinstance(entry, str)}


def locked() -> str:
    """All locks as one."""
    return "".join(lock.read_text() for lock in LOCKS)


def pins(lock: str) -> dict[str, str]:
    """The entries of a lock by name, their hashes included."""
    entries = re.split(r"^(?=[\w.-]+==)", lock, flags=re.MULTILINE)[1:]
    return {canonical(entry.partition("==")[0]): entry for entry in entries}


def test_the_version_is_the_one_in_pyproject() -> None:
    assert runnel.__version__ == pyproject()["project"]["version"]


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_the_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE)
    [wheel] = tmp_path.glob("*.whl")
    shipped = set(zipfile.ZipFile(wheel).namelist())
    files = {path for path in project_files() if path.is_relative_to(PACKAGE)}
    wanted = {str(path.relative_to(PACKAGE.parent)) for path in files}
    assert any(name.endswith(".html") for name in wanted)
    assert sorted(wanted - shipped) == []


def test_the_extra_all_is_all_extras() -> None:
    extras = pyproject()["project"]["optional-dependencies"]
    [everything] = extras["all"]
    assert re.findall(r"[\w-]+", everything.partition("[")[2]) == [name for name in extras if name != "all"]


def test_the_lock_pins_every_package_that_is_named() -> None:
    assert sorted(named(pyproject()) - pins(locked()).keys()) == [], "run `make lock`"


def test_every_pin_has_a_hash() -> None:
    assert [name for name, entry in pins(locked()).items() if "--hash=sha256:" not in entry] == []


def test_the_lock_names_no_host_and_no_folder() -> None:
    assert re.findall(r"\S*(?:://|file:|index-url|find-links)\S*", locked()) == []


def test_names_and_pins_are_read_whatever_their_spelling() -> None:
    project = {
        "project": {"dependencies": ["msgspec>=0.22"]},
        "dependency-groups": {"a": ["Foo_Bar[x]; python_version > '3'", {"include-group": "b"}], "b": ["ruff"]},
    }
    assert named(project) == {"msgspec", "foo-bar", "ruff"}
    lock = "# made by\nfoo-bar==1 \\\n    --hash=sha256:0\n    # via x\nruff==2\n"
    assert list(pins(lock)) == ["foo-bar", "ruff"]
    assert "--hash" in pins(lock)["foo-bar"]
    assert "--hash" not in pins(lock)["ruff"]
