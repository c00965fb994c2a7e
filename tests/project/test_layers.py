"""Layers import only downwards, every package has its layer, and no package uses private names of another."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.project.project import PACKAGE, ROOT, modules, pyproject

# The rooms that own no socket, no clock and no event loop.
SANS_IO = {"core", "wire", "security"}


def contract(which: str) -> dict[str, Any]:
    """The contract of that name, or the first of that type."""
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    return dict(next(one for one in contracts if which in (one["name"], one["type"])))


def declared(layers: Iterable[str]) -> set[str]:
    return {name for layer in layers for name in re.findall(r"\w+", layer)}


def rooms(package: Path) -> set[str]:
    """The modules and folders directly in the package, the package's own `__init__` aside."""
    folders = {path.name for path in package.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    return folders | {path.stem for path in package.glob("*.py")} - {"__init__"}


def test_every_room_has_its_place_in_the_layers() -> None:
    homeless = rooms(PACKAGE) - declared(contract("layers")["layers"])
    assert not homeless, f"add {sorted(homeless)} to the layers in pyproject.toml, [tool.importlinter]"


def test_a_folder_without_a_place_is_found(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").touch()
    (tmp_path / "newcomer.py").touch()
    (tmp_path / "__init__.py").touch()
    assert rooms(tmp_path) - declared(["__main__", "(wire) | core"]) == {"newcomer"}


def test_the_rooms_that_do_no_io_are_under_its_contract() -> None:
    found = contract("core, protocols, security and the logic of groups do no I/O and read no clock")
    sources = {name.removeprefix("runnel.") for name in found["source_modules"]}
    assert sources == (SANS_IO & rooms(PACKAGE)) | {"broker.group.logic"}


def test_handles_and_listeners_know_no_backend() -> None:
    found = contract("handles and listeners know backends by their port alone")
    assert found["source_modules"] == ["runnel.api", "runnel.server"]
    assert {"runnel.broker", "runnel.client"} <= set(found["forbidden_modules"])


def test_imports_keep_the_contracts() -> None:
    # In a process of its own: it sets up logging for itself, and silences every logger that is there already.
    lint = [sys.executable, "-c", "import importlinter.cli; importlinter.cli.lint_imports_command()"]
    ended = subprocess.run([*lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


# -- private names -------------------------------------------------------------------------------------------------


def package_of(path: Path) -> str:
    """The package directly below `runnel` that a module belongs to."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def private_names(tree: ast.Module) -> set[str]:
    """Every name with a leading underscore that a module defines: functions, classes, attributes, constants."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def foreign_uses(tree: ast.Module, own: set[str], all_private: set[str]) -> list[str]:
    """Uses of private names of other packages: `thing._name`, where thing is not self, and imports of them."""
    foreign = all_private - own
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in foreign:
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                found.append(f"{node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("runnel."):
            found += [f"{node.lineno}: {alias.name}" for alias in node.names if alias.name in foreign]
    return found


def test_no_package_uses_private_names_of_another() -> None:
    trees = {PACKAGE / path: ast.parse((PACKAGE / path).read_text()) for path in modules()}
    by_package: dict[str, set[str]] = {}
    for path, tree in trees.items():
        by_package.setdefault(package_of(path), set()).update(private_names(tree))
    everything = set().union(*by_package.values())
    found = [
        f"{path.relative_to(PACKAGE)}:{use}"
        for path, tree in trees.items()
        for use in foreign_uses(tree, by_package[package_of(path)] | {"_fields"}, everything)
    ]
    assert found == []


def test_a_use_of_a_private_name_is_found() -> None:
    tree = ast.parse("from runnel.other import _secret\nbroker._bus.close()\nself._bus\nbroker._mine\nre._cache")
    assert foreign_uses(tree, {"_mine"}, {"_mine", "_bus", "_secret"}) == ["1: _secret", "2: broker._bus"]
