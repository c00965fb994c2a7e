"""Chromium, that the browser tests and the pictures of the docs need: find it, or say how to get it.

`make test` runs this. As root on Debian it installs what is missing; elsewhere it names the command, and fails.
With BROWSER=0 nothing is needed: the tests that want a browser are left out.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
SYSTEM = Path("/etc/os-release")
COMMANDS = """\
  Debian           sudo apt-get install chromium
  Ubuntu           sudo snap install chromium
  Fedora           sudo dnf install chromium
  Alpine           sudo apk add chromium
  macOS            brew install --cask google-chrome, and have google-chrome on the PATH"""


def wanted() -> bool:
    """Whether tests may use a browser: not with BROWSER=0."""
    return os.environ.get("BROWSER", "1") != "0"


def find() -> str | None:
    """The path of the first browser on the PATH that will do."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def missing() -> str:
    """What to say where there is none."""
    return (
        f"The browser tests need Chromium, and none is on the PATH (looked for: {', '.join(NAMES)}).\n"
        f"Install it, then run make again:\n{COMMANDS}\n"
        "Or leave these tests out: BROWSER=0 make test"
    )


def is_debian(release: str) -> bool:
    """Whether this is Debian itself, by its os-release: what others derive from it packs Chromium otherwise."""
    return "ID=debian" in release.splitlines()


def install() -> bool:
    """Install Debian's; whether that went well. apt's own words are shown only when it did not."""
    print("Installing Chromium (about a minute, once)", flush=True)
    # Another apt may be at work, as on a machine that has just booted.
    apt = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300"]
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
        done = subprocess.run([*apt, *step], env=quiet, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            print(done.stdout, file=sys.stderr)
            return False
    print("  done", flush=True)
    return True


def main() -> int:
    """Have one, unless it is not wanted; the exit code."""
    if not wanted() or find():
        return 0
    release = SYSTEM.read_text() if SYSTEM.exists() else ""
    if os.geteuid() == 0 and is_debian(release) and shutil.which("apt-get") and install() and find():
        return 0
    print(missing(), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
