"""Where things are in this repository, for the tests that watch over it."""

import subprocess
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "runnel"


def pyproject() -> dict[str, Any]:
    """The parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def modules(package: Path = PACKAGE) -> list[Path]:
    """Every Python file of the package, relative to it."""
    return sorted(path.relative_to(package) for path in package.rglob("*.py"))


def project_files() -> list[Path]:
    """Every file that is, or is about to be, part of the repository: what git tracks and does not ignore."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return sorted(path for path in paths if path.is_file())
