"""Install the packages of a lock (`dev` unless another is named) and runnel itself into the environment that runs this.

Every package is checked against its hash in the lock, the build backend included:
nothing is fetched that the lock does not name. Says how far it is, in one line on a
terminal and in a few lines elsewhere; pip's own words are shown only when it fails.
"""

import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PIP = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
_SPARK = "about two minutes: Spark is 450 MB, and comes as source"
TIMES = {"dev": "about half a minute", "spark": _SPARK, "spark42": _SPARK}
ONE_PACKAGE = re.compile(r"(?:Collecting|Processing|Ignoring|Requirement already satisfied:) (?:\S*/)?(?P<name>\w+)")


def pip(*arguments: str) -> Iterator[str]:
    """Run `pip install` and yield its lines; if it fails, show the last ones and exit."""
    last: deque[str] = deque(maxlen=25)
    with subprocess.Popen(
        [*PIP, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line)
            yield line
    if process.returncode:
        sys.exit(f"\n{''.join(last)}\npip failed; its last lines are above. Run make again to go on from here.")


def show(done: int, total: int, name: str) -> None:
    """One line that is overwritten on a terminal; every twentieth package elsewhere."""
    if sys.stdout.isatty():
        print(f"\r\033[K  {done}/{total} {name}", end="", flush=True)
    elif done % 20 == 0:
        print(f"  {done}/{total}", flush=True)


def main(name: str = "dev") -> None:
    """Install the lock; with the first one the project too, in place."""
    lock = ROOT / "requirements" / f"{name}.lock"
    total = len(re.findall(r"^[\w.-]+==", lock.read_text(), re.MULTILINE))
    into = Path(sys.prefix).name
    print(f"Installing {total} packages of {name}.lock into {into} ({TIMES[name]}, once)", flush=True)
    done = 0
    for line in pip("--require-hashes", "--no-build-isolation", "-r", str(lock)):
        if found := ONE_PACKAGE.match(line):
            done += 1
            show(done, total, found["name"])
        elif line.startswith("Installing collected packages"):
            show(done, total, "unpacking")
    if name == "dev":
        for _ in pip("--no-deps", "--no-build-isolation", "--editable", "."):
            pass
    print("\r\033[K" * sys.stdout.isatty() + "  done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
