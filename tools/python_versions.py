"""Run a command with each of several Pythons, each in an environment of its own: `.venv-py3.12`.

`python tools/python_versions.py -m pytest`: the arguments are for each Python. A version that is not installed is
named and left out; without any, or if the command fails for one, this fails.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSIONS = ("3.11", "3.12", "3.13")
LOCKS = ("dev", "spark")


def candidates(version: str) -> Iterator[str]:
    """What may be a Python of this version: on the PATH, or where pyenv keeps them."""
    yield f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for program in sorted(pyenv.glob(f"versions/{version}.*/bin/python")):
        yield str(program)


def find(version: str) -> str | None:
    """The first of them that says that it is of this version: a shim of pyenv may exist and not work."""
    for program in candidates(version):
        try:
            said = subprocess.run(
                [program, "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True,
                text=True,
            )
        except OSError:
            continue
        if said.stdout.strip() == version:
            return program
    return None


def environment(program: str, version: str) -> Path:
    """The Python of an environment with everything that tests need; made anew when a lock is newer."""
    folder = ROOT / f".venv-py{version}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    needs = [ROOT / "requirements" / f"{lock}.lock" for lock in LOCKS]
    if not ready.exists() or any(lock.stat().st_mtime > ready.stat().st_mtime for lock in needs):
        subprocess.run([program, "-m", "venv", "--clear", str(folder)], check=True)
        for lock in LOCKS:
            subprocess.run([python, ROOT / "tools" / "install.py", lock], check=True)
        ready.touch()
    return python


def main(command: Sequence[str]) -> int:
    """Run it with every Python that there is."""
    found = {version: program for version in VERSIONS if (program := find(version)) is not None}
    failed = [] if found else ["all: none is installed"]
    for version in VERSIONS:
        if version not in found:
            print(f"Python {version} is not installed: left out", flush=True)
            continue
        print(f"Python {version}: {' '.join(command)}", flush=True)
        python = environment(found[version], version)
        if subprocess.run([python, *command], cwd=ROOT).returncode:
            failed.append(version)
    if failed:
        print(f"failed on Python {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
