"""Copy the modules for pages and programs from src/runnel/console, where servers find them, to the npm package.

They are in the repository once, in src/runnel/console. `npm pack` runs this first (`make js`).
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, PACKAGE = ROOT / "src" / "runnel" / "console", ROOT / "clients" / "js"
COPIED = ("runnel.js", "runnel.d.ts", "runnel-socket.js", "runnel-socket.d.ts", "runnel-node.js")


def main() -> None:
    """Copy what differs."""
    for name in COPIED:
        body = (SOURCE / name).read_bytes()
        if not (PACKAGE / name).exists() or (PACKAGE / name).read_bytes() != body:
            (PACKAGE / name).write_bytes(body)
            print(f"copied {name}")


if __name__ == "__main__":
    main()
