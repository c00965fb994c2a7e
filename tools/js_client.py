"""Copy the modules for pages and programs from src/runnel/console, where servers find them, to the npm package.

They are in the repository once, in src/runnel/console, as is the license. `npm pack` runs this first (`make js`).
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, PACKAGE = ROOT / "src" / "runnel" / "console", ROOT / "clients" / "js"
COPIED = ("runnel.js", "runnel.d.ts", "runnel-socket.js", "runnel-socket.d.ts", "runnel-node.js")


def main() -> None:
    """Copy what differs."""
    for source in (*(SOURCE / name for name in COPIED), ROOT / "LICENSE"):
        body, copy = source.read_bytes(), PACKAGE / source.name
        if not copy.exists() or copy.read_bytes() != body:
            copy.write_bytes(body)
            print(f"copied {source.name}")


if __name__ == "__main__":
    main()
